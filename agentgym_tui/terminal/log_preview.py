"""The start of a log as plain text, shown while Textual is being imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.presenters.cells import Cell, Line, arrange_columns, fit_row, join_parts
from agentgym_tui.presenters.log_rows import LOG_COLUMNS, LogRows, log_name_parts
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.safe_text import trusted

_SCROLLBAR_COLUMNS: Final = 1
"""Columns that the table reserves for its scroll bar."""

_HEADER_LINES: Final = 2
"""Lines above the table."""


def preview_lines(log: LogFile, columns: int, lines: int) -> list[str]:
    """Return a preview of a log as lines of safe text; no lines for an empty log.

    Args:
        log: the log; only its indexed part is shown.
        columns: columns of the terminal; each line is narrower.
        lines: lines of the terminal; the preview has no more lines than this.
    """
    rows = LogRows(log)
    rows.refresh()
    width, n_rows = columns - LIST_MARGIN, min(len(rows), lines - _HEADER_LINES - 1)
    if n_rows <= 0:
        return []
    table = [[Cell(trusted(column.title)) for column in LOG_COLUMNS], *(rows.line(row, width) for row in range(n_rows))]
    return [
        _line_text(join_parts(log_name_parts(log, width), width)),
        "",
        *_table_lines(table, width - _SCROLLBAR_COLUMNS),
    ]


def _table_lines(rows: list[Line], width: int) -> Iterator[str]:
    layout = arrange_columns(LOG_COLUMNS, width)
    for row in rows:
        yield " " + "".join(text for text, _ in fit_row(row, LOG_COLUMNS, layout, width))


def _line_text(line: Line) -> str:
    return " " + "".join(cell.text for cell in line)
