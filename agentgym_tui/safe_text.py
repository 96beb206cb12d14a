"""The edge between outside text and the screen: only what comes out of here may be shown.

``SafeText`` is the type of every text a widget takes; the type checker keeps other strings away from widgets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, NewType

from runner.util.text import is_unsafe, mask, one_line, sanitize

SafeText = NewType("SafeText", str)

MAX_LINE_CHARS: Final = 2_000
"""Characters of a line that is not broken into rows; 1 MB in one line costs seconds."""

MAX_TEXT_LINES: Final = 5_000
"""Lines of one text that are laid out."""

_STRIDE: Final = 64


class SanitizedLines(NamedTuple):
    """A text as lines, and whether anything in them had to be made visible."""

    lines: list[SafeText]
    changed: bool


def trusted(text: str) -> SafeText:
    """A text of this program, made of its own words and numbers alone."""
    return SafeText(text)


def sanitize_line(text: object, limit: int = 200) -> SafeText:
    """Outside text for one line of at most ``limit`` characters."""
    return SafeText(one_line(str(text), limit))


def safe_slice(text: SafeText, start: int, stop: int) -> SafeText:
    """Some characters of a safe text, which are as safe."""
    return SafeText(text[start:stop])


def join(parts: Iterable[SafeText], between: str = "") -> SafeText:
    """Safe texts as one; ``between`` is of our own words."""
    return SafeText(between.join(parts))


def sanitize_message(text: str, limit: int = 2_000) -> SafeText:
    """An error text, which may quote addresses and outside text, on several lines: secrets masked."""
    return SafeText(sanitize(mask(text[: limit * 4]), limit=limit))


def sanitize_lines(text: str, limit: int = MAX_LINE_CHARS) -> SanitizedLines:
    """Outside text as lines; what is longer than ``limit`` and long texts are cut and say so.

    A carriage return before a newline goes.
    """
    parts = text.split("\n", MAX_TEXT_LINES)
    rest = parts.pop() if len(parts) > MAX_TEXT_LINES else ""
    heads = [part.removesuffix("\r") for part in parts]
    shown = [SafeText(sanitize(head, limit=limit).replace("\t", "    ")) for head in heads]
    changed = any(is_unsafe(head[:limit]) for head in heads)
    if rest:
        shown.append(trusted(f"… (+{rest.count(chr(10)) + 1} lines)"))
    return SanitizedLines(shown, changed)


def has_unsafe_chars(text: str) -> bool:
    """Whether the text holds what a terminal must not get: controls, bidirectional or invisible characters."""
    return any(is_unsafe(part.removesuffix("\r")) for part in text.split("\n"))


def unsafe_excerpt(text: str) -> str:
    """A text from its first hostile character on, or a little before: a look at its bytes shows a beginning only."""
    starts = range(0, len(text), _STRIDE)
    return text[next((start for start in starts if has_unsafe_chars(text[start : start + _STRIDE])), 0) :]


def hex_lines(text: str, limit: int = 4_096) -> list[SafeText]:
    """The first ``limit`` bytes of a text, 16 in a row: offset, hexadecimal, and what of it is plain ASCII."""
    data = text[:limit].encode("utf-8", "surrogatepass")[:limit]
    return [hex_line(data, row) for row in range(n_hex_lines(data))]


def n_hex_lines(data: bytes) -> int:
    """How many rows of 16 bytes."""
    return (len(data) + 15) // 16


def hex_line(data: bytes, row: int) -> SafeText:
    """One such row."""
    shown = data[16 * row : 16 * row + 16]
    return trusted(f"{16 * row:04x}  {shown.hex(' '):<47}  {_ascii(shown)}")


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
