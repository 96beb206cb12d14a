"""Messages of the bus to and from data: CloudEvents 1.0 in binary mode, so that the payload stays plain for others.

What is read is hostile until it has been decoded. ``decode`` never raises: what it cannot decode becomes a raw row
with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from runner.events import subjects
from runner.events.decoded import Decoded, DurableRow, ForeignRow, LiveRow, RawRow, raw_row
from runner.events.durable import DURABLE_TYPES, BatchCompleted, DurableEvent, EpisodeCompleted, ForeignEpisode
from runner.events.limits import MAX_BYTES, MAX_DEPTH, Unusable, check_bytes, check_depth, check_fields
from runner.events.live import HeardBatch, HeardItem, HeardSpan, HeardTimestep, LiveBatch, LiveItem
from runner.util.text import one_line

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Decoded",
    "DurableNames",
    "DurableRow",
    "ForeignRow",
    "Headers",
    "LiveRow",
    "RawRow",
    "decode",
    "encode",
    "headers_for",
    "is_live",
    "message_id",
    "read",
]

MAX_RAW: Final = 1_000
"""Items of a message that do not decode; each takes some microseconds."""

MAX_ID: Final = 256
"""Characters of an event's id; what is longer does not count as one."""

ID_HEADERS: Final = ("ce-id", "Nats-Msg-Id")
Headers: TypeAlias = Mapping[str, str]


class DurableNames(msgspec.Struct, frozen=True, kw_only=True):
    """The subjects that a profile gives the durable events; the defaults are the canonical ones."""

    episode_completed: str = subjects.EPISODE_COMPLETED
    eval_batch: str = subjects.BATCH_COMPLETED
    field_status: str = subjects.FIELD_STATUS

    def all(self) -> tuple[str, str, str]:
        """The three subjects, in the order of ``subjects.DURABLE``."""
        return (self.episode_completed, self.eval_batch, self.field_status)

    def subject_of(self, event_type: str) -> str:
        """Where events of a canonical type are published."""
        return self.all()[subjects.DURABLE.index(event_type)]

    def type_of(self, subject: str) -> str | None:
        """The canonical type of the events on a subject, None where it is not a durable one."""
        for named, canonical in zip((*self.all(), *subjects.DURABLE), (*subjects.DURABLE,) * 2, strict=True):
            if named == subject:
                return canonical
        return None


class _Envelope(msgspec.Struct, kw_only=True):
    """A ``LiveBatch`` whose items are still JSON."""

    node: str
    boot: str
    dropped: int
    items: list[msgspec.Raw]


class _NoId(msgspec.Struct):
    episode_id: Literal[None] | msgspec.UnsetType = msgspec.UNSET


def encode(message: DurableEvent | LiveBatch) -> bytes:
    """The payload of a message."""
    return _ENCODER.encode(message)


def headers_for(event_type: str, event_id: str, source: str, time: datetime) -> dict[str, str]:
    """The headers of a message: CloudEvents 1.0 in binary mode, and the id again for the broker's own use.

    Args:
        event_type: the canonical type, also where the subject has another name.
        event_id: the same whenever the same event is sent again.
        source: the node.
        time: when it happened, with a time zone.
    """
    return {
        "ce-specversion": "1.0",
        "ce-type": event_type,
        "ce-id": event_id,
        "ce-source": source,
        "ce-time": time.isoformat(),
        "content-type": "application/json",
        "Nats-Msg-Id": event_id,
    }


def message_id(headers: Headers | None) -> str:
    """The id a message carries, "" when it has none that can be used."""
    for name in ID_HEADERS if headers else ():
        if (found := _header(headers, name)) and len(found) <= MAX_ID:
            return found
    return ""


def is_live(subject: str, headers: Headers | None, names: DurableNames) -> bool:
    """Whether a message is to be read as live items."""
    try:
        return _kind(subject, _header(headers, "ce-type"), names) == "live"
    except Unusable:
        return False


def decode(subject: str, headers: Headers | None, payload: bytes, names: DurableNames) -> Decoded:
    """What a message says, whatever its bytes are; a type in the headers counts more than the subject."""
    try:
        check_bytes(payload)
        kind = _kind(subject, _header(headers, "ce-type"), names)
        return _live(payload) if kind == "live" else _durable(kind, headers, payload)
    except (ValueError, RecursionError) as exc:  # msgspec's and json's errors are ValueErrors
        return raw_row(_reason(exc), payload)


def read(item: HeardItem) -> LiveItem | RawRow:
    """What a live item says, also where it holds JSON as it came; that may be something else than it should."""
    if not isinstance(item, HeardTimestep | HeardSpan):
        return item
    payload = _ENCODER.encode(item)
    try:
        return _WHOLE.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as exc:
        return raw_row(_reason(exc), payload)


def _header(headers: Headers | None, name: str) -> str:
    """Header names come in any case."""
    if not headers:
        return ""
    if (found := headers.get(name)) is None:
        found = next((value for key, value in headers.items() if key.lower() == name.lower()), "")
    return found.strip()


def _kind(subject: str, event_type: str, names: DurableNames) -> str:
    """The canonical type of a durable event, or ``live``."""
    if event_type in DURABLE_TYPES:
        return event_type
    if _VERSION.sub(".v1", event_type) in DURABLE_TYPES:
        raise Unusable("unknown version")
    if _LIVE_SUBJECT.fullmatch(subject):
        return "live"
    if known := names.type_of(subject):
        return known
    first = _VERSION.sub(".v1", subject)
    raise Unusable("unknown version" if _LIVE_SUBJECT.fullmatch(first) or names.type_of(first) else "unknown subject")


def _durable(event_type: str, headers: Headers | None, payload: bytes) -> Decoded:
    check_depth(payload)
    check_fields(payload)
    try:
        event = _DECODERS[event_type].decode(payload)
    except msgspec.ValidationError:
        if event_type != subjects.EPISODE_COMPLETED or not _without_id(payload):
            raise
        return ForeignRow(event=_FOREIGN.decode(payload))
    return DurableRow(event=event, id=message_id(headers) or _derived_id(event), type=event_type)


def _derived_id(event: DurableEvent) -> str:
    match event:
        case EpisodeCompleted():
            return f"episode:{event.episode_id}"
        case BatchCompleted():
            return f"batch:{event.batch_id}"
    return ""


def _without_id(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload, type=_NoId)
    except msgspec.ValidationError:
        return False
    return True


def _live(payload: bytes) -> LiveRow:
    try:
        batch = _LIVE.decode(payload)
    except msgspec.ValidationError:
        check_depth(payload)
        return _live_in_parts(payload)
    if HeardTimestep in set(map(type, batch.items)):  # nothing else has room for anything that is nested
        _check_steps(batch)
    return LiveRow(batch=batch)


def _check_steps(batch: HeardBatch) -> None:
    for item in batch.items:
        if isinstance(item, HeardTimestep):
            for said in (item.chats, item.observation, item.reset_observation):
                check_depth(bytes(said))


def _live_in_parts(payload: bytes) -> LiveRow:
    """The items that do decode, and the others raw; after too many of those the rest is not looked at."""
    envelope = _ENVELOPE.decode(payload)
    items: list[HeardItem] = []
    raw: list[RawRow] = []
    for part in envelope.items:
        try:
            items.append(_ITEM.decode(part))
        except msgspec.ValidationError as exc:
            raw.append(raw_row(_reason(exc), bytes(part)))
            if len(raw) == MAX_RAW:
                break
    batch = HeardBatch(node=envelope.node, boot=envelope.boot, dropped=envelope.dropped, items=items)
    return LiveRow(batch=batch, raw=tuple(raw))


def _reason(exc: Exception) -> str:
    match exc:
        case RecursionError():
            return f"nested deeper than {MAX_DEPTH}"
        case UnicodeDecodeError():
            return "not UTF-8"
        case json.JSONDecodeError():
            return "not JSON"
    return one_line(str(exc))


_LIVE_SUBJECT = re.compile(rf"agentgym\.live\.(?:{'|'.join(subjects.LIVE_CHANNELS)})\.v1\.[^.]+")
_VERSION = re.compile(r"\.v\d+(?=\.|\Z)")
_ENCODER = msgspec.json.Encoder()
_DECODERS = {name: msgspec.json.Decoder(event) for name, event in DURABLE_TYPES.items()}
_FOREIGN = msgspec.json.Decoder(ForeignEpisode, strict=False)  # others write 3.0 rounds, and successes as numbers
_LIVE = msgspec.json.Decoder(HeardBatch)
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ITEM: msgspec.json.Decoder[HeardItem] = msgspec.json.Decoder(HeardItem)
_WHOLE: msgspec.json.Decoder[LiveItem] = msgspec.json.Decoder(LiveItem)
