"""Rows of the matrix of tasks and attempts, its pass@k and pass^k, and the selected attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import Cell, Column, FilteredRows, Line, Tone, join_parts, match_cells, sorting_cells
from agentgym_tui.presenters.episode_rows import format_exact
from agentgym_tui.presenters.number_format import UNKNOWN, format_count, format_reward, pluralize
from agentgym_tui.presenters.result_rows import player_text, rate_text
from agentgym_tui.presenters.text_width import fit
from agentgym_tui.state.query import FilteredList
from agentgym_tui.state.result_list import note_of
from runner.results.task_matrix import TaskGroup
from runner.types import Outcome

if TYPE_CHECKING:
    from runner.results.summary import ResultRow
    from runner.results.task_matrix import Attempt, Estimate

MATRIX_COLUMNS: Final = (
    Column("task", 6, right=True),
    Column("success", 7, right=True),
    Column("reward", 6, right=True, rank=2),
    Column("note", 15, rank=1),
    Column("attempts", None, min_width=9),
)

_SIGNS: Final[dict[str, tuple[str, Tone]]] = {
    "success": ("+", "good"),
    "failure": ("-", "plain"),
    "truncated": ("t", "warn"),
    "timeout": ("T", "warn"),
    "cancelled": ("c", "dim"),
    "error": ("E", "bad"),
    "interrupted": ("i", "dim"),
}
_UNSCORED: Final[tuple[str, Tone]] = ("u", "dim")
_LEGEND: Final = (
    "+ success", "- failure", "t round limit", "T time limit", "E error", "c cancelled", "i interrupted", "u unscored"
)  # fmt: skip
_SHORT_LEGEND: Final = "+ success - failure t rounds T time E error c cancelled i stopped u unscored"
_LEGEND_WIDTH: Final = len(" · ".join(_LEGEND))
_LABEL_WIDTH: Final = 8
_K_WIDTH: Final = 6
_SHOWN_K: Final = (1, 2, 3, 4, 6, 8, 12, 16)


class MatrixRows(FilteredRows[TaskGroup]):
    """Rows of ``MATRIX_COLUMNS`` over a list of tasks.

    Args:
        rows: the list.
        selected: returns the number of the selected attempt of each task.
    """

    def __init__(self, rows: FilteredList[TaskGroup], selected: Callable[[], int]) -> None:
        super().__init__(rows)
        self._selected = selected

    def line(self, index: int, width: int) -> Line:
        task = self.rows.shown[index]
        return [
            Cell(format_exact(task.task_index)),
            Cell(f"{task.n_success}/{len(task.rated)}"),
            Cell(format_reward(task.mean_reward)),
            Cell(note_of(task), "warn"),
            Cell(" ".join(sign_of(attempt)[0] for attempt in task.attempts)),
        ]

    def attempts(self, index: int, width: int, *, selected: bool) -> Line:
        """Return one sign per attempt, the chosen one in brackets if the task is selected; fills ``width`` columns."""
        attempts = self.rows.shown[index].attempts
        chosen = min(self._selected(), len(attempts) - 1) if selected else -1
        first = _first_attempt(len(attempts), self._selected(), width)
        shown = attempts[first : first + _n_attempts(len(attempts), width)]
        cells: list[Cell] = []
        for number, attempt in enumerate(shown, first):
            sign, tone = sign_of(attempt)
            before = "[" if number == chosen else "]" if number - 1 == chosen and number > first else " "
            cells += [Cell(before, "accent"), Cell(sign, tone)]
        last = first + len(shown) - 1
        cells.append(Cell("]" if chosen == last and shown else " ", "accent"))
        hidden = len(attempts) - len(shown)
        rest = f" {hidden} more" if hidden else ""
        return [*cells, Cell(fit(rest, max(width - 2 * len(shown) - 1, 0)), "dim")]


def attempt_at(x: int, n: int, selected: int, width: int) -> int | None:
    """Return the number of the attempt that is drawn ``x`` columns from the left; None if there is none.

    Args:
        x: the column.
        n: number of the task's attempts.
        selected: number of the selected attempt.
        width: columns of all attempts.
    """
    place = max(x - 1, 0) // 2
    number = _first_attempt(n, selected, width) + place
    return number if x >= 0 and place < _n_attempts(n, width) and number < n else None


def _n_attempts(n: int, width: int) -> int:
    """Return how many of ``n`` attempts fit into ``width`` columns, with room for the number of the others."""
    return n if 2 * n + 1 <= width else max((width - 10) // 2, 1)


def _first_attempt(n: int, selected: int, width: int) -> int:
    """Return the number of the first attempt that is shown, so that the selected one is shown, too."""
    return max(0, min(selected, n - 1) - _n_attempts(n, width) + 1)


def sign_of(attempt: Attempt) -> tuple[str, Tone]:
    """Return the sign of an attempt and its tone."""
    if not attempt.rated and attempt.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
        return _UNSCORED
    return _SIGNS[attempt.outcome.value]


def matrix_heading(
    row: ResultRow, tasks: FilteredList[TaskGroup], all_tasks: Sequence[TaskGroup], key: str, width: int
) -> Line:
    """Return the line above a matrix: whose it is, numbers of tasks and marked tasks, filter and order.

    Args:
        row: the row of the results that the matrix belongs to.
        tasks: the shown tasks.
        all_tasks: the tasks without the filter.
        key: label of the key that clears the filter.
        width: columns available.
    """
    zero, truncated = sum(task.zero_variance for task in all_tasks), sum(task.all_truncated for task in all_tasks)
    return join_parts(
        [
            [Cell(f"{row.env} {player_text(row)}", "head")],
            [Cell(pluralize(len(all_tasks), "task"))],
            match_cells(len(tasks.shown), tasks.query.text, key, width),
            [Cell(pluralize(sum(len(task.attempts) for task in all_tasks), "attempt"))],
            [Cell(f"{zero:,} zero variance", "warn")] if zero else [],
            [Cell(f"{truncated:,} all truncated", "warn")] if truncated else [],
            sorting_cells(tasks.sorting),
            [Cell(f"batch {row.batch_id}", "dim")] if row.batch_id else [],
        ],
        width,
    )


def estimate_lines(estimates: Sequence[Estimate], width: int) -> list[Line]:
    """Return four lines: some values of k, the tasks with as many scored attempts, and their mean pass@k and pass^k."""
    by_k = {each.k: each for each in estimates}
    shown = [by_k[k] for k in _SHOWN_K if k in by_k][: max((width - _LABEL_WIDTH) // _K_WIDTH, 1)]
    if not shown:
        return [[Cell("no scored attempts", "dim")]]
    rows: tuple[tuple[str, list[str], Tone], ...] = (
        ("k", [str(each.k) for each in shown], "dim"),
        ("tasks", [format_count(each.n_tasks) for each in shown], "dim"),
        ("pass@k", [rate_text(each.pass_at_k) for each in shown], "good"),
        ("pass^k", [rate_text(each.pass_hat_k) for each in shown], "accent"),
    )
    return [_estimate_line(label, values, tone) for label, values, tone in rows]


def _estimate_line(label: str, values: Sequence[str], tone: Tone) -> Line:
    cells = "".join(f"{value:>{_K_WIDTH}}" for value in values)
    return [Cell(f"{label:<{_LABEL_WIDTH}}", "dim"), Cell(cells, tone)]


def attempt_lines(task: TaskGroup | None, number: int, width: int) -> list[Line]:
    """Return two lines: the selected attempt, and what the signs mean."""
    whole = list(_LEGEND) if width >= _LEGEND_WIDTH else [_SHORT_LEGEND]
    legend = join_parts([[Cell(part, "dim")] for part in whole], width)
    if task is None or not task.attempts:
        return [[], legend]
    number = min(number, len(task.attempts) - 1)
    attempt = task.attempts[number]
    return [
        join_parts(
            [
                [Cell(f"task {format_exact(task.task_index)}", "head")],
                [Cell(f"attempt {number + 1} of {len(task.attempts)}")],
                [Cell(f"{sign_of(attempt)[0]} {attempt.outcome.value}", sign_of(attempt)[1])],
                [Cell(f"reward {format_reward(attempt.reward)}")],
                [Cell(attempt.episode_id or UNKNOWN, "dim")],
            ],
            width,
        ),
        legend,
    ]
