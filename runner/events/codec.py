"""Encode and decode bus messages; received bytes are untrusted.

Durable events are CloudEvents 1.0 in binary content mode (NATS protocol binding): the payload is the event's data and
the CloudEvents attributes are ``ce-`` headers. ``decode`` never raises: a message that it cannot decode is a ``RawRow``
with the reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NoReturn, TypeAlias

import msgspec

from runner.events import subjects
from runner.events.durable import DURABLE_TYPES, BatchCompleted, DurableEvent, EpisodeCompleted
from runner.events.live import LazyBatch, LazyItem, LazySpan, LazyTimestep, LiveBatch, LiveItem
from runner.events.subjects import DurableNames
from runner.util.display_text import one_line

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_RAW_BYTES: Final = 64 * 1024
"""Maximum number of bytes of an undecodable message that are kept for display."""
MAX_RAW_ITEMS: Final = 1_000
"""Maximum undecodable items reported per message; decoding of the message then stops, which limits its duration."""
MAX_ID: Final = 256
"""Maximum length of an event id in characters; a longer id is ignored."""
ID_HEADERS: Final = ("ce-id", "Nats-Msg-Id")
Headers: TypeAlias = Mapping[str, str]

_LIVE_SUBJECT = re.compile(rf"agentgym\.live\.(?:{'|'.join(subjects.LIVE_CHANNELS)})\.v1\.[^.]+")
_ORIGINAL_NAMES = {"reward": "score", "duration_s": "duration_sec"}
_VERSION = re.compile(r"\.v\d+(?=\.|\Z)")
encode: Final[Callable[[DurableEvent | LiveBatch], bytes]] = msgspec.json.Encoder().encode


class UndecodableMessage(ValueError):
    published_error_type = "Unusable"


def check_limits(payload: bytes) -> None:
    check_bytes(payload)
    check_depth(payload)


def check_bytes(payload: bytes) -> None:
    if len(payload) > MAX_BYTES:
        raise UndecodableMessage(f"larger than {MAX_BYTES} bytes")
    if not payload.isascii():
        str(payload, "utf-8")


def check_depth(payload: bytes) -> None:
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and _is_nested_deeper(payload, MAX_DEPTH):
        raise UndecodableMessage(f"nested deeper than {MAX_DEPTH}")


def check_fields(payload: bytes) -> None:
    """Raise ``ValueError`` when an object repeats a field, because JSON readers disagree on which value counts."""
    _UNIQUE_FIELDS.decode(str(payload, "utf-8"))


def _is_nested_deeper(payload: bytes, limit: int) -> bool:
    """Whether brackets nest deeper than ``limit``: removes the innermost pairs once per level."""
    plain = _ESCAPE.sub(b"", payload) if b"\\" in payload else payload
    marks = plain.translate(None, _NOT_STRUCTURAL)
    marks = marks.replace(b'""', b"")  # drops strings without brackets, and joins adjacent strings
    brackets = b"".join(marks.split(b'"')[::2]).translate(_AS_SQUARE)
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _reject_duplicate_fields(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise UndecodableMessage("duplicate field")


def _reject_constant(name: str) -> NoReturn:
    raise UndecodableMessage(f"{name} is not valid JSON")


_ESCAPE = re.compile(rb'\\["\\]')
_NOT_STRUCTURAL = bytes(set(range(256)) - set(b'[]{}"'))
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_UNIQUE_FIELDS = json.JSONDecoder(object_pairs_hook=_reject_duplicate_fields, parse_constant=_reject_constant)


class DurableRow(msgspec.Struct, frozen=True, kw_only=True):
    """The ``id`` is "" when the message has none and none can be derived from the payload."""

    event: DurableEvent
    id: str
    type: str


class RawRow(msgspec.Struct, frozen=True, kw_only=True):
    """Undecodable message or live item: the reason, its first bytes, and its full size in bytes."""

    reason: str
    payload: bytes
    size: int


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Message of a live subject; ``raw`` has its undecodable items, such as items of a newer version."""

    batch: LazyBatch
    raw: tuple[RawRow, ...] = ()


Decoded: TypeAlias = DurableRow | LiveRow | RawRow


def raw_row(reason: str, payload: bytes) -> RawRow:
    """Keep at most ``MAX_RAW_BYTES`` of the payload."""
    return RawRow(reason=reason, payload=payload[:MAX_RAW_BYTES], size=len(payload))


class _Envelope(msgspec.Struct, kw_only=True):
    """``LiveBatch`` whose items are undecoded JSON."""

    node: str
    boot: str
    dropped: int
    items: list[msgspec.Raw]


def headers_for(event_type: str, event_id: str, source: str, time: datetime) -> dict[str, str]:
    """Return the CloudEvents 1.0 headers of a durable event, plus ``Nats-Msg-Id`` for JetStream's deduplication.

    ``event_type`` is canonical, even if the profile publishes it under another subject. The id is the same each time
    the event is sent; ``time`` must have a time zone.
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
    """Return the event id in the headers of a message, "" when there is no valid id."""
    for name in ID_HEADERS if headers else ():
        if (value := _header(headers, name)) and len(value) <= MAX_ID:
            return value
    return ""


def decode(subject: str, headers: Headers | None, payload: bytes, names: DurableNames) -> Decoded:
    """Decode any message; the event type in its headers takes precedence over its subject."""
    try:
        check_bytes(payload)
        kind = _message_kind(subject, _header(headers, "ce-type"), names)
        return _decode_live(payload) if kind == "live" else _decode_durable(kind, headers, payload)
    except (ValueError, RecursionError) as exc:  # msgspec's and json's errors are ValueErrors
        return raw_row(_failure_reason(exc), payload)


def decode_item(item: LazyItem) -> LiveItem | RawRow:
    """Decode the raw JSON fields of a live item; returns a ``RawRow`` when they do not match the schema."""
    if not isinstance(item, LazyTimestep | LazySpan):
        return item
    payload = msgspec.json.encode(item)
    try:
        return _ITEMS.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as exc:
        return raw_row(_failure_reason(exc), payload)


def _header(headers: Headers | None, name: str) -> str:
    if not headers:
        return ""
    if (value := headers.get(name)) is None:  # header names are case-insensitive
        value = next((other for key, other in headers.items() if key.lower() == name.lower()), "")
    return value.strip()


def _message_kind(subject: str, event_type: str, names: DurableNames) -> str:
    if event_type in DURABLE_TYPES:
        return event_type
    if _VERSION.sub(".v1", event_type) in DURABLE_TYPES:
        raise UndecodableMessage("unknown version")
    if _LIVE_SUBJECT.fullmatch(subject):
        return "live"
    if canonical := names.type_of(subject):
        return canonical
    as_v1 = _VERSION.sub(".v1", subject)
    raise UndecodableMessage(
        "unknown version" if _LIVE_SUBJECT.fullmatch(as_v1) or names.type_of(as_v1) else "unknown subject"
    )


def _decode_durable(event_type: str, headers: Headers | None, payload: bytes) -> DurableRow:
    check_depth(payload)
    check_fields(payload)
    try:
        event = _DURABLE[event_type].decode(payload)
    except msgspec.ValidationError:
        # Another field runner may write rounds as 3.0 and success as 1. The original one gives two fields of an episode
        # other names, and the episode no id.
        fields = msgspec.json.decode(payload)
        if event_type == subjects.EPISODE_COMPLETED and isinstance(fields, dict):
            renamed = {ours: fields[name] for ours, name in _ORIGINAL_NAMES.items() if name in fields}
            fields = {**renamed, **fields, "episode_id": "" if (known := fields.get("episode_id")) is None else known}
        event = msgspec.convert(fields, DURABLE_TYPES[event_type], strict=False)
        if not all(math.isfinite(value) for value in msgspec.structs.astuple(event) if isinstance(value, float)):
            raise UndecodableMessage("NaN and infinity are not valid") from None  # "nan" is a number here
    return DurableRow(event=event, id=message_id(headers) or derived_id(event), type=event_type)


def derived_id(event: DurableEvent) -> str:
    """Return the id of an event that follows from its content; "" if none does."""
    match event:
        case EpisodeCompleted(episode_id=episode_id) if episode_id:
            return f"episode:{episode_id}"
        case BatchCompleted():
            return f"batch:{event.batch_id}"
    return ""


def _decode_live(payload: bytes) -> LiveRow:
    try:
        batch = _BATCHES.decode(payload)
    except msgspec.ValidationError:
        check_depth(payload)
        return _decode_items_separately(payload)
    if LazyTimestep in set(map(type, batch.items)):  # only timesteps contain nested JSON
        for item in batch.items:
            if isinstance(item, LazyTimestep):
                for value in (item.chats, item.observation, item.reset_observation, item.world, item.reset_world):
                    check_depth(bytes(value))
    return LiveRow(batch=batch)


def _decode_items_separately(payload: bytes) -> LiveRow:
    """Decode live items one by one; stop after ``MAX_RAW_ITEMS`` undecodable items, which are returned raw."""
    envelope = _ENVELOPES.decode(payload)
    items: list[LazyItem] = []
    raw: list[RawRow] = []
    for part in envelope.items:
        try:
            items.append(_LAZY_ITEMS.decode(part))
        except msgspec.ValidationError as exc:
            raw.append(raw_row(_failure_reason(exc), bytes(part)))
            if len(raw) == MAX_RAW_ITEMS:
                break
    batch = LazyBatch(node=envelope.node, boot=envelope.boot, dropped=envelope.dropped, items=items)
    return LiveRow(batch=batch, raw=tuple(raw))


def _failure_reason(exc: Exception) -> str:
    match exc:
        case RecursionError():
            return f"nested deeper than {MAX_DEPTH}"
        case UnicodeDecodeError():
            return "not UTF-8"
        case json.JSONDecodeError():
            return "not JSON"
    return one_line(str(exc))


_DURABLE = {event_type: msgspec.json.Decoder(kind) for event_type, kind in DURABLE_TYPES.items()}
_BATCHES, _ENVELOPES = msgspec.json.Decoder(LazyBatch), msgspec.json.Decoder(_Envelope)
_LAZY_ITEMS: msgspec.json.Decoder[LazyItem] = msgspec.json.Decoder(LazyItem)
_ITEMS: msgspec.json.Decoder[LiveItem] = msgspec.json.Decoder(LiveItem)
