"""The Results screen, and what opens from it: the matrix of tasks and attempts, comparisons, and failure clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from textual import events, on

from agentgym_tui.presenters import result_rows
from agentgym_tui.presenters.cells import COLUMN_GAP, LIST_MARGIN, Line, ListingRows, Tone
from agentgym_tui.presenters.result_rows import comparable_selections, episodes_filter, result_key
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.dialogs.texts import EvalReportDialog
from agentgym_tui.screens.episode import CompareScreen
from agentgym_tui.screens.list_screen import ListScreen, listed
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.episode_list import exact_terms, select_rows
from agentgym_tui.state.query import MAX_CHARS, FilteredList
from agentgym_tui.widgets.lists import LineList, Table
from runner.errors import StoreError
from runner.query.syntax import QueryError
from runner.results.clusters import Cluster, find_clusters
from runner.results.comparison import Comparison, compare
from runner.results.evaluation import evaluate
from runner.results.summary import Histogram, ResultRow, Selection, reward_histogram, selection_of, summarize_results
from runner.results.task_matrix import Estimate, TaskGroup, task_matrices

REWARDS_DELAY_S: Final = 0.05
"""Seconds for which the cursor must stay on a row before its rewards are read."""
NO_TASK: Final = "No task matches the filter.", "No task has been played."
_OUTCOMES: Final = {"success": "success", "errors": "error"}
"""Outcome of the episodes that a column counts, by its title."""


class ResultsScreen(ListScreen[ResultRow]):
    """Results by environment, agent and model, which are never mixed; the UI state holds filter and order."""

    SCOPE = "results"
    FILTER_HINT = "words and fields, such as: react model:qwen* success>0.5 episodes>=20"
    READS_LIBRARY = True

    def __init__(self, context: ScreenContext) -> None:
        listing = result_rows.result_listing(self._is_marked, lambda: self.session.store.currency)
        super().__init__(context, "results", *listed(listing))
        self._marked: ResultRow | None = None
        self._by_batch = self._shown_by_batch = False
        self._run_id = ""
        self._histogram: tuple[str, Histogram | None] = ("", None)

    def _is_marked(self, row: ResultRow) -> bool:
        return self._marked is not None and result_key(row) == result_key(self._marked)

    def action_open(self) -> None:
        clicked, self.table.clicked = self.table.clicked, None
        self.action_outcome(_OUTCOMES.get(clicked.title) if clicked else None)

    def action_outcome(self, outcome: str | None) -> None:
        if self.selected is not None:
            terms = {"outcome": outcome} if outcome else {}
            self.post_message(self.EpisodesRequested(episodes_filter([self.selected], **terms)))

    def action_tasks(self) -> None:
        if self.selected is not None:
            self.app.push_screen(TaskMatrixScreen(self.context, self.selected))

    def action_failures(self) -> None:
        if self.selected is not None:
            self.app.push_screen(ClustersScreen(self.context, episodes_filter([self.selected])))

    def action_report(self) -> None:
        if (library := self.library) is not None:
            start_worker(self, partial(self._show_report, library), group="report", exclusive=True)

    async def _show_report(self, library: ResultLibrary) -> None:
        selection = Selection(batch=self._run_id or None)
        try:
            rows = await asyncio.to_thread(lambda: evaluate(library.result_source(), selection))
        except StoreError as exc:
            self.toast(str(exc), failed=True)
        else:
            self.app.push_screen(EvalReportDialog(rows))

    def action_batches(self) -> None:
        self._by_batch = not self._by_batch
        self.action_reload()

    def action_mark(self) -> None:
        """Mark the selected row; if another row is marked, compare the selected one with it."""
        row, marked = self.selected, self._marked
        if row is None:
            return
        if marked is None or self._is_marked(row):
            self._marked = row if marked is None else None
            self.show_rows()
        elif (row.env, row.data_label, row.mode) != (marked.env, marked.data_label, marked.mode):
            self.toast(
                "only rows of the same environment, data and mode can be compared; mark another one", failed=True
            )
        else:
            self.app.push_screen(ComparisonScreen(self.context, row, marked))

    def action_clear(self) -> None:
        if self._run_id and not self.rows.query:
            self._run_id = ""
            self.action_reload()
        else:
            super().action_clear()

    def show_run(self, run_id: str) -> None:
        self._run_id, self._by_batch = run_id, True
        self.filter.text = ""
        self.action_reload()

    async def read(self, library: ResultLibrary) -> None:
        by_batch, selection = self._by_batch, Selection(batch=self._run_id or None)
        rows = await asyncio.to_thread(lambda: summarize_results(library.result_source(), selection, by_batch=by_batch))
        self._shown_by_batch = by_batch
        self.rows.set_rows(rows)

    def show_read(self, *, first: bool) -> None:
        super().show_read(first=first)
        if first:
            self.table.move_to(0)
        self._start_reading_rewards()

    def cursor_moved(self) -> None:
        super().cursor_moved()
        self._start_reading_rewards()

    def heading_lines(self, width: int) -> list[Line]:
        heading = "Results by batch" if self._shown_by_batch else "Results"
        state, key = self.reading_state, self.clear_key
        return [
            result_rows.results_summary(self.rows, self._marked, heading, self._run_id, state, key, width),
            self.failure_line,
        ]

    def nothing_lines(self, width: int) -> list[Line]:
        return result_rows.empty_results_lines(self.rows.query_text, self.clear_key)

    def detail_lines(self, width: int) -> Sequence[Line]:
        key, histogram = self._histogram
        if (row := self.selected) is None:
            return []
        detail = result_rows.result_detail(row, self.session.store.currency, width)
        return [*detail, *result_rows.histogram_lines(histogram)] if key == result_key(row) else detail

    def _start_reading_rewards(self) -> None:
        start_worker(self, self._read_rewards, group="rewards", exclusive=True)

    async def _read_rewards(self) -> None:
        await asyncio.sleep(REWARDS_DELAY_S)
        row, library = self.selected, self.library
        if row is None or library is None:
            return
        try:
            histogram = await asyncio.to_thread(lambda: reward_histogram(library.result_source(), selection_of(row)))
        except StoreError:  # the reading of the rows reports it
            return
        self._histogram = result_key(row), histogram
        super().cursor_moved()


class MatrixTable(Table):
    """A table of tasks whose last column has one sign per attempt, of which the arrows select one."""

    @dataclass
    class AttemptChosen(LineList.ListMessage):
        """Another attempt was selected."""

    def __init__(self, tasks: FilteredList[TaskGroup]) -> None:
        self._tasks, self.attempt = tasks, 0
        listing = result_rows.MATRIX
        super().__init__(listing.columns, ListingRows(listing, tasks), can_sort=True, id="results")

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        room, attempts = self.visible_columns(width)[-1].width, self._tasks.shown[index].attempts
        signs = result_rows.attempt_cells(attempts, self.attempt, room, selected=self.is_highlighted(index))
        return [*[*super().row_cells(index, width)][:-1], (COLUMN_GAP, "plain"), *signs]

    def action_left(self) -> None:
        self._choose(self.shown_attempt - 1)

    def action_right(self) -> None:
        self._choose(self.shown_attempt + 1)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        *before, last = self.visible_columns(self._width - LIST_MARGIN)
        if offset is not None and (row := self.row_at(event)) is not None:
            start = 1 + sum(column.width + len(COLUMN_GAP) for column in before)
            n = len(self._tasks.shown[row].attempts)
            number = result_rows.attempt_at(offset.x - start, n, self.attempt, last.width)
            if number is not None:
                self.move_to(row)
                self._choose(number)

    @property
    def shown_attempt(self) -> int:
        """Number of the selected attempt of the task under the cursor, which may have fewer than the one before."""
        task = self._tasks.get(self.key)
        return min(self.attempt, len(task.attempts) - 1) if task is not None else 0

    def _choose(self, number: int) -> None:
        task = self._tasks.get(self.key)
        self.attempt = max(0, min(number, len(task.attempts) - 1)) if task is not None else 0
        self.refresh()
        self.post_message(self.AttemptChosen(self))


class TaskMatrixScreen(ListScreen[TaskGroup]):
    """The tasks of one row of results with all their attempts, pass@k and pass^k."""

    SCOPE = "matrix"
    FILTER_HINT = "words and fields, such as: #12 truncated success:0 attempts>=4"
    NOTHING = NO_TASK
    READS_LIBRARY = True

    def __init__(self, context: ScreenContext, row: ResultRow) -> None:
        rows = result_rows.MATRIX.rows()
        self._table = MatrixTable(rows)
        super().__init__(context, "matrix", rows, self._table)
        self._row = row
        self._estimates: Sequence[Estimate] = ()

    def selected_env(self) -> str:
        return self._row.env

    def action_open(self) -> None:
        if (task := self.selected) is not None and task.attempts:
            attempt = task.attempts[self._table.shown_attempt]
            attempts = episodes_filter([self._row], task=task.task_index)
            self.post_message(self.OpenEpisode(attempt.episode_id, attempts))

    def action_compare(self) -> None:
        attempts = task.rated if (task := self.selected) is not None else []
        if len(attempts) < 2:
            self.toast("this task has fewer than two attempts with a result to compare")
            return
        best, *_, worst = sorted(
            attempts, key=lambda each: (each.success, each.reward is not None, each.reward or 0), reverse=True
        )
        self.app.push_screen(CompareScreen(self.session, (best.episode_id, worst.episode_id), self.ui_state))

    def action_episodes(self) -> None:
        if (task := self.selected) is not None:
            self.post_message(self.EpisodesRequested(episodes_filter([self._row], task=task.task_index)))

    async def read(self, library: ResultLibrary) -> None:
        selection = selection_of(self._row)
        matrices = await asyncio.to_thread(lambda: task_matrices(library.result_source(), selection))
        matrix = next((each for each in matrices if each.env == self._row.env), None)
        self._estimates = matrix.estimates if matrix else ()
        self.rows.set_rows(matrix.tasks if matrix else [])

    def heading_lines(self, width: int) -> list[Line]:
        heading = result_rows.matrix_heading(self._row, self.rows, self.clear_key, width)
        return [heading, *([self.failure_line] if self.failure else result_rows.estimate_lines(self._estimates, width))]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return result_rows.attempt_lines(self.selected, self._table.attempt, width)

    @on(MatrixTable.AttemptChosen)
    def _attempt_chosen(self) -> None:
        self.cursor_moved()


class ComparisonScreen(ListScreen[result_rows.ComparedTask]):
    """The tasks that both rows have, and whether chance explains the difference of their success rates."""

    SCOPE = "comparison"
    FILTER_HINT = "words and fields, such as: result:lost difference<-0.2"
    NOTHING = NO_TASK
    READS_LIBRARY = True

    def __init__(self, context: ScreenContext, row: ResultRow, other: ResultRow) -> None:
        super().__init__(context, "comparison", *listed(result_rows.COMPARISON))
        self._compared = row, other
        self._selections = comparable_selections(row, other)
        self._comparison: Comparison | None = None
        self._first_attempts: Sequence[dict[int, str]] = ()

    def selected_env(self) -> str:
        return self._compared[0].env

    def action_open(self) -> None:
        if (task := self.selected) is not None:
            self.post_message(self.EpisodesRequested(episodes_filter(self._compared, task=task.task_index)))

    def action_compare(self) -> None:
        if (task := self.selected) is not None:
            selected, other = (attempts[task.task_index] for attempts in self._first_attempts)
            self.app.push_screen(CompareScreen(self.session, (other, selected), self.ui_state))

    async def read(self, library: ResultLibrary) -> None:
        env = self._compared[0].env
        comparison, self._first_attempts = await asyncio.to_thread(_compare, library, env, self._selections)
        self._comparison = comparison
        self.rows.set_rows(result_rows.compared_tasks(comparison))

    def heading_lines(self, width: int) -> list[Line]:
        heading = result_rows.comparison_heading(self._compared, self._selections, self.rows, self.clear_key, width)
        left, right = (attempts.keys() for attempts in self._first_attempts or ({}, {}))
        n_only = len(left - right), len(right - left)
        result = result_rows.comparison_lines(self._comparison, self._compared, n_only, width)
        below = [self.failure_line] if self.failure else result
        return [*heading, *below]


class ClustersScreen(ListScreen[Cluster]):
    """Failed episodes that ``query`` selects, in groups of the same environment, cause, action and answer."""

    SCOPE = "clusters"
    FILTER_HINT = "words and fields, such as: env:maze cause:loop episodes>=10"
    NOTHING = "No cluster matches the filter.", "No failed episode."
    READS_LIBRARY = True

    def __init__(self, context: ScreenContext, query: str) -> None:
        super().__init__(context, "clusters", *listed(result_rows.CLUSTERS))
        self._query = query

    def action_open(self) -> None:
        if (cluster := self.selected) is not None:
            query = self._query_of(cluster)
            fitting = query if len(query) <= MAX_CHARS else exact_terms(env=cluster.env, failure=cluster.failure)
            self.post_message(self.EpisodesRequested(fitting))

    def action_shortest(self) -> None:
        if (cluster := self.selected) is not None:
            self.post_message(self.OpenEpisode(cluster.representative, self._query_of(cluster)))

    async def read(self, library: ResultLibrary) -> None:
        self.rows.set_rows(await asyncio.to_thread(_clusters, library, self._query, dict(self.session.store.tags)))

    def heading_lines(self, width: int) -> list[Line]:
        return [*result_rows.cluster_heading(self.rows, self._query, self.clear_key, width), self.failure_line]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return result_rows.cluster_lines(self.selected, width)

    def _query_of(self, cluster: Cluster) -> str:
        terms = exact_terms(env=cluster.env, failure=cluster.failure)
        return f"({self._query}) {terms}" if self._query else terms


def _compare(
    library: ResultLibrary, env: str, selections: tuple[Selection, Selection]
) -> tuple[Comparison, list[dict[int, str]]]:
    """Return the comparison, and for each selection the id of the first rated attempt by task."""
    source = library.result_source()
    selected, other = matrices = [
        [matrix for matrix in task_matrices(source, selection) if matrix.env == env] for selection in selections
    ]
    first = [
        {task.task_index: task.rated[0].episode_id for matrix in each for task in matrix.tasks if task.rated}
        for each in matrices
    ]
    return compare(selected, other), first


def _clusters(library: ResultLibrary, query: str, tags: Mapping[str, Sequence[str]]) -> list[Cluster]:
    oldest_first = reversed(library.rows(check_files=False))
    try:
        return find_clusters(select_rows(oldest_first, query, library.lookups(), tags))
    except QueryError as exc:
        raise StoreError(f"the query of the episodes is invalid: {exc}") from exc
