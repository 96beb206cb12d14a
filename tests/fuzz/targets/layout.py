"""Shown text in columns: padded, cut and wrapped to a width; the input is a byte for the width and the text."""

from __future__ import annotations

from itertools import pairwise

from agentgym_tui.presenters.cells import (
    Cell,
    Column,
    arrange_columns,
    cut,
    cut_middle,
    cut_start,
    display_width,
    fit,
    fit_row,
    join_parts,
    line_width,
    wrap_offsets,
    wrap_text,
)
from agentgym_tui.safe_text import sanitize_line, sanitize_lines
from tests.fuzz.emulator import character_width
from tests.fuzz.oracles import check_displayable

TOKENS = (
    b"\xe6\xbc\xa2",
    b"\xf0\x9f\x91\x8d",
    b"\xf0\x9f\x87\xa9",
    b"\xcc\x81",
    b"\xef\xb8\x8f",
    b" ",
    b"\xe1\x84\x92",
)
COLUMNS = (Column("a", 8, most=12), Column("b", None, min_width=5), Column("c", 4, right=True, rank=1))


def check(data: bytes) -> None:
    width = data[0] % 40 if data else 0
    text = sanitize_line(data[1:].decode("utf-8", "replace"), 300)
    assert display_width(text) == sum(map(character_width, text)), ascii(text)
    for right in (False, True):
        assert display_width(fit(text, width, right=right)) == width
    for shorten in (cut, cut_start, cut_middle):
        assert display_width(shorten(text, width)) <= width
        check_displayable(shorten(text, width))
    _check_wrapped(text, width)
    _check_row(text, width)
    lines = sanitize_lines(data[1:].decode("utf-8", "replace"), 100).lines
    for row in wrap_text(text, width, 3):
        assert width < 2 or display_width(row) <= width
    assert all("\t" not in line and "\n" not in line for line in lines)


def _check_wrapped(text: str, width: int) -> None:
    offsets = wrap_offsets(text, width)
    assert offsets[0][0] == 0 and offsets[-1][1] == len(text)
    for (_, stop), (start, _) in pairwise(offsets):
        assert text[stop:start] in ("", " ")
    if width >= 2:
        assert all(display_width(text[start:stop]) <= width for start, stop in offsets)


def _check_row(text: str, width: int) -> None:
    cells = [Cell(part) for part in text.split("|")][:3]
    assert line_width(join_parts([[cell] for cell in cells], width)) <= width
    layout = arrange_columns(COLUMNS, width, [display_width(cell.text) for cell in cells])
    total = sum(column.width for column in layout) + 2 * (len(layout) - 1)
    fitted = list(fit_row(cells, COLUMNS, layout, max(total, width)))
    assert sum(display_width(shown) for shown, _ in fitted) <= max(total, width)
