"""Texts measured in the columns of a terminal, where a character may take none, one or two."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from rich.cells import cell_len, set_cell_size, split_graphemes

from agentgym_tui.presenters.cells import Line
from agentgym_tui.safe_text import Safe

EDGES: Final = 2
"""Columns left of a line of a list, where the cursor's mark is, and right of it, before the scroll bar."""

_CUT = "…"
_SHORT: Final = 512
"""Characters of texts that are remembered with where they are cut: the same lines are drawn again and again."""

_first = lru_cache(1_024)(set_cell_size)


def cells(text: str) -> int:
    """How many columns a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def line_width(line: Line) -> int:
    """How many columns the cells of a line take."""
    return sum(cells(cell.text) for cell in line)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """A text in exactly ``width`` columns: filled with blanks, or cut at its end with an ellipsis."""
    if len(text) > width > 0 and text[: width + 1].isascii():
        return text[: width - 1] + _CUT
    room = width - cells(text)
    if room >= 0:
        return " " * room + text if right else text + " " * room
    if width <= 0:
        return ""
    return (_first if len(text) < _SHORT else set_cell_size)(text, width - 1) + _CUT


def cut(text: Safe, width: int) -> Safe:
    """A text that is at most ``width`` columns wide, without its end if need be."""
    return text if cells(text) <= width else Safe(fit(text, width))


def cut_start(text: Safe, width: int) -> Safe:
    """The same without its beginning, as for paths."""
    return text if cells(text) <= width else _short(text, width, 0)


def cut_middle(text: Safe, width: int) -> Safe:
    """The same without its middle, as for names that begin alike."""
    return text if cells(text) <= width else _short(text, width, (width - 1) // 2)


def _short(text: Safe, width: int, n_first: int) -> Safe:
    """``n_first`` columns of the beginning, the rest of the end."""
    if width <= 0:
        return Safe("")
    head, rest = set_cell_size(text, n_first), width - 1 - n_first
    start = len(text)
    while start and cells(text[start - 1 :]) <= rest:
        start -= 1
    return Safe(f"{head}{_CUT}{text[start:]}")


def wrapped(text: Safe, width: int, limit: int) -> list[Safe]:
    """A text of some lines as at most ``limit`` rows of ``width`` columns; what has no room is cut and says so."""
    parts = text.split("\n")
    rows = [Safe(line[start:stop]) for line in parts for start, stop in wrap(line, width)]
    if len(rows) <= limit:
        return rows
    return [*rows[: limit - 1], cut(Safe(" ".join(rows[limit - 1 :])), width)] if limit > 0 else []


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
