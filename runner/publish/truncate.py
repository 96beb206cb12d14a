"""Encode untrusted messages as JSON of bounded size.

A message that is short as JSON has no long text, so it is first tried unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, islice
from types import NoneType
from typing import Any

import msgspec

from runner.events.live import MAX_TEXT
from runner.util.safe_values import escape_surrogates, safe_str, truncate_text

MAX_NESTING = 32
"""Maximum nesting levels kept of a message; a whole payload may have 64."""

MAX_VALUES = 20_000
"""Maximum number of values kept of a message."""

FULL_LENGTH = "full_length"

_TEXTS = frozenset((str, NoneType))
_ENCODER = msgspec.json.Encoder()


class SizeBudget:
    """Remaining bytes for the messages of a timestep; ``left_out`` messages did not fit."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.left_out = 0

    def reserve(self, encoded: msgspec.Raw) -> bool:
        """Return False when the bytes exceed the budget."""
        if len(encoded) > self._left:
            return False
        self._left -= len(encoded)
        return True

    def newest(self, messages: Iterable[object]) -> list[Any]:
        """Return the latest messages that fit in the budget, as JSON and in their original order."""
        fitting: list[msgspec.Raw] = []
        remaining = list(messages)
        while remaining:
            message = message_json(remaining[-1])
            if not self.reserve(message):
                break
            fitting.append(message)
            remaining.pop()
        self.left_out += len(remaining)
        return fitting[::-1]


def message_json(message: object) -> msgspec.Raw:
    """Return a message as JSON with truncated texts; wraps a value that is not an object in a message."""
    if type(message) is dict and (short := short_json(chain(message, message.values()), message)) is not None:
        return short
    plain = _Copy().copy(message, MAX_NESTING)
    return as_json(plain if isinstance(plain, dict) else {"role": "unknown", "content": plain})


def short_json(texts: Iterable[object], value: object) -> msgspec.Raw | None:
    """Return ``value`` as JSON if all its ``texts`` are short strings or None, else None."""
    parts: list[Any] = list(texts)
    if not _TEXTS.issuperset(map(type, parts)) or sum(map(len, filter(None, parts))) > MAX_TEXT:
        return None
    try:
        encoded = _ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError):  # lone surrogates, None as a key
        return None
    return msgspec.Raw(encoded) if len(encoded) <= MAX_TEXT else None


def as_json(value: object) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(value))


class _Copy:
    """Copies untrusted data as JSON values with truncated texts; NaN and infinity become null, other objects text."""

    def __init__(self) -> None:
        self._left = MAX_VALUES  # the depth limit alone does not stop a list that contains itself twice

    def copy(self, value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        self._left -= 1
        if depth == 0 or self._left < 0:
            return "…"
        match value:
            case None | bool():
                return value
            case str():
                return truncate(value)
            case float():
                return float(value) if math.isfinite(value) else None
            case int():
                return int(value) if -(2**63) <= value < 2**63 else hex(value)
            case dict():
                return self._object(value, depth)
            case list() | tuple():
                return [self.copy(item, depth - 1) for item in islice(value, MAX_VALUES)]
        return truncate(safe_str(value, f"<{type(value).__name__}>"))

    def _object(self, value: dict[Any, object], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for key, item in islice(value.items(), MAX_VALUES):
            name = truncate(key if isinstance(key, str) else safe_str(key, "?"))
            result[name] = self.copy(item, depth - 1)
            if isinstance(item, str) and is_too_long(item):
                lengths[name] = len(item)
        return {**result, FULL_LENGTH: lengths} if lengths else result


def truncate(text: str) -> str:
    """Truncate a text to ``MAX_TEXT`` bytes of UTF-8 and make lone surrogates visible."""
    if len(text) <= MAX_TEXT and text.isascii():  # the common case
        return text
    return truncate_text(escape_surrogates(text[: MAX_TEXT + 1]), MAX_TEXT)


def is_too_long(text: str) -> bool:
    if text.isascii():
        return len(text) > MAX_TEXT
    return len(text) > MAX_TEXT or len(escape_surrogates(text).encode()) > MAX_TEXT
