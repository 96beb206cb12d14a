"""Limits on messages from outside: what breaks them is not decoded."""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

MAX_BYTES: Final = 1 << 20
"""Bytes of a payload."""

MAX_DEPTH: Final = 64
"""Levels of arrays and objects."""


class Unusable(ValueError):
    """Why a message is not decoded."""


def check_limits(payload: bytes) -> None:
    """Raise a ``ValueError`` for a payload beyond the limits or not in UTF-8."""
    check_bytes(payload)
    check_depth(payload)


def check_bytes(payload: bytes) -> None:
    """Raise a ``ValueError`` for a payload that is too large or not in UTF-8."""
    if len(payload) > MAX_BYTES:
        raise Unusable(f"larger than {MAX_BYTES} bytes")
    if not payload.isascii():
        str(payload, "utf-8")


def check_depth(payload: bytes) -> None:
    """Raise a ``ValueError`` for a payload of UTF-8 in which arrays and objects nest too deep."""
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and _deeper_than(payload, MAX_DEPTH):
        raise Unusable(f"nested deeper than {MAX_DEPTH}")


def check_fields(payload: bytes) -> None:
    """Raise a ``ValueError`` for a payload in which an object has a field twice: readers would disagree on it."""
    _UNIQUE_FIELDS.decode(str(payload, "utf-8"))


def _deeper_than(payload: bytes, limit: int) -> bool:
    """Whether arrays and objects nest deeper, by taking the innermost ones away level by level."""
    plain = _ESCAPED.sub(b"", payload) if b"\\" in payload else payload
    marks = plain.translate(None, _NO_MARKS)
    marks = marks.replace(b'""', b"")  # texts without brackets, and where two texts meet: what is in one stays in one
    brackets = b"".join(marks.split(b'"')[::2]).translate(_AS_SQUARE)
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise Unusable("a field comes twice")


def _not_finite(name: str) -> NoReturn:
    raise Unusable(f"{name} is not a number of JSON")


_ESCAPED = re.compile(rb'\\["\\]')
_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_UNIQUE_FIELDS = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_not_finite)
