"""Functions that make external values safe to store: of bounded size, of plain types, and encodable as UTF-8."""

from __future__ import annotations

from typing import Any, TypeAlias

from runner.errors import catch_foreign

PlainValue: TypeAlias = str | int | float | bool | None

MAX_VALUE_BYTES = 1024
"""Maximum size of a name or attribute text, in bytes of UTF-8."""

_INT64_LIMIT = 2**63
_ELLIPSIS = "…"
_ALWAYS_PLAIN = frozenset({float, bool, type(None)})


def plain_value(value: Any) -> PlainValue:  # noqa: ANN401 - dispatches on the exact type, for speed
    """Return a value that JSON and protobuf can hold.

    64-bit integers, floats, booleans and None are returned unchanged; every other value becomes text of at most 1 KiB.
    """
    kind = type(value)
    if (
        kind in _ALWAYS_PLAIN
        or (kind is str and len(value) <= MAX_VALUE_BYTES and value.isascii())
        or (kind is int and -_INT64_LIMIT <= value < _INT64_LIMIT)
    ):
        return value  # type: ignore[no-any-return]
    return _converted(value)


def plain_attributes(attributes: dict[str, Any]) -> dict[str, PlainValue]:
    """Return the attributes with plain keys and values (see ``plain_value``); may change the given dict."""
    keys = "".join(attributes)  # one check for all keys, which are nearly always short and ASCII
    if len(keys) > MAX_VALUE_BYTES or not keys.isascii():
        attributes = {plain_text(key): value for key, value in attributes.items()}
    for key, value in attributes.items():
        attributes[key] = plain_value(value)
    return attributes


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

    def keep_fallback(exc: BaseException) -> None: ...

    with catch_foreign(keep_fallback):
        result = escape_surrogates(str(value))
    return result


def _converted(value: object) -> PlainValue:
    if isinstance(value, float):  # a subclass such as numpy's float64; as text it would lose its type in the trace
        return float.__float__(value)
    return plain_text(safe_str(value, f"<{type(value).__name__}>"))
