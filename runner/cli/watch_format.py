"""Messages of a bus as lines of text or JSON, sanitized for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from runner.events.codec import DurableRow, LiveRow, RawRow, decode_item
from runner.events.live import LiveBatch, LiveItem
from runner.subscribe.messages import BusMessage
from runner.util.display_text import SecretMasker, one_line

MAX_LINE = 600
MAX_VALUE = 120
MAX_CLOCK_SKEW_S = 2.0
"""Seconds between the clocks of sender and receiver above which the difference is printed."""


def plain_lines(message: BusMessage, mask: SecretMasker) -> Iterator[str]:
    at = message.time.astimezone().strftime("%H:%M:%S") if message.time else "-"
    position = "-" if message.sequence is None else f"#{message.sequence}"
    for kind, fields in _contents(message):
        parts = (
            f"{name}={_format_value(value)}"
            for name, value in {**fields, **_clock(message)}.items()
            if value is not None
        )
        yield one_line(mask(" ".join([at, position, kind, *parts])), MAX_LINE)


def json_lines(message: BusMessage, mask: SecretMasker) -> Iterator[str]:
    document: dict[str, Any] = {
        "subject": message.subject,
        "stream": message.stream,
        "sequence": message.sequence,
        "time": message.time,
        "headers": message.headers,
        **_document(message),
    }
    plain = msgspec.to_builtins(document)
    text = json.dumps(plain)
    if mask.may_change(text):
        text = json.dumps(_mask_strings(plain, mask))
    yield text.replace("\x7f", "\\u007f")


def _mask_strings(value: Any, mask: SecretMasker) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value with secrets masked in all its strings; masking the encoded text could break the JSON."""
    match value:
        case str():
            return mask(value)
        case dict():
            return {name: _mask_strings(item, mask) for name, item in value.items()}
        case list():
            return [_mask_strings(item, mask) for item in value]
    return value


def _document(message: BusMessage) -> dict[str, Any]:
    match message.decoded:
        case DurableRow() as row:
            return {"row": "event", "id": row.id, "type": row.type, "data": row.event}
        case LiveRow() as row:
            items, unusable = _read(row)
            batch = LiveBatch(node=row.batch.node, boot=row.batch.boot, dropped=row.batch.dropped, items=items)
            return {"row": "live", "data": batch, "raw": [_raw(raw) for raw in unusable]}
        case RawRow() as row:
            return {"row": "raw", **_raw(row)}


def _read(row: LiveRow) -> tuple[list[LiveItem], list[RawRow]]:
    items = [decode_item(item) for item in row.batch.items]
    unusable = [item for item in items if isinstance(item, RawRow)]
    return [item for item in items if not isinstance(item, RawRow)], [*row.raw, *unusable]


def _raw(row: RawRow) -> dict[str, Any]:
    return {"reason": row.reason, "size": row.size, "payload": row.payload.decode("utf-8", "backslashreplace")}


def _contents(message: BusMessage) -> Iterator[tuple[str, Mapping[str, Any]]]:
    match message.decoded:
        case DurableRow() as row:
            yield row.type, msgspec.to_builtins(row.event)
        case LiveRow() as row:
            items, unusable = _read(row)
            for item in items:
                fields = msgspec.to_builtins(item)
                yield f"{row.batch.node} {fields.pop('kind')}", fields
            for raw in unusable:
                yield f"{row.batch.node} ?", _raw(raw)
        case RawRow() as row:
            yield message.subject, _raw(row)


def _clock(message: BusMessage) -> dict[str, str]:
    ahead_s = message.ahead_s or 0.0
    if abs(ahead_s) <= MAX_CLOCK_SKEW_S:
        return {}
    return {"clock" if ahead_s > 0 else "late": f"{abs(ahead_s):.0f}s"}


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
