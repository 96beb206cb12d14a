"""Functions that make external values safe to store: of bounded size, of plain types, and encodable as UTF-8."""

from __future__ import annotations

import math
import sys
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from runner.errors import catch_foreign

PlainValue: TypeAlias = str | int | float | bool | None

MAX_VALUE_BYTES = 1024
"""Maximum size of a name or attribute text, in bytes of UTF-8."""
MAX_DEPTH = 64
"""Maximum levels of nesting in a repaired value."""

_INT64_LIMIT = 2**63
_ELLIPSIS = "…"
_ALWAYS_PLAIN = frozenset({float, bool, type(None)})


def plain_value(value: Any) -> PlainValue:  # noqa: ANN401 - dispatches on the exact type
    """Return a value that JSON and protobuf can hold.

    64-bit integers, floats, booleans and None are returned unchanged; every other value becomes text of at most 1 KiB.
    """
    kind = type(value)
    if kind in _ALWAYS_PLAIN or (kind is int and -_INT64_LIMIT <= value < _INT64_LIMIT):
        return value  # type: ignore[no-any-return]
    if isinstance(value, float):  # a subclass such as numpy's float64; as text it would lose its type in the trace
        return float.__float__(value)
    return plain_text(safe_str(value, f"<{kind.__name__}>"))


def plain_attributes(attributes: dict[str, Any]) -> dict[str, PlainValue]:
    return {plain_text(key): plain_value(value) for key, value in attributes.items()}


def plain_text(text: str) -> str:
    """Truncate a text to ``MAX_VALUE_BYTES``; lone surrogates, which UTF-8 cannot hold, become visible escapes."""
    if len(text) <= MAX_VALUE_BYTES and text.isascii():
        return text
    return truncate_text(escape_surrogates(text[: MAX_VALUE_BYTES + 1]), MAX_VALUE_BYTES)


def escape_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot hold, by visible escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def truncate_text(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Truncate a text without surrogates to ``limit`` bytes of UTF-8, with an ellipsis (included) at the cut.

    ``keep_end``: keep the end of the text instead of its beginning.
    """
    data = text.encode("utf-8")
    if len(data) <= limit:
        return text
    n_kept = limit - len(_ELLIPSIS.encode())
    if keep_end:
        return _ELLIPSIS + data[-n_kept:].decode("utf-8", "ignore")
    return data[:n_kept].decode("utf-8", "ignore") + _ELLIPSIS


def safe_str(value: object, fallback: str) -> str:
    """Return ``str(value)`` without lone surrogates, or ``fallback`` if ``__str__`` raises."""
    result = fallback
    with catch_foreign(lambda exc: None):
        result = escape_surrogates(str(value))
    return result


def encode(value: object) -> bytes:
    """Encode ``value`` as one line of JSON; never fails.

    Values that JSON cannot represent become visible text: arbitrary objects and keys, lone surrogates, too deep
    nesting. NaN and infinity become ``null``.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _ENCODER.encode(_repair(value, MAX_DEPTH))


def finite(value: float) -> float:
    """Return ``value``, with infinity replaced by the largest float and NaN by 0, because JSON has neither."""
    if math.isfinite(value):
        return value
    return 0.0 if math.isnan(value) else math.copysign(sys.float_info.max, value)


def _foreign_value(value: object) -> int | float | str:
    match value:  # subclasses of numbers, such as numpy's, become plain numbers
        case float():
            return float.__add__(value, 0.0)
        case int():
            return int.__add__(value, 0)
    return safe_str(value, f"<{type(value).__name__}>")


def _repair(value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON value
    if depth == 0:
        return "…"
    match value:
        case None | bool() | datetime() | msgspec.Raw():
            return value
        case str():
            return escape_surrogates(value)
        case int():
            return _foreign_value(value) if -(2**63) <= value < 2**64 else hex(value)
        case msgspec.Struct():
            fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return {name: _repair(item, depth - 1) for name, item in fields if item is not msgspec.UNSET}
        case dict():
            return {_key(key): _repair(item, depth - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_repair(item, depth - 1) for item in value]
    return _foreign_value(value)


def _key(key: object) -> str:
    return escape_surrogates(key) if isinstance(key, str) else str(_foreign_value(key))


_ENCODER = msgspec.json.Encoder(enc_hook=_foreign_value)
