"""Lenient access to decoded JSON: a value of the wrong type counts as missing."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from runner.util.safe_values import escape_surrogates

_MAX_COUNT = 2**53
_MAX_SECONDS = 86_400.0


def decode_json(data: bytes) -> object:
    """Return the decoded JSON value, or None if it is invalid; accept lone surrogates and invalid UTF-8."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def encode_json(value: object) -> bytes:
    """Return the value as JSON; lone surrogates become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # lone surrogates in an environment's text
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return text that can be encoded in UTF-8; empty if the value is no string."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else escape_surrogates(value)


def as_count(value: object) -> int:
    """Return 0 unless the value is a valid number of tokens."""
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0


def as_seconds(value: object, unit_s: float) -> float | None:
    """Return a duration in units of ``unit_s`` seconds as seconds; None unless it is a number from 0 to a day."""
    if type(value) not in (int, float):
        return None
    seconds = min(cast("float", value), _MAX_COUNT) * unit_s
    return seconds if 0.0 <= seconds <= _MAX_SECONDS else None


def content_text(value: object) -> str:
    if isinstance(value, list):
        return "".join(as_text(as_dict(part).get("text")) for part in value)
    return as_text(value)
