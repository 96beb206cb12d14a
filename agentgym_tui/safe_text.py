"""The edge between outside text and the screen: only what comes out of here may be shown.

``Safe`` is the type of every text a widget takes; the type checker keeps other strings away from widgets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, NewType

from runner.util.text import is_unsafe, mask, one_line, sanitize

Safe = NewType("Safe", str)

MAX_LINE: Final = 2_000
"""Characters of a line that is not broken into rows; 1 MB in one line costs seconds."""

MAX_LINES: Final = 5_000
"""Lines of one text that are laid out."""

_STRIDE: Final = 64


class Cleaned(NamedTuple):
    """A text as lines, and whether anything in them had to be made visible."""

    lines: list[Safe]
    changed: bool


def own(text: str) -> Safe:
    """A text of this program, made of its own words and numbers alone."""
    return Safe(text)


def line(text: object, limit: int = 200) -> Safe:
    """Outside text for one line of at most ``limit`` characters."""
    return Safe(one_line(str(text), limit))


def part(text: Safe, start: int, stop: int) -> Safe:
    """Some characters of a safe text, which are as safe."""
    return Safe(text[start:stop])


def join(parts: Iterable[Safe], between: str = "") -> Safe:
    """Safe texts as one; ``between`` is of our own words."""
    return Safe(between.join(parts))


def message(text: str, limit: int = 2_000) -> Safe:
    """An error text, which may quote addresses and outside text, on several lines: secrets masked."""
    return Safe(sanitize(mask(text[: limit * 4]), limit=limit))


def lines(text: str, limit: int = MAX_LINE) -> Cleaned:
    """Outside text as lines; what is longer than ``limit`` and long texts are cut and say so.

    A carriage return before a newline goes.
    """
    parts = text.split("\n", MAX_LINES)
    rest = parts.pop() if len(parts) > MAX_LINES else ""
    heads = [part.removesuffix("\r") for part in parts]
    shown = [Safe(sanitize(head, limit=limit).replace("\t", "    ")) for head in heads]
    changed = any(is_unsafe(head[:limit]) for head in heads)
    if rest:
        shown.append(own(f"… (+{rest.count(chr(10)) + 1} lines)"))
    return Cleaned(shown, changed)


def is_hostile(text: str) -> bool:
    """Whether the text holds what a terminal must not get: controls, bidirectional or invisible characters."""
    return any(is_unsafe(part.removesuffix("\r")) for part in text.split("\n"))


def hostile_part(text: str) -> str:
    """A text from its first hostile character on, or a little before: a look at its bytes shows a beginning only."""
    starts = range(0, len(text), _STRIDE)
    return text[next((start for start in starts if is_hostile(text[start : start + _STRIDE])), 0) :]


def hex_lines(text: str, limit: int = 4_096) -> list[Safe]:
    """The first ``limit`` bytes of a text, 16 in a row: offset, hexadecimal, and what of it is plain ASCII."""
    data = text[:limit].encode("utf-8", "surrogatepass")[:limit]
    return [hex_line(data, row) for row in range(n_hex_lines(data))]


def n_hex_lines(data: bytes) -> int:
    """How many rows of 16 bytes."""
    return (len(data) + 15) // 16


def hex_line(data: bytes, row: int) -> Safe:
    """One such row."""
    shown = data[16 * row : 16 * row + 16]
    return own(f"{16 * row:04x}  {shown.hex(' '):<47}  {_ascii(shown)}")


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
