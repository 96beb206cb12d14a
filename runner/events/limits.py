"""Limits on received payloads: size, nesting depth, UTF-8, and unique finite JSON fields."""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

MAX_BYTES: Final = 1 << 20
"""Maximum size of a payload in bytes."""

MAX_DEPTH: Final = 64
"""Maximum nesting of arrays and objects."""


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
