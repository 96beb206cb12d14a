"""What every item of a foreign file keeps to, whatever its format: small limits, distinct ids, and sizes that follow
from that of the item."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from runner.errors import StoreError
from runner.formats.drafts import Transcript
from runner.formats.format import Format, head_of
from runner.formats.importing import decoded_episodes
from runner.formats.reading import Item, Limits, Malformed
from runner.store import EpisodeRecord
from runner.types import Message
from runner.util.clock import is_ulid
from runner.util.safe_values import encode

LIMITS: Final = Limits(item_bytes=2_000, item_values=200, branches=4, files=4)
TIME: Final = datetime(2026, 1, 2, tzinfo=UTC)
MAX_GROWTH: Final = 100
"""Largest size of a stored episode per byte of its item: a short value may become a step of some 500 bytes."""


def check_path(path: Path, form: Format) -> None:
    """Read all items of a file or folder in one format, whether or not its signature matches."""
    try:
        form.matches(head_of(path))
        for item in form.items(path, LIMITS):
            if isinstance(item, Item):
                check_item(item, [form])
    except StoreError:
        return


def check_item(item: Item, formats: Iterable[Format]) -> None:
    """Decode an item in each format, and read it again at its place."""
    for form in formats:
        assert form.read(item.place, LIMITS) == item.data
        check_decoded(item, form)


def check_decoded(item: Item, form: Format) -> None:
    """Check the episodes of an item, which may have none for a reason."""
    try:
        _check_episodes(item, form)
    except ValueError as exc:
        assert str(exc)


def check_place(item: Item | Malformed, size: int) -> None:
    """Check that an item lies in its file of ``size`` bytes and is no larger than the limit."""
    assert isinstance(item, Malformed) or len(item.data) <= LIMITS.item_bytes
    assert 0 <= item.place.start <= item.place.start + item.place.size <= size


def _check_episodes(item: Item, form: Format) -> None:
    ids = set()
    for found in decoded_episodes(item, form, LIMITS, TIME):
        record = found.record
        assert is_ulid(record.episode_id)
        assert record.episode_id not in ids
        ids.add(record.episode_id)
        data = encode(record)
        assert len(data) <= MAX_GROWTH * (len(item.data) + 100), len(data)
        stored = msgspec.json.decode(data, type=EpisodeRecord)
        assert stored.episode_id == record.episode_id
    assert len(ids) <= LIMITS.branches


def messages_of(transcript: Transcript) -> list[Message]:
    return [*(message for step in transcript.steps for message in step.chats[0]), *transcript.received]
