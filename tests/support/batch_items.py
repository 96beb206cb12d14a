"""What the observers of a batch receive, decoded."""

from __future__ import annotations

import msgspec

from runner.batch.observers import BatchItem, EpisodeStored, LiveItems
from runner.events.live import LiveItem

_DECODER = msgspec.json.Decoder(LiveItem)


def live_items(item: BatchItem) -> list[LiveItem]:
    """Return an item of a batch as the live items that a publisher sends."""
    if isinstance(item, LiveItems):
        return [_DECODER.decode(data) for data in item.items]
    return [item.end if isinstance(item, EpisodeStored) else item]
