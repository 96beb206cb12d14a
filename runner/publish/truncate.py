"""Foreign messages as JSON of bounded size.

What is short as JSON has no long text in it and goes as it is, so that is tried first.
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
"""Levels of arrays and objects that a message keeps; a whole payload may have 64."""

MAX_VALUES = 20_000
"""Values that a message keeps."""

FULL_LENGTH = "full_length"

_TEXTS = frozenset((str, NoneType))
_ENCODER = msgspec.json.Encoder()


class SizeBudget:
    """How much of a timestep's messages still fits.

    Attributes:
        left_out: the messages that did not.
    """

    def __init__(self, size: int) -> None:
        """With room for ``size`` bytes."""
        self._left = size
        self.left_out = 0

    def take(self, encoded: msgspec.Raw) -> bool:
        """Whether the value fits; if so its room is gone."""
        if len(encoded) > self._left:
            return False
        self._left -= len(encoded)
        return True

    def newest(self, messages: Iterable[object]) -> list[Any]:
        """The last messages that fit, in their order, as JSON."""
        kept: list[msgspec.Raw] = []
        waiting = list(messages)
        while waiting:
            message = message_json(waiting[-1])
            if not self.take(message):
                break
            kept.append(message)
            waiting.pop()
        self.left_out += len(waiting)
        return kept[::-1]


def message_json(message: object) -> msgspec.Raw:
    """A message with bounded texts; what is none becomes one."""
    if type(message) is dict and (short := short_json(chain(message, message.values()), message)) is not None:
        return short
    plain = _Copy().of(message, MAX_NESTING)
    return as_json(plain if isinstance(plain, dict) else {"role": "unknown", "content": plain})


def short_json(parts: Iterable[object], whole: object) -> msgspec.Raw | None:
    """``whole`` as JSON if its ``parts`` are texts of which none has to be cut or mended."""
    texts: list[Any] = list(parts)
    if not _TEXTS.issuperset(map(type, texts)) or sum(map(len, filter(None, texts))) > MAX_TEXT:
        return None
    try:
        encoded = _ENCODER.encode(whole)
    except (UnicodeEncodeError, TypeError):  # lone surrogates, None as a key
        return None
    return msgspec.Raw(encoded) if len(encoded) <= MAX_TEXT else None


def as_json(value: object) -> msgspec.Raw:
    """What JSON knows, as it is."""
    return msgspec.Raw(_ENCODER.encode(value))


class _Copy:
    """Foreign data as JSON with bounded texts; NaN and infinity are null, what JSON does not know becomes text."""

    def __init__(self) -> None:
        self._left = MAX_VALUES  # a list that holds itself twice would never end by its depth

    def of(self, value: object, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        self._left -= 1
        if depth == 0 or self._left < 0:
            return "…"
        match value:
            case None | bool():
                return value
            case str():
                return cut(value)
            case float():
                return float(value) if math.isfinite(value) else None
            case int():
                return int(value) if -(2**63) <= value < 2**63 else hex(value)
            case dict():
                return self._object(value, depth)
            case list() | tuple():
                return [self.of(item, depth - 1) for item in islice(value, MAX_VALUES)]
        return cut(safe_str(value, f"<{type(value).__name__}>"))

    def _object(self, value: dict[Any, object], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for key, item in islice(value.items(), MAX_VALUES):
            name = cut(key if isinstance(key, str) else safe_str(key, "?"))
            result[name] = self.of(item, depth - 1)
            if isinstance(item, str) and too_long(item):
                lengths[name] = len(item)
        return {**result, FULL_LENGTH: lengths} if lengths else result


def cut(text: str) -> str:
    """The text, or its beginning where it is long; lone surrogates become visible."""
    if len(text) <= MAX_TEXT and text.isascii():  # nearly all are
        return text
    return truncate_text(escape_surrogates(text[: MAX_TEXT + 1]), MAX_TEXT)


def too_long(text: str) -> bool:
    """Whether ``cut`` would leave something out."""
    if text.isascii():
        return len(text) > MAX_TEXT
    return len(text) > MAX_TEXT or len(escape_surrogates(text).encode()) > MAX_TEXT
