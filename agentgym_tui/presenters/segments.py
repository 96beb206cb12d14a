"""Lines of prose made of parts, the least important of which are left out where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.text_width import cells, cut, line_width
from agentgym_tui.safe_text import Safe, is_hostile, join, line, own
from runner.util.text import mask

BETWEEN: Final = Cell(own(" · "), "dim")
_MAX_ROWS: Final = 20


def told(text: object, limit: int = 200) -> Safe:
    """Outside text for one line that may quote an address: secrets masked."""
    return line(mask(str(text)[: limit * 4]), limit)


def told_rows(text: str, limit: int = 2_000) -> Safe:
    """The same with its line breaks."""
    rows = mask(text[: limit * 4]).split("\n")[:_MAX_ROWS]
    return join([line(row, limit) for row in rows], "\n")


def flagged(text: Safe, hostile: str | None) -> Safe:
    """A text, with a sign where it stands for something hostile."""
    return join([own("⚠ "), text]) if hostile else text


def hostile(texts: Sequence[str]) -> str | None:
    """Those of some texts that cleaning changes, None when there are none."""
    return "\n".join(text for text in texts if is_hostile(text)) or None


def joined(parts: Sequence[Line], width: int) -> Line:
    """The parts that fit, the first ones first; the first one is cut where it does not fit alone."""
    shown: list[Cell] = []
    used = 0
    for told_of in filter(None, parts):
        more = [BETWEEN, *told_of] if shown else list(told_of)
        needed = line_width(more)
        if shown and used + needed > width:
            continue
        shown += more
        used += needed
    return shown if used <= width else _cut(shown, width)


def _cut(shown: Line, width: int) -> list[Cell]:
    kept: list[Cell] = []
    for cell in shown:
        room = width - line_width(kept)
        if cells(cell.text) > room:
            return [*kept, Cell(cut(cell.text, room), cell.tone)]
        kept.append(cell)
    return kept
