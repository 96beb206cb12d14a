"""Reading JSON of which nothing is certain: what has another shape than expected is taken as not there."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from runner.util.safe_values import escape_surrogates

_MAX_COUNT = 2**53


def decode_json(data: bytes) -> object:
    """A JSON value, or None where there is none; lone surrogates and bytes that are no UTF-8 are tolerated."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def as_dict(value: object) -> dict[str, Any]:
    """The mapping itself, or an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The list itself, or an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The text, encodable as UTF-8, or an empty one."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else escape_surrogates(value)


def as_count(value: object) -> int:
    """A number of tokens, 0 where it is none."""
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0


def content_text(value: object) -> str:
    """A message's content: a text, or parts of which those with a text count."""
    if isinstance(value, list):
        return "".join(as_text(as_dict(part).get("text")) for part in value)
    return as_text(value)
