"""Outside values made safe for every collector: bounded, typed, and encodable as UTF-8."""

from __future__ import annotations

from typing import Any, TypeAlias

from runner.errors import boundary

Value: TypeAlias = str | int | float | bool | None

MAX_VALUE_BYTES = 1024
"""Names and attribute texts are cut to this many bytes of UTF-8."""

_INT64 = 2**63
_CUT = "…"
_ALWAYS_PLAIN = frozenset({float, bool, type(None)})


def plain(value: Any) -> Value:  # noqa: ANN401 - told apart by exact type, for speed
    """A value that JSON and protobuf can hold: 64-bit numbers, bool, None, and all else as text of at most 1 KiB."""
    kind = type(value)
    if (
        kind in _ALWAYS_PLAIN
        or (kind is str and len(value) <= MAX_VALUE_BYTES and value.isascii())
        or (kind is int and -_INT64 <= value < _INT64)
    ):
        return value  # type: ignore[no-any-return]
    return _converted(value)


def plain_attributes(attributes: dict[str, Any]) -> dict[str, Value]:
    """Attributes with plain keys and values; takes the dict over."""
    keys = "".join(attributes)  # one look at all of them: they are nearly always short and ASCII
    if len(keys) > MAX_VALUE_BYTES or not keys.isascii():
        attributes = {plain_text(key): value for key, value in attributes.items()}
    for key, value in attributes.items():
        attributes[key] = plain(value)
    return attributes


def plain_text(text: str) -> str:
    """A text cut to ``MAX_VALUE_BYTES``; lone surrogates, which UTF-8 cannot hold, become visible escapes."""
    if len(text) <= MAX_VALUE_BYTES and text.isascii():
        return text
    return cut_text(encodable(text[: MAX_VALUE_BYTES + 1]), MAX_VALUE_BYTES)


def encodable(text: str) -> str:
    """The text with lone surrogates as visible escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cut_text(text: str, limit: int, *, keep_end: bool = False) -> str:
    """At most ``limit`` bytes of an encodable text: its beginning, or its end, with an ellipsis where it was cut."""
    data = text.encode("utf-8")
    if len(data) <= limit:
        return text
    room = limit - len(_CUT.encode())
    if keep_end:
        return _CUT + data[-room:].decode("utf-8", "ignore")
    return data[:room].decode("utf-8", "ignore") + _CUT


def shown(value: object, fallback: str) -> str:
    """``str(value)`` as encodable text; ``fallback`` where somebody's ``__str__`` raises."""
    result = fallback

    def keep_fallback(exc: BaseException) -> None:
        """A text that cannot be made is no reason to fail."""

    with boundary(keep_fallback):
        result = encodable(str(value))
    return result


def _converted(value: object) -> Value:
    if isinstance(value, float):  # numpy's float64 is one; as text it would lose its type in the trace
        return float.__float__(value)
    return plain_text(shown(value, f"<{type(value).__name__}>"))
