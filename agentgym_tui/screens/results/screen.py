"""The Results screen: what came of the episodes, by environment, agent and model, or by batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from textual import events

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.result_rows import (
    RESULT_COLUMNS,
    ResultRows,
    empty_results_lines,
    histogram_lines,
    result_detail,
    results_summary,
)
from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.results.base import ResultsTableScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.query import Sorting
from agentgym_tui.state.result_list import RESULTS_KEY, ResultList, episodes_filter, result_key, selection_of
from agentgym_tui.widgets.table import SortableTable
from runner.errors import StoreError

if TYPE_CHECKING:
    from runner.results.evaluation import EvalRow
    from runner.results.summary import Histogram, ResultRow

REWARDS_DELAY_S: Final = 0.05
"""Seconds for which the cursor must stay on a row before its rewards are read."""

_OUTCOMES: Final = {"success": "success", "errors": "error"}
"""Outcome of the episodes that a column counts, by its title."""


class ResultsTable(SortableTable):
    """The table of results; it remembers in which column it was clicked.

    Attributes:
        clicked_column: title of the column of the last click.
    """

    clicked_column = ""

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        column = self._column_at(offset.x) if offset is not None else None
        self.clicked_column = column.title if column is not None else ""


class ResultsScreen(ResultsTableScreen):
    """Results by environment, agent and model, which are never mixed; the UI state holds filter and order."""

    SCOPE = "results"
    FILTER_HINT = "words and fields, such as: react model:qwen* success>0.5 episodes>=20"

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self._screen_context, self.list_key = context, RESULTS_KEY
        self._results = ResultList()
        self._results.search(self.kept_filter)
        self._results.sort(self.ui_state.sorting.get(RESULTS_KEY))
        rows = ResultRows(self._results, lambda: self.session.store.currency)
        self._table = ResultsTable(RESULT_COLUMNS, rows, sorting=self._results.sorting, id="results")
        self.table = self.open_from(self._table)
        self._by_batch = False
        self._run_id = ""
        self._histogram: tuple[str, Histogram | None] = ("", None)

    def selected_env(self) -> str:
        return "" if self._row is None else self._row.env

    def action_open(self) -> None:
        clicked, self._table.clicked_column = self._table.clicked_column, ""
        self._list_episodes(_OUTCOMES.get(clicked))

    def action_outcome(self, outcome: str) -> None:
        """List the episodes of the selected row that have an outcome."""
        self._list_episodes(outcome)

    def action_tasks(self) -> None:
        """Open the matrix of tasks and attempts of the selected row."""
        from agentgym_tui.screens.results.matrix import TaskMatrixScreen

        if self._row is not None:
            self.app.push_screen(TaskMatrixScreen(self._screen_context, self._row))

    def action_failures(self) -> None:
        """Show how the episodes of the selected row failed."""
        from agentgym_tui.screens.results.clusters import ClustersScreen

        if self._row is not None:
            self.app.push_screen(ClustersScreen(self._screen_context, episodes_filter([self._row])))

    def action_report(self) -> None:
        """Show score and success as AgentGym's Evaluator computes them."""
        if (library := self.library) is not None:
            start_worker(self, partial(self._show_report, library), group="report", exclusive=True)

    async def _show_report(self, library: ResultLibrary) -> None:
        from agentgym_tui.screens.dialogs.texts import EvalReportDialog

        try:
            rows = await asyncio.to_thread(_evaluate, library, self._run_id)
        except StoreError as exc:
            self.toast(sanitize_message(str(exc), 300), failed=True)
        else:
            self.app.push_screen(EvalReportDialog(rows))

    def action_batches(self) -> None:
        """Show a row for each batch, or one for all batches of an agent and model."""
        self._by_batch = not self._by_batch
        self.read_again()

    def action_mark(self) -> None:
        """Mark the selected row; if another row is marked, compare the selected one with it."""
        from agentgym_tui.screens.results.comparison import ComparisonScreen

        row, marked = self._row, self._results.marked
        if row is None:
            return
        if marked is None or self._results.is_marked(row):
            self._results.marked = row if marked is None else None
            self.show_rows()
        elif (row.env, row.data_label, row.mode) != (marked.env, marked.data_label, marked.mode):
            self.toast("only rows of the same environment, data and mode can be compared", failed=True)
        else:
            self.app.push_screen(ComparisonScreen(self._screen_context, row, marked))

    def action_clear(self) -> None:
        if self._run_id and not self._results.query:
            self._run_id = ""
            self.read_again()
        else:
            super().action_clear()

    def show_run(self, run_id: str) -> None:
        """Show only the results of a battery or batch, one row per batch."""
        self._run_id, self._by_batch = run_id, True
        self.set_filter("")
        self.read_again()

    def action_reload(self) -> None:
        """Read the results again without waiting."""
        self.read_again()

    @property
    def searchable(self) -> ResultList:
        return self._results

    def sort(self, sorting: Sorting | None) -> None:
        self._results.sort(sorting)

    async def read(self, library: ResultLibrary) -> None:
        by_batch, run_id = self._by_batch, self._run_id
        rows = await asyncio.to_thread(_summarize, library, by_batch, run_id)
        self._results.by_batch = by_batch
        self._results.set_rows(rows)

    def show_read(self, *, first: bool) -> None:
        super().show_read(first=first)
        if first:
            self._table.move_to(0)
        self._start_reading_rewards()

    def cursor_moved(self) -> None:
        super().cursor_moved()
        self._start_reading_rewards()

    def heading_lines(self, width: int) -> list[Line]:
        summary = results_summary(self._results, self.reading_state, self.clear_key, width, run_id=self._run_id)
        return [summary, self.failure_line]

    def nothing_lines(self, width: int) -> list[Line]:
        return empty_results_lines(self._results, self.clear_key)

    def detail_lines(self, width: int) -> Sequence[Line]:
        key, histogram = self._histogram
        if (row := self._row) is None:
            return []
        detail = result_detail(row, self.session.store.currency, width)
        return [*detail, *histogram_lines(histogram)] if key == result_key(row) else detail

    @property
    def _row(self) -> ResultRow | None:
        return self._results.get(self._table.key)

    def _list_episodes(self, outcome: str | None) -> None:
        if self._row is not None:
            terms = {} if outcome is None else {"outcome": outcome}
            self.post_message(self.EpisodesRequested(episodes_filter([self._row], **terms)))

    def _start_reading_rewards(self) -> None:
        start_worker(self, self._read_rewards, group="rewards", exclusive=True)

    async def _read_rewards(self) -> None:
        await asyncio.sleep(REWARDS_DELAY_S)
        row, library = self._row, self.library
        if row is None or library is None:
            return
        try:
            histogram = await asyncio.to_thread(_histogram, library, row)
        except StoreError:  # the reading of the rows reports it
            return
        self._histogram = result_key(row), histogram
        if self.is_ready:
            super().cursor_moved()


def _summarize(library: ResultLibrary, by_batch: bool, run_id: str) -> list[ResultRow]:
    from runner.results.summary import Selection, summarize_results

    return summarize_results(library.result_source(), Selection(batch=run_id or None), by_batch=by_batch)


def _evaluate(library: ResultLibrary, run_id: str) -> list[EvalRow]:
    from runner.results.evaluation import evaluate
    from runner.results.summary import Selection

    return evaluate(library.result_source(), Selection(batch=run_id or None))


def _histogram(library: ResultLibrary, row: ResultRow) -> Histogram | None:
    from runner.results.summary import reward_histogram

    return reward_histogram(library.result_source(), selection_of(row))
