"""The start of Live, of a log or of a list of episodes as plain text, shown while Textual is being imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.cells import set_cell_size

from agentgym_tui.presenters.cells import Column, Line, arrange_columns, fit_row, header_row, join_parts
from agentgym_tui.presenters.text_width import LIST_MARGIN, cut_start
from agentgym_tui.safe_text import masked_line

if TYPE_CHECKING:
    from agentgym_tui.logs.log_file import LogFile
    from agentgym_tui.state.sorting import Sorting
    from runner.store.index_schema import EpisodeRow

_SCROLLBAR_COLUMNS: Final = 1
"""Columns that the table reserves for its scroll bar."""

_FOOTER_LINES: Final = 2
"""Lines below the list of episodes."""


def launch_preview(folder: str, columns: int) -> list[str]:
    """Return the first line of Live before anything is known but the state directory, as safe text.

    Args:
        folder: the state directory.
        columns: columns of the terminal; the line is narrower.
    """
    start = " Live · starting · "
    return [start + cut_start(masked_line(folder, 300), columns - LIST_MARGIN - len(start))]


def log_preview(log: LogFile, columns: int, lines: int) -> list[str]:
    """Return a preview of a log as lines of safe text; no lines for an empty log.

    Args:
        log: the log; only its indexed part is shown.
        columns: columns of the terminal; each line is narrower.
        lines: lines of the terminal; the preview has no more lines than this.
    """
    from agentgym_tui.presenters.log_rows import LOG_COLUMNS, LogRows, log_name_parts

    rows = LogRows(log)
    rows.refresh()
    width = columns - LIST_MARGIN
    head = [_line_text(join_parts(log_name_parts(log, width), width)), ""]
    shown = [rows.line(row, width) for row in range(min(len(rows), lines - len(head) - 1))]
    return [*head, *_table_lines(LOG_COLUMNS, shown, None, width)] if shown else []


def episode_preview(episodes: Sequence[EpisodeRow], sorting: Sorting | None, columns: int, lines: int) -> list[str]:
    """Return a preview of the list of episodes as lines of safe text; no lines without episodes.

    Args:
        episodes: the newest episodes.
        sorting: order of the list; None for the default order.
        columns: columns of the terminal; each line is narrower.
        lines: lines of the terminal; the preview has no more lines than this.
    """
    from agentgym_tui.presenters.episode_rows import EPISODE_COLUMNS, EpisodeRows, list_summary, reading_progress
    from agentgym_tui.state.episode_list import DEFAULT_SORTING, EpisodeList

    known = EpisodeList()
    known.sort(sorting)
    known.set_stored(episodes)
    rows, width = EpisodeRows(known), columns - LIST_MARGIN
    head = [_line_text(list_summary(known, reading_progress(None), "", width))]
    shown = [rows.line(row, width) for row in range(min(len(rows), lines - len(head) - 1 - _FOOTER_LINES))]
    return [*head, *_table_lines(EPISODE_COLUMNS, shown, known.sorting or DEFAULT_SORTING, width)] if shown else []


def _table_lines(
    columns: Sequence[Column], rows: Sequence[Line], sorting: Sorting | None, list_width: int
) -> Iterator[str]:
    width = list_width - _SCROLLBAR_COLUMNS
    layout = arrange_columns(columns, width)
    for cells in (header_row(columns, layout, sorting), *(fit_row(row, columns, layout, width) for row in rows)):
        yield " " + set_cell_size("".join(text for text, _ in cells), width)


def _line_text(line: Line) -> str:
    return " " + "".join(cell.text for cell in line)
