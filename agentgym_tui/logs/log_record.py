"""Finds time, kind and message of a log line, whatever program wrote the line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from runner.events.codec import check_limits

MAX_PARSED_BYTES: Final = 64 << 10
"""Largest line that is parsed as JSON, in bytes; a longer line counts as plain text."""

_TIME_FIELDS: Final = ("at", "time", "timestamp", "ts", "@timestamp", "datetime", "date", "started_at", "ended_at")
_KIND_FIELDS: Final = ("kind", "subject", "type", "event", "op", "level", "levelname", "severity")
"""Names of the JSON fields that may contain the kind of a record, the most informative first."""

_LEVEL_FIELDS: Final = ("levelname", "level", "severity", "lvl", "log.level")
_MESSAGE_FIELDS: Final = ("message", "msg", "event")
_LOGGER_FIELDS: Final = ("logger", "logger_name", "name", "target", "module")
"""Names of the JSON fields of a log record; ``event`` is a message only beside a level, as structlog writes it."""

_MAX_FIELDS: Final = 20
_MAX_FIELD_CHARS: Final = 80
_LEVEL: Final = re.compile(
    rb"[\])]?\s*[-|:]?\s*\[?(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?(?:\s*[-|:]\s+|\s+)",
    re.ASCII | re.I,
)
"""The level of a text line, after its time and before its message."""

_TIMESTAMP: Final = re.compile(
    rb"[\[(]?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_UNITS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e8, 1.0))
"""Units of numeric times: the smallest number in the unit and the units per second; smaller numbers are no times."""


class LogRecord(NamedTuple):
    """Time, kind and message of a log line; all texts are untrusted.

    Attributes:
        at: time with a zone; None if the line contains no time.
        kind: the level of a log record, or the kind of another record; "" where the line contains none.
        message: message of a log record; None for any other line, which is shown as it is.
        logger: name of the logger that wrote a log record; "" if it is not known.
        fields: other fields of a log record in JSON as ``name=value``; an object or list is shortened to its brackets.
    """

    at: datetime | None = None
    kind: str = ""
    message: str | None = None
    logger: str = ""
    fields: tuple[str, ...] = ()


EMPTY_RECORD: Final = LogRecord()


def parse_record(line: bytes) -> LogRecord:
    """Parse a line that is a JSON object or starts with a time; return an empty record for any other line.

    Args:
        line: first bytes of the line; more than ``MAX_PARSED_BYTES`` bytes are parsed as plain text, not as JSON.
    """
    if line[:1] != b"{" or len(line) > MAX_PARSED_BYTES:
        return _text_record(line)
    try:
        check_limits(line)
        fields = _OBJECT_DECODER.decode(line)
    except (ValueError, RecursionError):
        return EMPTY_RECORD
    times = (_parse_time(value) for value in _scalar_values(fields, _TIME_FIELDS))
    at = next(filter(None, times), None)
    level, message_field = _first_text(fields, _LEVEL_FIELDS), _message_field(fields)
    if message_field is None:
        return LogRecord(at, _first_text(fields, _KIND_FIELDS))
    shown = {message_field, *_TIME_FIELDS, *_LEVEL_FIELDS, *_LOGGER_FIELDS}
    others = [(name, raw) for name, raw in fields.items() if name not in shown][:_MAX_FIELDS]
    return LogRecord(
        at,
        level or _first_text(fields, _KIND_FIELDS),
        _first_text(fields, (message_field,)),
        _first_text(fields, _LOGGER_FIELDS),
        tuple(f"{name}={_field_text(raw)}"[:_MAX_FIELD_CHARS] for name, raw in others),
    )


def _text_record(line: bytes) -> LogRecord:
    at, match = _leading_time(line), _TIMESTAMP.match(line)
    level = _LEVEL.match(line, match.end()) if match is not None else None
    if at is None or level is None:
        return LogRecord(at)
    return LogRecord(at, level[1].decode(), line[level.end() :].decode("utf-8", "replace"))


def _message_field(fields: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the name of the field with the message of a log record; None if the record is none."""
    has_level = bool(_first_text(fields, _LEVEL_FIELDS))
    names = _MESSAGE_FIELDS if has_level else _MESSAGE_FIELDS[:-1]
    return next((name for name in names if _first_text(fields, (name,))), None)


def _first_text(fields: Mapping[str, msgspec.Raw], names: Iterable[str]) -> str:
    return next((value for value in _scalar_values(fields, names) if isinstance(value, str) and value), "")


def _field_text(raw: msgspec.Raw) -> str:
    brackets = {b"{": "{…}", b"[": "[…]"}.get(bytes(raw)[:1])
    return brackets or str(_decode_scalar(raw))


def _scalar_values(fields: Mapping[str, msgspec.Raw], names: Iterable[str]) -> Iterable[object]:
    for name in names:
        if (raw := fields.get(name)) is not None and bytes(raw)[:1] not in (b"{", b"["):
            yield _decode_scalar(raw)


def _decode_scalar(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except ValueError:  # JSON allows numbers of any size
        return None


def _parse_time(value: object) -> datetime | None:
    """Parse a time: a text, local time without a zone, or a number of seconds, ms, µs or ns since 1970; else None."""
    match value:
        case str():
            return _leading_time(value.encode("utf-8", "replace")) if len(value) <= 80 else None
        case int() | float() if not isinstance(value, bool):
            return _time_from_number(value)
    return None


def _time_from_number(value: float) -> datetime | None:
    for minimum, per_second in _EPOCH_UNITS:
        if value >= minimum:
            try:
                return _EPOCH + timedelta(seconds=value / per_second)
            except (OverflowError, ValueError):
                return None
    return None


def _leading_time(line: bytes) -> datetime | None:
    """Parse the time at the start of a line; None if the line starts with no valid time."""
    if (match := _TIMESTAMP.match(line)) is None:
        return None
    day, clock, fraction, zone = (group.decode() if group else "" for group in match.groups())
    try:
        at = datetime.fromisoformat(f"{day}T{clock}")
        at += timedelta(seconds=float(f"0.{fraction}")) if fraction else timedelta()
        return at.replace(tzinfo=UTC) if zone == "Z" else _apply_offset(at, zone)
    except (ValueError, OverflowError, OSError):
        return None


def _apply_offset(at: datetime, zone: str) -> datetime:
    return datetime.fromisoformat(f"{at.isoformat()}{zone}").astimezone(UTC)


_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
