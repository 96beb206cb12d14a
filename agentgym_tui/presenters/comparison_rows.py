"""Rows of a comparison of two selections by task, and the lines above them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import Cell, Column, FilteredRows, Line, Tone, join_parts, match_cells, sorting_cells
from agentgym_tui.presenters.episode_rows import format_exact
from agentgym_tui.presenters.number_format import UNKNOWN, pluralize
from agentgym_tui.presenters.result_rows import player_text, rate_text
from agentgym_tui.state.query import FilteredList
from agentgym_tui.state.result_list import ComparedTask, Result

if TYPE_CHECKING:
    from runner.results.comparison import Comparison
    from runner.results.summary import ResultRow, Selection

COMPARISON_COLUMNS: Final = (
    Column("task", 6, right=True),
    Column("result", 8),
    Column("success", 8, right=True),
    Column("baseline", 8, right=True),
    Column("difference", 11, right=True),
    Column("", None, min_width=1),
)
_RESULTS: Final[dict[Result, tuple[str, Tone]]] = {
    "won": ("▲ won", "good"),
    "lost": ("▼ lost", "bad"),
    "tied": ("= tied", "dim"),
}


class ComparisonRows(FilteredRows[ComparedTask]):
    """Rows of ``COMPARISON_COLUMNS`` over a list of compared tasks."""

    def line(self, index: int, width: int) -> Line:
        pair, result = self.rows.shown[index]
        text, tone = _RESULTS[result]
        points = f"{100 * (pair.rate - pair.baseline_rate):+.0f} points"
        return [
            Cell(format_exact(pair.task.task_index)),
            Cell(text, tone),
            Cell(rate_text(pair.rate)),
            Cell(rate_text(pair.baseline_rate), "dim"),
            Cell(UNKNOWN if result == "tied" else points, tone),
            Cell(""),
        ]


def comparison_heading(
    row: ResultRow,
    baseline: ResultRow,
    selections: tuple[Selection, Selection],
    tasks: FilteredList[ComparedTask],
    key: str,
    width: int,
) -> list[Line]:
    """Return two lines that name the compared selections, with filter and order.

    Args:
        row: the selection that is compared.
        baseline: the marked row, with which it is compared.
        selections: what both select; a batch is compared with the others of the same agent and model.
        tasks: the shown tasks.
        key: label of the key that clears the filter.
        width: columns available.
    """
    return [
        join_parts(
            [
                [Cell(f"{row.env} {player_text(row)}", "head")],
                [Cell(_batches(selections[0]))],
                match_cells(len(tasks.shown), tasks.query.text, key, width),
                sorting_cells(tasks.sorting),
            ],
            width,
        ),
        join_parts(
            [
                [Cell(f"baseline: {player_text(baseline)}", "head")],
                [Cell(_batches(selections[1]))],
            ],
            width,
        ),
    ]


def comparison_lines(comparison: Comparison | None, width: int) -> list[Line]:
    """Return three lines: tasks won, lost and tied, both success rates, and the meaning of the p-value."""
    if comparison is None:
        return []
    n_won, n_lost = len(comparison.won), len(comparison.lost)
    if not comparison.n_paired:
        return [[Cell("no task was played by both with an outcome that counts", "warn")]]
    return [
        join_parts(
            [
                [Cell(f"▲ {n_won:,} won", "good" if n_won else "dim")],
                [Cell(f"▼ {n_lost:,} lost", "bad" if n_lost else "dim")],
                [Cell(f"= {comparison.n_tied:,} tied")],
                [Cell(f"of {pluralize(comparison.n_paired, 'common task')}", "dim")],
                [Cell(f"{comparison.n_unpaired:,} only in one", "dim")] if comparison.n_unpaired else [],
            ],
            width,
        ),
        join_parts(
            [
                [Cell(f"success {rate_text(comparison.success_rate)}")],
                [Cell(f"baseline {rate_text(comparison.baseline_rate)}")],
                [Cell(comparison.shape_note, "warn")] if comparison.shape_note else [],
            ],
            width,
        ),
        _verdict(comparison, width),
    ]


def _verdict(comparison: Comparison, width: int) -> Line:
    from runner.results.comparison import SIGNIFICANCE

    p_value = f"p = {comparison.p_value:.3f}" if comparison.p_value >= 0.001 else "p < 0.001"
    meaning = Cell("the difference may be chance", "dim")
    if comparison.is_worse:
        meaning = Cell("worse than the baseline by more than chance", "bad")
    elif comparison.p_value <= SIGNIFICANCE:
        meaning = Cell("better than the baseline by more than chance", "good")
    return join_parts([[Cell(p_value, "head")], [meaning], [Cell("exact sign test", "dim")]], width)


def _batches(selection: Selection) -> str:
    if selection.batch is not None:
        return f"batch {selection.batch}"
    return "all other batches" if selection.excluded_batch is not None else "all batches"
