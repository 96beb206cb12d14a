"""The matrix of the tasks and attempts of one row of results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events, on

from agentgym_tui.presenters.cells import COLUMN_GAP, Line, Tone
from agentgym_tui.presenters.matrix_rows import (
    MATRIX_COLUMNS,
    MatrixRows,
    attempt_at,
    attempt_lines,
    estimate_lines,
    matrix_heading,
)
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.results.base import TaskTableScreen
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.query import FilteredList, Sorting
from agentgym_tui.state.result_list import episodes_filter, matrix_list, selection_of
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.table import SortableTable
from runner.results.task_matrix import TaskGroup

if TYPE_CHECKING:
    from runner.results.summary import ResultRow
    from runner.results.task_matrix import TaskMatrix


class MatrixTable(SortableTable):
    """A table of tasks whose last column has one sign per attempt; the arrows select an attempt.

    Attributes:
        attempt: number of the selected attempt of the task under the cursor.
    """

    @dataclass
    class AttemptChosen(LineList.ListMessage):
        """Another attempt was selected."""

    def __init__(self, tasks: FilteredList[TaskGroup], sorting: Sorting | None) -> None:
        self._tasks, self.attempt = tasks, 0
        self._rows = MatrixRows(tasks, lambda: self.attempt)
        super().__init__(MATRIX_COLUMNS, self._rows, sorting=sorting, id="results")

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        size = self.visible_columns(width)[-1].width
        attempts = self._rows.attempts(index, size, selected=self.is_highlighted(index))
        return [*[*super().row_cells(index, width)][:-1], (COLUMN_GAP, "plain"), *attempts]

    def action_left(self) -> None:
        self._choose(self._shown_attempt() - 1)

    def action_right(self) -> None:
        self._choose(self._shown_attempt() + 1)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        *before, last = self.visible_columns(self._width - LIST_MARGIN)
        if offset is not None and offset.y >= self.N_HEADER:
            start = 1 + sum(column.width + len(COLUMN_GAP) for column in before)
            index = self.scroll_offset.y + offset.y - self.N_HEADER
            n = len(self._tasks.shown[index].attempts) if index < len(self._tasks.shown) else 0
            number = attempt_at(offset.x - start, n, self.attempt, last.width)
            if number is not None:
                self.move_to(index)
                self._choose(number)

    def _shown_attempt(self) -> int:
        task = self._tasks.get(self.key)
        return min(self.attempt, len(task.attempts) - 1) if task is not None else 0

    def _choose(self, number: int) -> None:
        task = self._tasks.get(self.key)
        self.attempt = max(0, min(number, len(task.attempts) - 1)) if task is not None else 0
        self.refresh()
        self.post_message(self.AttemptChosen(self))


class TaskMatrixScreen(TaskTableScreen[TaskGroup]):
    """The tasks of one row of results with all their attempts, pass@k and pass^k.

    Args:
        context: see ``ScreenContext``.
        row: the row of the results.
    """

    SCOPE = "matrix"
    FILTER_HINT = "words and fields, such as: #12 truncated success:0 attempts>=4"

    def __init__(self, context: ScreenContext, row: ResultRow) -> None:
        super().__init__(context, "matrix", matrix_list())
        self._row = row
        self._matrix: TaskMatrix | None = None
        self.table = self._table = self.open_from(MatrixTable(self.tasks, self.tasks.sorting))

    def selected_env(self) -> str:
        return self._row.env

    def action_open(self) -> None:
        if (task := self._selected_task) is not None and task.attempts:
            attempt = task.attempts[min(self._table.attempt, len(task.attempts) - 1)]
            attempts = episodes_filter([self._row], task=task.task_index)
            self.post_message(self.OpenEpisode(attempt.episode_id, attempts))

    def action_compare(self) -> None:
        """Compare the best attempt of the selected task, step by step, with the worst one."""
        from agentgym_tui.screens.compare import CompareScreen

        attempts = task.rated if (task := self._selected_task) is not None else []
        if len(attempts) < 2:
            self.toast("a comparison needs two attempts that count")
            return
        ranked = sorted(
            attempts, key=lambda each: (each.success, each.reward is not None, each.reward or 0), reverse=True
        )
        keys = ranked[0].episode_id, ranked[-1].episode_id
        self.app.push_screen(CompareScreen(self.session, keys, self.ui_state))

    def action_episodes(self) -> None:
        """List the episodes of the selected task."""
        if (task := self._selected_task) is not None:
            self.post_message(self.EpisodesRequested(episodes_filter([self._row], task=task.task_index)))

    async def read(self, library: ResultLibrary) -> None:
        self._matrix = await asyncio.to_thread(_read_matrix, library, self._row)
        self.tasks.set_rows(self._matrix.tasks if self._matrix is not None else [])

    def heading_lines(self, width: int) -> list[Line]:
        matrix = self._matrix
        heading = matrix_heading(self._row, self.tasks, matrix.tasks if matrix else [], self.clear_key, width)
        if self.failure:
            return [heading, self.failure_line]
        return [heading, *(estimate_lines(matrix.estimates, width) if matrix else [])]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return attempt_lines(self._selected_task, self._table.attempt, width)

    @on(MatrixTable.AttemptChosen)
    def _attempt_chosen(self) -> None:
        if self.is_ready:
            self.cursor_moved()

    @property
    def _selected_task(self) -> TaskGroup | None:
        return self.tasks.get(self._table.key)


def _read_matrix(library: ResultLibrary, row: ResultRow) -> TaskMatrix | None:
    from runner.results.task_matrix import task_matrices

    matrices = task_matrices(library.result_source(), selection_of(row))
    return next((matrix for matrix in matrices if matrix.env == row.env), None)
