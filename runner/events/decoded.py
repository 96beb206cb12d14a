"""Decoded bus messages: ``Decoded``, a closed union of row types.

``DurableRow`` and ``ForeignRow`` hold an event, ``LiveRow`` holds live items, ``RawRow`` holds an undecodable message.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from runner.events.durable import DurableEvent, ForeignEpisode
from runner.events.live import LazyBatch

MAX_RAW_BYTES: Final = 64 * 1024
"""Maximum number of bytes of an undecodable message that are kept for display."""


class DurableRow(msgspec.Struct, frozen=True, kw_only=True):
    """Durable event; ``id`` is "" when the message has no id and none can be derived from the payload."""

    event: DurableEvent
    id: str
    type: str


class ForeignRow(msgspec.Struct, frozen=True, kw_only=True):
    """Completed episode reported by another field runner."""

    event: ForeignEpisode


class RawRow(msgspec.Struct, frozen=True, kw_only=True):
    """Undecodable message or live item: the reason, its first bytes, and its full size in bytes."""

    reason: str
    payload: bytes
    size: int


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Message of a live subject; ``raw`` has its undecodable items, such as items of a newer version."""

    batch: LazyBatch
    raw: tuple[RawRow, ...] = ()


Decoded: TypeAlias = DurableRow | ForeignRow | LiveRow | RawRow


def raw_row(reason: str, payload: bytes) -> RawRow:
    """Return the row of an undecodable message; keeps at most ``MAX_RAW_BYTES`` of the payload."""
    return RawRow(reason=reason, payload=payload[:MAX_RAW_BYTES], size=len(payload))
