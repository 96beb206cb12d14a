"""The results: by environment, agent and model, the matrix of tasks and attempts, comparisons, and failure clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from agentgym_tui.presenters.cells import (
    ENV_WIDTH,
    Cell,
    Field,
    Line,
    Listing,
    Tone,
    cost_cell,
    cost_part,
    count_cell,
    cut,
    environment_cell,
    filter_cells,
    fit,
    join_parts,
    key_line,
    match_cells,
    sorting_cells,
    wrap_text,
)
from agentgym_tui.presenters.episode import gpu_parts
from agentgym_tui.presenters.episode_rows import format_exact
from agentgym_tui.presenters.live import column_chart, sparkline
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_interval,
    format_reward,
    format_share,
    pluralize,
    rate_text,
)
from agentgym_tui.safe_text import mask_secrets, masked_line, player_text
from agentgym_tui.state.episode_list import exact_terms, model_runs
from agentgym_tui.state.query import FilteredList, search_text
from runner.results.clusters import Cluster
from runner.results.comparison import SIGNIFICANCE, Comparison, PairedTask
from runner.results.summary import AgentGymMeans, Histogram, ResultRow, Selection, selection_of
from runner.results.task_matrix import Attempt, Estimate, TaskGroup
from runner.types import MIX, SHAPES, GpuUse, Outcome

SPARK_WIDTH: Final = 10
BASELINE: Final = "baseline"
"""Stands for the model of an agent that used none."""
MARK: Final = "◆"
_BIN_WIDTH: Final = 2


# fmt: off
def result_listing(is_marked: Callable[[ResultRow], bool], currency: Callable[[], str]) -> Listing[ResultRow]:
    return Listing(result_key, _result_text, [
        Field("environment", ENV_WIDTH, lambda row: row.env, "text", "environment", name="env", most=28,
              cell=lambda row: _env_cell(row.env, is_marked=is_marked(row))),
        Field("agent", 8, lambda row: row.agent, "text", "agent", most=16),
        Field("model", None, lambda row: row.model, min_width=9, most=60,
              cell=lambda row: model_cell(row.model, is_baseline=row.baseline)),
        Field("model", 0, lambda row: model_runs(row.model), "text", "model that answered; none for a baseline"),
        Field("episodes", 8, lambda row: row.n, "number", "number of episodes",
              cell=lambda row: Cell(format_count(row.n))),
        Field("success", 7, lambda row: row.success_rate, "number", "success rate from 0 to 1",
              cell=lambda row: Cell(rate_text(row.success_rate))),
        Field("95% CI", 8, lambda row: row.success_interval[0] if row.success_interval else None, right=True,
              cell=lambda row: Cell(format_interval(row.success_interval), "dim")),
        Field("errors", 6, lambda row: row.n_errors, "number", "number of episodes that ended with an error",
              cell=lambda row: count_cell(row.n_errors, "bad")),
        Field("reward", 6, lambda row: row.score, "number", "mean reward", rank=2,
              cell=lambda row: Cell(format_reward(row.score))),
        Field("last runs", SPARK_WIDTH, lambda row: row.last_rates[-1] if row.last_rates else None, rank=2,
              cell=lambda row: Cell(_last_runs(row), "good")),
        Field("rounds", 6, lambda row: row.avg_rounds, "number", "mean number of steps", rank=3,
              cell=lambda row: Cell(_rounds(row))),
        Field("cost", 12, lambda row: row.cost, "number", "sum of the costs", rank=4,
              cell=lambda row: cost_cell(row.cost, currency())),
        Field("time", 7, lambda row: row.completion_time_sec, "duration", "mean duration, such as 90s or 2m", rank=5,
              cell=lambda row: Cell(format_duration(row.completion_time_sec))),
        Field("tokens", 6, lambda row: row.tokens.total, "number", "sum of the tokens", rank=6,
              cell=lambda row: count_cell(row.tokens.total)),
        Field("data", 9, lambda row: row.data_label, "text", "label of the environment's data", rank=7, most=24,
              cell=lambda row: Cell(row.data_label or UNKNOWN, "dim")),
        Field("batch", 26, lambda row: row.batch_id, "id", "beginning of the id of the batch", rank=8,
              cell=lambda row: Cell(row.batch_id or "all", "dim")),
        Field("mode", 0, lambda row: row.mode, "text", "rules", values=("strict", "compat")),
        Field("shape", 0, lambda row: row.shape, "text", "how requests differ, as the server refused the usual",
              values=SHAPES),
        Field("limits", 9, lambda row: row.limits, "text", "limits that are not 15 rounds and 300 s", rank=1, most=24,
              cell=lambda row: Cell(_unusual(row), "dim"), hides=True),
    ])
# fmt: on


def _env_cell(env: str, *, is_marked: bool = False) -> Cell:
    return environment_cell(env, f" {MARK}", "accent") if is_marked else environment_cell(env)


def _result_text(row: ResultRow) -> str:
    names = row.env, row.agent, row.model or BASELINE, row.data_label, row.mode, row.shape, row.limits, row.batch_id
    return search_text(names)


def model_cell(model: str | None, *, is_baseline: bool = True) -> Cell:
    """Return the models that answered, several as a warning."""
    if model is None:
        return Cell(BASELINE if is_baseline else UNKNOWN, "dim")
    return Cell(masked_line(model, 80) or UNKNOWN, "warn" if MIX in model else "plain")


def _last_runs(row: ResultRow) -> str:
    return sparkline(row.last_rates, SPARK_WIDTH, 1.0)


def _unusual(row: ResultRow) -> str:
    """Return the limits, the mode and the shape of requests, each where it is not the usual one."""
    return " ".join(filter(None, (row.limits, row.mode if row.mode != "strict" else "", row.shape)))


def _player(row: ResultRow) -> str:
    return player_text(row.agent or UNKNOWN, model_cell(row.model, is_baseline=row.baseline).text)


def results_summary(
    results: FilteredList[ResultRow],
    marked: ResultRow | None,
    heading: str,
    run_id: str,
    state: str,
    key: str,
    width: int,
) -> Line:
    compared = f"{marked.env} {_player(marked)} {marked.batch_id or ''}".rstrip() if marked else ""
    parts: list[Line] = [
        [Cell(heading, "head")],
        [Cell(pluralize(sum(row.n for row in results.all_rows), "episode"))],
        filter_cells(f"run {run_id}", key, 2 * width) if run_id else [],
        match_cells(len(results.shown), results.query.text, key, width),
        [Cell(f"{MARK} compares with {compared}", "accent")] if marked else [],
        sorting_cells(results.sorting),
        [Cell(state, "warn")] if state else [],
    ]
    return join_parts(parts, width)


def empty_results_lines(words: str, clear_key: str) -> list[Line]:
    if words:
        head: Line = [Cell("No result matches ", "head"), Cell(words, "accent")]
        return [head, key_line(clear_key, "shows all results")]
    return [
        [Cell("No results yet.", "head")],
        [Cell("  They are computed from stored episodes, and appear when the first one has ended.")],
    ]


def result_detail(row: ResultRow, currency: str, width: int) -> list[Line]:
    """Return outcomes, means and sums over the episodes of a row, and where its time went."""
    tokens, data = row.tokens, f"{row.data_label} {_unusual(row)}".strip()
    gpu = GpuUse(energy_j=row.energy_j, gpu_s=row.gpu_s, energy_shared=row.energy_shared)
    outcomes: list[Line] = [
        [Cell(f"{row.env} {_player(row)}", "head")],
        [Cell(f"batch {row.batch_id}")] if row.batch_id else [],
        [Cell(", ".join(f"{count:,} {outcome}" for outcome, count in row.outcomes.items()))],
        [Cell(f"{row.n_unscored:,} unscored", "warn")] if row.n_unscored else [],
        [Cell(agentgym_text(row.agentgym), "dim")] if row.agentgym is not None else [],
        [Cell(data, "dim")] if data else [],
    ]
    usage: list[Line] = [
        [Cell(f"{_rounds(row)}{' round' if row.avg_rounds == 1 else ' rounds'}")],
        [Cell(f"{format_duration(row.completion_time_sec)} per episode")],
        [Cell(f"{format_count(tokens.prompt)} + {format_count(tokens.completion)} tokens")] if tokens.total else [],
        cost_part(row.cost, currency),
        [Cell(f"answer {format_duration(row.latency_s)}")] if row.latency_s is not None else [],
        *gpu_parts(gpu, " per episode"),
        [Cell("last runs ", "dim"), Cell(_last_runs(row), "good")] if row.last_rates else [],
    ]
    times = [[Cell(cut(f"time: {row.time_text}", width), "dim")]] if row.time_shares else []
    return [join_parts(outcomes, width), join_parts(usage, width), *times]


def _rounds(row: ResultRow) -> str:
    return format_reward(None if row.avg_rounds is None else round(row.avg_rounds, 1))


def agentgym_text(means: AgentGymMeans) -> str:
    score = format_reward(None if means.score is None else round(means.score, 3))
    return f"AgentGym: score {score}, success {rate_text(means.success_rate)}"


def histogram_lines(histogram: Histogram | None) -> list[Line]:
    if histogram is None:
        return [[Cell("no scored episodes", "dim")]]
    if histogram.rewards:
        rewards = " · ".join(map(format_reward, histogram.rewards))
        newest = ", the newest last" if len(histogram.rewards) > 1 else ""
        count = pluralize(len(histogram.rewards), "scored episode")
        return [[Cell(f"rewards of {count}{newest}: ", "dim"), Cell(rewards, "accent")]]
    counts = histogram.counts
    bars = [
        "".join((column if n else " ") * _BIN_WIDTH for column, n in zip(line, counts, strict=True))
        for line in column_chart(counts, len(counts), 2, 0, max(counts))
    ]
    low, high = format_reward(histogram.low), format_reward(histogram.high)
    axis = f"{low}{high:>{_BIN_WIDTH * len(counts) - len(low)}}"
    most, total = max(counts), sum(counts)
    size = (histogram.high - histogram.low) / len(counts)
    start = histogram.low + counts.index(most) * size
    span = f"{format_reward(start)} to {format_reward(start + size)}"
    legend = f"  rewards of {pluralize(total, 'scored episode')}", f"  {format_share(most, total)} of them from {span}"
    lines: list[Line] = [[Cell(bar, "accent"), Cell(text, "dim")] for bar, text in zip(bars, legend, strict=True)]
    return [*lines, [Cell(axis, "dim")]]


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
_SHORT_LEGEND: Final = "+ success - failure t limit T timeout E error c cancelled i stopped u unscored"
_LEGEND_WIDTH: Final = len(" · ".join(_LEGEND))
_LABEL_WIDTH: Final = 8
_K_WIDTH: Final = 6
_SHOWN_K: Final = (1, 2, 3, 4, 6, 8, 12, 16)


def note_of(task: TaskGroup) -> str:
    """Return what makes the group of a task useless for group-relative training."""
    if task.zero_variance:
        return "zero, truncated" if task.all_truncated else "zero variance"
    return "all truncated" if task.all_truncated else ""


# fmt: off
MATRIX: Final = Listing[TaskGroup](
    lambda task: str(task.task_index),
    lambda task: f"#{task.task_index} {note_of(task)} {' '.join({each.outcome.value for each in task.attempts})}",
    [
        Field("task", 6, lambda task: task.task_index, "number", "index of the task",
              cell=lambda task: Cell(format_exact(task.task_index))),
        Field("success", 7, lambda task: task.success_rate, "number", "success rate from 0 to 1",
              cell=lambda task: Cell(f"{task.n_success}/{len(task.rated)}")),
        Field("reward", 6, lambda task: task.mean_reward, "number", "mean reward", rank=2,
              cell=lambda task: Cell(format_reward(task.mean_reward))),
        Field("note", 15, note_of, "text", "why it is useless for training", rank=1,
              cell=lambda task: Cell(note_of(task), "warn"),
              values=("zero variance", "all truncated", "zero, truncated")),
        Field("attempts", None, lambda task: len(task.attempts), "number", "number of attempts",
              min_width=9, right=False,
              cell=lambda task: Cell(" ".join(sign_of(each)[0] for each in task.attempts))),
    ],
)
# fmt: on


def attempt_cells(attempts: Sequence[Attempt], number: int, width: int, *, selected: bool) -> Line:
    """Return one sign per attempt, that with a number in brackets if its task is selected; fills ``width`` columns."""
    chosen = min(number, len(attempts) - 1) if selected else -1
    window = shown_attempts(len(attempts), number, width)
    cells: list[Cell] = []
    for each in window:
        before = "[" if each == chosen else "]" if each - 1 == chosen and each > window.start else " "
        cells += [Cell(before, "accent"), Cell(*sign_of(attempts[each]))]
    cells.append(Cell("]" if window and chosen == window[-1] else " ", "accent"))
    n_hidden = len(attempts) - len(window)
    rest = f" {n_hidden} more" if n_hidden else ""
    return [*cells, Cell(fit(rest, max(width - 2 * len(window) - 1, 0)), "dim")]


def shown_attempts(n: int, selected: int, width: int) -> range:
    """Return those of ``n`` attempts that fit, the selected one among them, with room for the number of the others."""
    n_fitting = n if 2 * n + 1 <= width else max((width - 10) // 2, 1)
    first = max(0, min(selected, n - 1) - n_fitting + 1)
    return range(first, first + n_fitting)


def attempt_at(x: int, n: int, selected: int, width: int) -> int | None:
    """Return the number of the attempt that is drawn ``x`` columns from the left."""
    window, place = shown_attempts(n, selected, width), max(x - 1, 0) // 2
    return window[place] if x >= 0 and place < len(window) else None


def sign_of(attempt: Attempt) -> tuple[str, Tone]:
    if not attempt.rated and attempt.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
        return _UNSCORED
    return _SIGNS[attempt.outcome.value]


def matrix_heading(row: ResultRow, tasks: FilteredList[TaskGroup], key: str, width: int) -> Line:
    every = tasks.all_rows
    zero, truncated = sum(task.zero_variance for task in every), sum(task.all_truncated for task in every)
    return join_parts(
        [
            [Cell(f"Tasks of {row.env} {_player(row)}", "head")],
            [Cell(pluralize(len(every), "task"))],
            match_cells(len(tasks.shown), tasks.query.text, key, width),
            [Cell(pluralize(sum(len(task.attempts) for task in every), "attempt"))],
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
    return [
        [Cell(f"{label:<{_LABEL_WIDTH}}", "dim"), Cell("".join(f"{value:>{_K_WIDTH}}" for value in values), tone)]
        for label, values, tone in rows
    ]


def attempt_lines(task: TaskGroup | None, number: int, width: int) -> list[Line]:
    whole = list(_LEGEND) if width >= _LEGEND_WIDTH else [_SHORT_LEGEND]
    legend = join_parts([[Cell(part, "dim")] for part in whole], width)
    if task is None or not task.attempts:
        return [[], legend]
    number = min(number, len(task.attempts) - 1)
    attempt = task.attempts[number]
    sign, tone = sign_of(attempt)
    parts: list[Line] = [
        [Cell(f"task {format_exact(task.task_index)}", "head")],
        [Cell(f"attempt {number + 1} of {len(task.attempts)}")],
        [Cell(f"{sign} {attempt.outcome.value}", tone)],
        [Cell(f"reward {format_reward(attempt.reward)}")],
        [Cell(attempt.episode_id or UNKNOWN, "dim")],
    ]
    return [join_parts(parts, width), legend]


Result: TypeAlias = Literal["won", "lost", "tied"]
_RESULTS: Final[dict[Result, tuple[str, Tone]]] = {
    "won": ("▲ won", "good"),
    "lost": ("▼ lost", "bad"),
    "tied": ("= tied", "dim"),
}


class ComparedTask(NamedTuple):
    pair: PairedTask
    result: Result

    @property
    def task_index(self) -> int:
        return self.pair.task.task_index

    @property
    def difference(self) -> float:
        return self.pair.rate - self.pair.baseline_rate


def compared_tasks(comparison: Comparison) -> list[ComparedTask]:
    pairs: dict[Result, Sequence[PairedTask]] = {
        "lost": comparison.lost, "won": comparison.won, "tied": comparison.tied
    }  # fmt: skip
    return [ComparedTask(pair, result) for result, each in pairs.items() for pair in each]


def _difference_cell(task: ComparedTask) -> Cell:
    rounded = f"{100 * task.difference:+.0f}"  # a difference is never shown as none
    points = f"{rounded if rounded[1:] != '0' else rounded[0] + '<1'} points"
    return Cell(UNKNOWN if task.result == "tied" else points, _RESULTS[task.result][1])


# fmt: off
COMPARISON: Final = Listing[ComparedTask](
    lambda task: str(task.task_index),
    lambda task: f"#{task.task_index} {task.result}",
    [
        Field("task", 6, lambda task: task.task_index, "number", "index of the task",
              cell=lambda task: Cell(format_exact(task.task_index))),
        Field("result", 8, lambda task: task.result, "text", "how the selected row did", values=("won", "lost", "tied"),
              cell=lambda task: Cell(*_RESULTS[task.result])),
        Field("success", 8, lambda task: task.pair.rate, "number", "success rate from 0 to 1",
              cell=lambda task: Cell(rate_text(task.pair.rate))),
        Field("against", 8, lambda task: task.pair.baseline_rate, "number", "success rate of the other row",
              cell=lambda task: Cell(rate_text(task.pair.baseline_rate), "dim")),
        Field("difference", 11, lambda task: task.difference, "number", "difference of the rates",
              cell=_difference_cell),
        Field("", None, cell=lambda task: Cell(""), min_width=1),
    ],
)
# fmt: on


def comparison_heading(
    rows: tuple[ResultRow, ResultRow],
    selections: tuple[Selection, Selection],
    tasks: FilteredList[ComparedTask],
    key: str,
    width: int,
) -> list[Line]:
    row, other = rows
    first: list[Line] = [
        [Cell(f"{row.env} {_player(row)}", "head")],
        [Cell(_batches(selections[0]))],
        match_cells(len(tasks.shown), tasks.query.text, key, width),
        sorting_cells(tasks.sorting),
    ]
    second: list[Line] = [[Cell(f"against {_player(other)}", "head")], [Cell(_batches(selections[1]))]]
    return [join_parts(first, width), join_parts(second, width)]


def comparison_lines(
    comparison: Comparison | None, rows: tuple[ResultRow, ResultRow], n_only: tuple[int, int], width: int
) -> list[Line]:
    """Return who won how many tasks, how many scored ones only each of them has, the rates and what they mean."""
    if comparison is None:
        return []
    n_won, n_lost = len(comparison.won), len(comparison.lost)
    if not comparison.n_paired:
        return [[Cell("no task has a success or failure in both rows: nothing to compare", "warn")]]
    row, other = map(_player, rows)
    tasks: list[Line] = [
        [Cell(f"{row} ▲ {n_won:,} won", "good" if n_won else "dim")],
        [Cell(f"▼ {n_lost:,} lost", "bad" if n_lost else "dim")],
        [Cell(f"= {comparison.n_tied:,} tied")],
        [Cell(f"of {pluralize(comparison.n_paired, 'common task')}", "dim")],
        *([Cell(f"{n:,} only in {name}", "dim")] for n, name in zip(n_only, (row, other), strict=True) if n),
    ]
    rates: list[Line] = [
        [Cell(f"success {rate_text(comparison.success_rate)}")],
        [Cell(f"against {rate_text(comparison.baseline_rate)}")],
        [Cell(comparison.shape_note, "warn")] if comparison.shape_note else [],
    ]
    p_value = f"p = {comparison.p_value:.3f}" if comparison.p_value >= 0.001 else "p < 0.001"
    meaning = Cell("the difference may be chance", "dim")
    if comparison.is_worse:
        meaning = Cell("worse by more than chance", "bad")
    elif comparison.p_value <= SIGNIFICANCE:
        meaning = Cell("better by more than chance", "good")
    verdict: list[Line] = [[Cell(p_value, "head")], [meaning], [Cell("exact sign test", "dim")]]
    return [join_parts(parts, width) for parts in (tasks, rates, verdict)]


def _batches(selection: Selection) -> str:
    if selection.batch is not None:
        return f"batch {selection.batch}"
    return "all other batches" if selection.excluded_batch is not None else "all batches"


MAX_AGENTS: Final = 6
# fmt: off
CLUSTERS: Final = Listing[Cluster](
    lambda cluster: repr((cluster.env, cluster.failure)),
    lambda cluster: f"{cluster.env} {cluster.failure} {' '.join(cluster.agents)} {cluster.representative}",
    [
        Field("episodes", 8, lambda cluster: cluster.n, "number", "number of episodes",
              cell=lambda cluster: Cell(f"{cluster.n:,}", "head")),
        Field("environment", ENV_WIDTH, lambda cluster: cluster.env, "text", "environment", name="env",
              cell=lambda cluster: _env_cell(cluster.env), most=28),
        Field("cause", 7, lambda cluster: cluster.cause, "text", "what kind of failure it is", tone="bad"),
        Field("action", 20, lambda cluster: cluster.action, "text", "template of the action", most=40),
        Field("answer", None, lambda cluster: cluster.observation, "text", "template of the answer to it",
              min_width=36),
        Field("flags", 18, cell=lambda cluster: Cell(_counts(cluster.flags), "dim"), rank=1),
        Field("flag", 0, lambda cluster: tuple(cluster.flags), "text", "a flag of an episode"),
        Field("agent", 0, lambda cluster: tuple(cluster.agents), "text", "an agent, with its model"),
        Field("representative", 26, lambda cluster: cluster.representative, tone="dim", rank=2),
    ],
)
# fmt: on


def cluster_heading(clusters: FilteredList[Cluster], query: str, key: str, width: int) -> list[Line]:
    counts: list[Line] = [
        [Cell("Failures", "head")],
        [Cell(pluralize(sum(cluster.n for cluster in clusters.all_rows), "failed episode"))],
        [Cell(pluralize(clusters.n_rows, "cluster"))],
        match_cells(len(clusters.shown), clusters.query.text, key, width),
        sorting_cells(clusters.sorting),
    ]
    return [join_parts(counts, width), [Cell(f"of {mask_secrets(query)}" if query else "of all episodes", "dim")]]


def cluster_lines(cluster: Cluster | None, width: int) -> list[Line]:
    if cluster is None:
        return []
    step = "" if cluster.step is None else f", step {cluster.step:,}"
    shortest = f"shortest: {cluster.representative}{step}"
    agents = dict(list(cluster.agents.items())[:MAX_AGENTS])
    rows = wrap_text(cluster.text, width, 2)
    return [*([Cell(row, "head")] for row in rows), [Cell(_counts(agents))], [Cell(shortest, "dim")]]


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{masked_line(name)} {n:,}" for name, n in numbers.items()) or UNKNOWN


def result_key(row: ResultRow) -> str:
    return repr((row.env, row.data_label, row.mode, row.agent, row.model, row.shape, row.limits, row.batch_id))


def comparable_selections(row: ResultRow, baseline: ResultRow) -> tuple[Selection, Selection]:
    """A batch is compared with the other batches of the same agent and model."""
    selected, other = selection_of(row), selection_of(baseline)
    if replace(selected, batch=None) == replace(other, batch=None):
        if other.batch is None:
            other = replace(other, excluded_batch=selected.batch)
        elif selected.batch is None:
            selected = replace(selected, excluded_batch=other.batch)
    return selected, other


def episodes_filter(rows: Sequence[ResultRow], **terms: object) -> str:
    """Return the query that selects exactly the episodes of rows of one environment, with further exact ``terms``."""
    first = rows[0]
    batches = tuple(row.batch_id for row in rows if row.batch_id is not None)
    named = {
        "env": first.env,
        "agent": tuple(dict.fromkeys(row.agent for row in rows)),
        "models": tuple(dict.fromkeys(row.model or "" for row in rows)),
        **terms,
    }
    if len(batches) == len(rows):
        named["batch"] = batches
    if first.mode != "strict":
        named["mode"] = first.mode
    if any(shapes := tuple(dict.fromkeys(row.shape for row in rows))):
        named["shape"] = shapes
    if any(limits := tuple(dict.fromkeys(row.limits for row in rows))):
        named["limits"] = limits
    return exact_terms(**named, **({"data": first.data_label} if first.data_label else {}))
