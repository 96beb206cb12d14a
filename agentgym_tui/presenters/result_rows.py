"""Rows of the Results screen, the lines above them, and the numbers and reward histogram of the selected row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import (
    Cell,
    Column,
    FilteredRows,
    Line,
    cost_cell,
    cost_part,
    count_cell,
    filter_cells,
    join_parts,
    key_line,
    match_cells,
    score_cells,
    sorting_cells,
)
from agentgym_tui.presenters.episode import gpu_parts
from agentgym_tui.presenters.live import column_chart
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_percent,
    format_reward,
    format_share,
    pluralize,
)
from agentgym_tui.presenters.text_width import ENV_WIDTH, cut, environment_text
from agentgym_tui.state.result_list import BASELINE, ResultList
from runner.types import MIX, GpuUse

if TYPE_CHECKING:
    from runner.results.summary import AgentGymMeans, Histogram, ResultRow

SPARK_WIDTH: Final = 10
RESULT_COLUMNS: Final = (
    Column("environment", ENV_WIDTH),
    Column("agent", 8),
    Column("model", None, min_width=9),
    Column("episodes", 8, right=True),
    Column("success", 7, right=True),
    Column("interval", 8, right=True),
    Column("errors", 6, right=True),
    Column("reward", 6, right=True, rank=1),
    Column("last runs", SPARK_WIDTH, rank=2),
    Column("rounds", 6, right=True, rank=3),
    Column("cost", 12, right=True, rank=4),
    Column("time", 7, right=True, rank=5),
    Column("tokens", 6, right=True, rank=6),
    Column("data", 9, rank=7),
    Column("batch", 26, rank=8),
)
MARK: Final = "◆ "
"""Marks the row that the next one is compared with."""

_BIN_WIDTH: Final = 2


class ResultRows(FilteredRows["ResultRow"]):
    """Rows of ``RESULT_COLUMNS`` over a list of results.

    Args:
        rows: the list.
        currency: returns the currency of costs.
    """

    def __init__(self, rows: ResultList, currency: Callable[[], str]) -> None:
        super().__init__(rows)
        self._results, self._currency = rows, currency

    def line(self, index: int, width: int) -> Line:
        row = self._results.shown[index]
        marked = self._results.is_marked(row)
        env = environment_text(row.env)
        return [
            Cell(f"{MARK}{env}" if marked else env, "accent" if marked else "plain"),
            Cell(row.agent or UNKNOWN),
            model_cell(row.model, is_baseline=row.baseline),
            Cell(format_count(row.n)),
            *score_cells(row.success_rate, row.success_interval, row.n_errors, row.score),
            Cell(sparkline(row.last_rates), "good"),
            Cell(_rounds(row)),
            cost_cell(row.cost, self._currency()),
            Cell(format_duration(row.completion_time_sec)),
            count_cell(row.tokens.total),
            Cell(data_text(row) or UNKNOWN, "dim"),
            Cell(row.batch_id if row.batch_id else "all", "dim"),
        ]


def model_cell(model: str | None, *, is_baseline: bool = True) -> Cell:
    """Return the models that answered, several as a warning; without one, ``baseline``, or that it is unknown."""
    if model is None:
        return Cell(BASELINE if is_baseline else UNKNOWN, "dim")
    return Cell(model or UNKNOWN, "warn" if MIX in model else "plain")


def rate_text(rate: float | None) -> str:
    """Return a success rate as a percentage; an en dash where no episode is scored."""
    return format_percent(None if rate is None else 100 * rate)


def sparkline(rates: list[float]) -> str:
    """Return the success rates of the newest batches as columns, the newest at the right."""
    return column_chart(rates, SPARK_WIDTH, 1, 0.0, 1.0)[0] if rates else ""


def data_text(row: ResultRow) -> str:
    """Return the shape of requests, the data label, the mode and the limits, each where it is not the usual one."""
    mode = row.mode if row.mode != "strict" else ""
    return " ".join(filter(None, (row.shape, row.data_label, mode, row.limits)))


def player_text(row: ResultRow) -> str:
    """Return agent and model, or that the agent is a baseline."""
    return f"{row.agent or UNKNOWN} {model_cell(row.model, is_baseline=row.baseline).text}"


def results_summary(results: ResultList, state: str, key: str, width: int, *, run_id: str = "") -> Line:
    """Return the line above the table: what is shown, filter, order and the marked row.

    Args:
        results: the list.
        state: additional status, such as how many files have been read; may be empty.
        key: label of the key that clears the filter.
        width: columns available.
        run_id: the only battery or batch that is shown; "" for all.
    """
    marked = results.marked
    return join_parts(
        [
            [Cell("Results by batch" if results.by_batch else "Results", "head")],
            [Cell(pluralize(results.n_episodes, "episode"))],
            filter_cells(f"run {run_id}", key, 2 * width) if run_id else [],
            match_cells(len(results.shown), results.query.text, key, width),
            [Cell(f"{MARK}compares with {_short_name(marked)}", "accent")] if marked else [],
            sorting_cells(results.sorting),
            [Cell(state, "warn")] if state else [],
        ],
        width,
    )


def empty_results_lines(results: ResultList, clear_key: str) -> list[Line]:
    """Return the text shown while the table has no rows."""
    if results.query:
        words = results.query.text
        return [
            [Cell("No result matches ", "head"), Cell(words, "accent")],
            key_line(clear_key, "shows all results"),
        ]
    return [
        [Cell("No results yet.", "head")],
        [Cell("  They are computed from stored episodes, and appear when the first one has ended.")],
    ]


def result_detail(row: ResultRow, currency: str, width: int) -> list[Line]:
    """Return lines about the selected row: outcomes, means and sums over its episodes, and where its time went."""
    times = [[Cell(cut(f"time: {row.time_text}", width), "dim")]] if row.time_shares else []
    return [_outcomes_line(row, width), _usage_line(row, currency, width), *times]


def _short_name(row: ResultRow) -> str:
    name = f"{row.env} {player_text(row)}"
    return f"{name} {row.batch_id}" if row.batch_id else name


def _rounds(row: ResultRow) -> str:
    return format_reward(None if row.avg_rounds is None else round(row.avg_rounds, 1))


def _outcomes_line(row: ResultRow, width: int) -> Line:
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in row.outcomes.items())
    return join_parts(
        [
            [Cell(f"{row.env} {player_text(row)}", "head")],
            [Cell(f"batch {row.batch_id}")] if row.batch_id else [],
            [Cell(outcomes)],
            [Cell(f"{row.n_unscored:,} unscored", "warn")] if row.n_unscored else [],
            [Cell(agentgym_text(row.agentgym), "dim")] if row.agentgym is not None else [],
            [Cell(data, "dim")] if (data := data_text(row)) else [],
        ],
        width,
    )


def agentgym_text(means: AgentGymMeans) -> str:
    """Return mean score and success rate as AgentGym's Evaluator computes them."""
    score = format_reward(None if means.score is None else round(means.score, 3))
    return f"AgentGym: score {score}, success {rate_text(means.success_rate)}"


def _usage_line(row: ResultRow, currency: str, width: int) -> Line:
    tokens = row.tokens
    gpu = GpuUse(energy_j=row.energy_j, gpu_s=row.gpu_s, energy_shared=row.energy_shared)
    usage = f"{format_count(tokens.prompt)} + {format_count(tokens.completion)} tokens"
    return join_parts(
        [
            [Cell(f"{_rounds(row)}{(' round' if row.avg_rounds == 1 else ' rounds')}")],
            [Cell(f"{format_duration(row.completion_time_sec)} per episode")],
            [Cell(usage)] if tokens.total else [],
            cost_part(row.cost, currency),
            [Cell(f"answer {format_duration(row.latency_s)}")] if row.latency_s is not None else [],
            *gpu_parts(gpu, " per episode"),
            [Cell("last runs ", "dim"), Cell(sparkline(row.last_rates), "good")] if row.last_rates else [],
        ],
        width,
    )


def histogram_lines(histogram: Histogram | None) -> list[Line]:
    """Return three lines: the histogram of the rewards, with a legend and an axis."""
    if histogram is None:
        return [[Cell("no scored episodes", "dim")]]
    counts = histogram.counts
    bars = [_without_empty(line, counts) for line in column_chart(counts, len(counts), 2, 0, max(counts))]
    low, high = format_reward(histogram.low), format_reward(histogram.high)
    axis = f"{low}{high:>{_BIN_WIDTH * len(counts) - len(low)}}"
    most, total = max(counts), sum(counts)
    size = (histogram.high - histogram.low) / len(counts)
    start = histogram.low + counts.index(most) * size
    span = f"{format_reward(start)} to {format_reward(start + size)}"
    legend: list[str] = [
        f"  rewards of {pluralize(total, 'scored episode')}",
        f"  {format_share(most, total)} of them from {span}",
    ]
    lines: list[Line] = [[Cell(bar, "accent"), Cell(text, "dim")] for bar, text in zip(bars, legend, strict=True)]
    return [*lines, [Cell(axis, "dim")]]


def _without_empty(line: str, counts: list[int]) -> str:
    return "".join((" " if not count else column) * _BIN_WIDTH for column, count in zip(line, counts, strict=True))
