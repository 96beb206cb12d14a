"""The first lines of a log as plain text, for the time until the framework is there that draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.column_layout import arrange, fitted
from agentgym_tui.presenters.log_rows import LOG_COLUMNS, LogRows, named
from agentgym_tui.presenters.segments import joined
from agentgym_tui.presenters.text_width import EDGES
from agentgym_tui.safe_text import own

_BAR: Final = 1
"""Columns of a scroll bar, in the table also where there is none."""

_ABOVE: Final = 2
"""Lines above the table."""


def glimpse(log: LogFile, columns: int, lines: int) -> list[str]:
    """At most ``lines`` lines of safe text, none as wide as ``columns``; nothing of a log that has no line.

    Args:
        log: as far as it was read.
        columns: of the terminal.
        lines: of the terminal.
    """
    rows = LogRows(log)
    rows.take()
    width, n_rows = columns - EDGES, min(len(rows), lines - _ABOVE - 1)
    if n_rows <= 0:
        return []
    table = [[Cell(own(column.title)) for column in LOG_COLUMNS], *(rows.line(row, width) for row in range(n_rows))]
    return [_text(joined(named(log, width), width)), "", *_table(table, width - _BAR)]


def _table(rows: list[Line], width: int) -> Iterator[str]:
    places = arrange(LOG_COLUMNS, width)
    for row in rows:
        yield " " + "".join(text for text, _ in fitted(row, LOG_COLUMNS, places, width))


def _text(line: Line) -> str:
    return " " + "".join(cell.text for cell in line)
