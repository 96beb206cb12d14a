"""Texts measured in the columns of a terminal, where a character may take none, one or two."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size, split_graphemes

_CUT = "…"


def cells(text: str) -> int:
    """How many columns a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """A text in exactly ``width`` columns: filled with blanks, or cut at its end with an ellipsis."""
    room = width - cells(text)
    if room >= 0:
        return " " * room + text if right else text + " " * room
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1) + _CUT


def wrap(text: str, width: int) -> list[tuple[int, int]]:
    """Where the rows of a text start and stop when it is broken at blanks, and inside of words that are too long.

    An empty text has one row. Blanks at a break belong to no row.
    """
    if width < 2 or cells(text) <= width:
        return [(0, len(text))]
    return list(_narrow(text, width) if text.isascii() else _wide(text, width))


def _narrow(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Each character takes one column."""
    start, end = 0, len(text)
    while end - start > width:
        stop = text.rfind(" ", start + 1, start + width + 1)
        stop = start + width if stop < 0 else stop
        yield start, stop
        start = stop + (text[stop] == " ")
    yield start, end


def _wide(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Characters that make one glyph stay together."""
    start = used = since_blank = 0
    blank = -1
    for left, _, size in split_graphemes(text)[0]:
        if text[left] == " ":
            blank, since_blank = left, -size
        if used + size > width:
            stop = blank if blank > start else left
            yield start, stop
            start, used = (blank + 1, since_blank) if stop == blank else (left, 0)
        used += size
        since_blank += size
    yield start, len(text)
