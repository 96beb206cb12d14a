"""The comparison of two rows of results by task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.comparison_rows import (
    COMPARISON_COLUMNS,
    ComparisonRows,
    comparison_heading,
    comparison_lines,
)
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.results.base import TaskTableScreen
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.result_list import (
    ComparedTask,
    comparable_selections,
    compared_tasks,
    comparison_list,
    episodes_filter,
)
from agentgym_tui.widgets.table import SortableTable

if TYPE_CHECKING:
    from runner.results.comparison import Comparison
    from runner.results.summary import ResultRow, Selection


class ComparisonScreen(TaskTableScreen[ComparedTask]):
    """The tasks that both rows have, with the success rates of both, and whether chance explains the difference.

    Args:
        context: see ``ScreenContext``.
        row: the row that is compared.
        baseline: the row that it is compared with, of the same environment, data and mode.
    """

    SCOPE = "comparison"
    FILTER_HINT = "words and fields, such as: result:lost difference<-0.2"

    def __init__(self, context: ScreenContext, row: ResultRow, baseline: ResultRow) -> None:
        super().__init__(context, "comparison", comparison_list())
        self._row, self._baseline = row, baseline
        self._selections = comparable_selections(row, baseline)
        self._comparison: Comparison | None = None
        self._first_attempts: Sequence[dict[int, str]] = ()
        rows = ComparisonRows(self.tasks)
        self.table = self.open_from(SortableTable(COMPARISON_COLUMNS, rows, sorting=self.tasks.sorting, id="results"))

    def selected_env(self) -> str:
        return self._row.env

    def action_open(self) -> None:
        if (task := self.tasks.get(self.table.key)) is not None:
            rows = [self._row, self._baseline]
            self.post_message(self.EpisodesRequested(episodes_filter(rows, task=task.pair.task.task_index)))

    def action_compare(self) -> None:
        """Compare the first attempts of both rows at the selected task step by step."""
        from agentgym_tui.screens.compare import CompareScreen

        if (task := self.tasks.get(self.table.key)) is not None:
            selected, baseline = (attempts[task.pair.task.task_index] for attempts in self._first_attempts)
            self.app.push_screen(CompareScreen(self.session, (baseline, selected), self.ui_state))

    async def read(self, library: ResultLibrary) -> None:
        compared = await asyncio.to_thread(_compare, library, self._row.env, self._selections)
        self._comparison, self._first_attempts = compared
        self.tasks.set_rows(compared_tasks(self._comparison))

    def heading_lines(self, width: int) -> list[Line]:
        heading = comparison_heading(self._row, self._baseline, self._selections, self.tasks, self.clear_key, width)
        return [*heading, *([self.failure_line] if self.failure else comparison_lines(self._comparison, width))]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return []


def _compare(
    library: ResultLibrary, env: str, selections: tuple[Selection, Selection]
) -> tuple[Comparison, list[dict[int, str]]]:
    """Return the comparison, and for each selection the id of the first rated attempt by task."""
    from runner.results.comparison import compare
    from runner.results.task_matrix import task_matrices

    source = library.result_source()
    selected, baseline = matrices = [
        [matrix for matrix in task_matrices(source, selection) if matrix.env == env] for selection in selections
    ]
    first = [
        {task.task_index: task.rated[0].episode_id for matrix in each for task in matrix.tasks if task.rated}
        for each in matrices
    ]
    return compare(selected, baseline), first
