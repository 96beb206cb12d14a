"""Measure, pad, cut and wrap text in terminal columns. A character is zero, one or two columns wide.

Text that is cut or wrapped is made safe first, because a visible symbol is wider than what it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from rich.cells import cell_len, set_cell_size, split_graphemes

from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.safe_text import sanitize_line, sanitize_text

LIST_MARGIN: Final = 2
"""Columns beside the text of a list: the cursor mark on the left, and a blank before the scroll bar on the right."""

ENV_WIDTH: Final = 11
"""Columns of the environment in tables of episodes and results."""
RUN_ENV_WIDTH: Final = 24
"""Columns of the environment in tables of runs."""

_CUT = "…"
_FAMILY: Final = "are:"
_SCENARIO: Final = "are:scenario_"
_MAX_CACHED_CHARS: Final = 512
"""Length in characters below which a cut text is cached, because the same lines are drawn repeatedly."""

_cached_head = lru_cache(1_024)(set_cell_size)


def display_width(text: str) -> int:
    """Return the width of ``text`` in terminal columns."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return ``text`` in exactly ``width`` columns: padded with blanks, or cut at the end with an ellipsis.

    Padding is added after the text; if ``right`` is true, before the text.
    """
    if len(text) > width > 0 and text[: width + 1].isascii():
        return text[: width - 1] + _CUT
    room = width - display_width(text)
    if room >= 0:
        return " " * room + text if right else text + " " * room
    if width <= 0:
        return ""
    return (_cached_head if len(text) < _MAX_CACHED_CHARS else set_cell_size)(text, width - 1) + _CUT


def _safe_line(text: str) -> str:
    return text if text.isascii() and text.isprintable() else sanitize_line(text, len(text) * len("\\u{10ffff}"))


def cut(text: str, width: int) -> str:
    """Cut ``text`` to at most ``width`` columns; an ellipsis replaces the end of the text."""
    text = _safe_line(text)
    return text if display_width(text) <= width else fit(text, width)


def cut_start(text: str, width: int) -> str:
    """Cut ``text``, such as a path, to at most ``width`` columns; an ellipsis replaces the start of the text."""
    text = _safe_line(text)
    return text if display_width(text) <= width else _cut_around(text, width, 0)


def cut_middle(text: str, width: int) -> str:
    """Cut ``text`` to at most ``width`` columns; an ellipsis replaces the middle of the text.

    This keeps names apart that have a common prefix.
    """
    text = _safe_line(text)
    return text if display_width(text) <= width else _cut_around(text, width, (width - 1) // 2)


def shorten_environment(name: str, width: int) -> str:
    """Leave the common start of the names of ARE's scenarios out of a name that does not fit into ``width`` columns."""
    if display_width(name) <= width or not name.lower().startswith(_SCENARIO):
        return name
    return f"{name[: len(_FAMILY)]}{_CUT}{name[len(_SCENARIO) :]}"


def environment_text(name: str, width: int = ENV_WIDTH) -> str:
    """Return the name of an environment for ``width`` columns; an en dash without one."""
    return shorten_environment(name, width) or UNKNOWN


def _cut_around(text: str, width: int, n_first: int) -> str:
    """Keep the first ``n_first`` columns of the text, an ellipsis, and as much of the text's end as fits."""
    if width <= 0:
        return ""
    head, rest = set_cell_size(text, n_first), width - 1 - n_first
    start = len(text)
    while start and display_width(text[start - 1 :]) <= rest:
        start -= 1
    while start < len(text) and not display_width(text[start]):
        start += 1  # its base did not fit, and the ellipsis must not bear the mark
    return f"{head}{_CUT}{text[start:]}"


def wrap_text(text: str, width: int, limit: int) -> list[str]:
    """Wrap text into at most ``limit`` rows of ``width`` columns.

    If the text needs more rows, the last row ends with an ellipsis.
    """
    parts = sanitize_text(text).split("\n")
    rows = [line[start:stop] for line in parts for start, stop in wrap_offsets(line, width)]
    if len(rows) <= limit:
        return rows
    return [*rows[: limit - 1], cut(" ".join(rows[limit - 1 :]), width)] if limit > 0 else []


def wrap_offsets(text: str, width: int) -> list[tuple[int, int]]:
    """Wrap ``text`` into rows of ``width`` columns and return the start and stop offset of each row.

    Rows break at blanks, or inside a word that is wider than a row. A blank at a break belongs to no row. An empty text
    has one row.
    """
    if width < 2 or display_width(text) <= width:
        return [(0, len(text))]
    return list(_narrow(text, width) if text.isascii() else _wide(text, width))


def _narrow(text: str, width: int) -> Iterator[tuple[int, int]]:
    start, end = 0, len(text)
    while end - start > width:
        stop = text.rfind(" ", start + 1, start + width + 1)
        stop = start + width if stop < 0 else stop
        yield start, stop
        start = stop + (text[stop] == " ")
    yield start, end


def _wide(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield the row offsets of text with wide or zero-width characters; a row never ends inside a grapheme."""
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
