"""Lines of prose made of parts, the least important of which are left out where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from agentgym_tui.clean import Safe, join, line, own, part
from agentgym_tui.views.cells import Cell, Line, Tone
from runner.text import mask

_BETWEEN: Final = Cell(own(" · "), "dim")


def told(text: object, limit: int = 200) -> Safe:
    """Outside text for one line that may quote an address: secrets masked."""
    return line(mask(str(text)[: limit * 4]), limit)


def joined(parts: Sequence[Line], width: int) -> Line:
    """The parts that fit, the first ones first; the first one is cut where it does not fit alone."""
    cells: list[Cell] = []
    used = 0
    for told_of in filter(None, parts):
        shown = [_BETWEEN, *told_of] if cells else list(told_of)
        needed = _width(shown)
        if cells and used + needed > width:
            continue
        cells += shown
        used += needed
    return cells if used <= width else _cut(cells, width)


def _width(cells: Line) -> int:
    return sum(cell_len(cell.text) for cell in cells)


def _cut(cells: Line, width: int) -> list[Cell]:
    kept: list[Cell] = []
    for cell in cells:
        room = width - _width(kept)
        if cell_len(cell.text) > room:
            return [*kept, cut(cell.text, room, cell.tone)]
        kept.append(cell)
    return kept


def cut(text: Safe, width: int, tone: Tone = "plain") -> Cell:
    """A text that is at most ``width`` columns wide."""
    if cell_len(text) <= width:
        return Cell(text, tone)
    kept = len(text)
    while kept and cell_len(text[:kept]) >= width:
        kept -= 1
    return Cell(join([part(text, 0, kept), own("…")]) if width > 0 else own(""), tone)
