"""What came from a bus, cut so that each part of it is taken in within some milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from runner.events.rows import LiveRow
from runner.events.seen import Received, Seen

ITEMS: Final = 2_000
"""Live items of a portion at most; a message may hold thousands."""


def portions(came: Iterable[Seen]) -> Iterator[list[Seen]]:
    """The same in the same order, messages with many items in several."""
    together: list[Seen] = []
    for each in came:
        if isinstance(each, Received) and isinstance(row := each.decoded, LiveRow) and len(row.batch.items) > ITEMS:
            if together:
                yield together
            together = []
            for part in _parts(row):
                yield [msgspec.structs.replace(each, decoded=part)]
        else:
            together.append(each)
    if together:
        yield together


def _parts(row: LiveRow) -> Iterator[LiveRow]:
    items = row.batch.items
    for first in range(0, len(items), ITEMS):
        batch = msgspec.structs.replace(row.batch, items=items[first : first + ITEMS])
        yield LiveRow(batch=batch, raw=() if first else row.raw)
