"""Lenient JSON accessors: a wrong type reads as missing."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from runner.util.safe_values import escape_surrogates

_MAX_COUNT = 2**53


def decode_json(data: bytes) -> object:
    """Return the decoded JSON value, or None if invalid; tolerate lone surrogates and invalid UTF-8."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def as_dict(value: object) -> dict[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return the value as valid UTF-8 text if it is a string, else an empty one."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else escape_surrogates(value)


def as_count(value: object) -> int:
    """Return the value if it is a valid token count, else 0."""
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0


def content_text(value: object) -> str:
    """Return a message's content as text: a string, or the joined texts of its parts."""
    if isinstance(value, list):
        return "".join(as_text(as_dict(part).get("text")) for part in value)
    return as_text(value)
