"""What a message of the bus says once it is decoded: a closed union of typed rows."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from runner.events.durable import DurableEvent, ForeignEpisode
from runner.events.live import HeardBatch

RAW_KEPT: Final = 64 * 1024
"""Bytes of an undecoded message that are kept to be looked at."""


class DurableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A durable event; ``id`` is "" when the message has none and none can be derived."""

    event: DurableEvent
    id: str
    type: str


class ForeignRow(msgspec.Struct, frozen=True, kw_only=True):
    """An episode of another field runner."""

    event: ForeignEpisode


class RawRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or a live item of one, that does not decode: why, its first bytes, and how many it has."""

    reason: str
    payload: bytes
    size: int


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a live subject; items that do not decode, such as those of a newer version, are in ``raw``."""

    batch: HeardBatch
    raw: tuple[RawRow, ...] = ()


Decoded: TypeAlias = DurableRow | ForeignRow | LiveRow | RawRow


def raw_row(reason: str, payload: bytes) -> RawRow:
    """A row for what does not decode."""
    return RawRow(reason=reason, payload=payload[:RAW_KEPT], size=len(payload))
