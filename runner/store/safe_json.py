"""JSON encoding of arbitrary values: data of agents and environments can never prevent saving an episode."""

from __future__ import annotations

import math
import sys
from datetime import datetime
from typing import Any

import msgspec

from runner.util.safe_values import escape_surrogates, safe_str

MAX_DEPTH = 64
"""Maximum levels of nesting in a repaired value."""


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
            return {name: _repair(item, depth - 1) for name, item in _set_fields(value)}
        case dict():
            return {_key(key): _repair(item, depth - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_repair(item, depth - 1) for item in value]
    return _foreign_value(value)


def _set_fields(value: msgspec.Struct) -> list[tuple[str, object]]:
    fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
    return [(name, item) for name, item in fields if item is not msgspec.UNSET]


def _key(key: object) -> str:
    return escape_surrogates(key) if isinstance(key, str) else str(_foreign_value(key))


_ENCODER = msgspec.json.Encoder(enc_hook=_foreign_value)
