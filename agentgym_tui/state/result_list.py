"""Lists of results by group or batch, of tasks and their attempts, of compared tasks, and of failure clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from agentgym_tui.state.episode_list import exact_terms, model_runs
from agentgym_tui.state.query import FieldSet, FilteredList, Rank, number_rank, search_text, text_rank
from runner.types import SHAPES

if TYPE_CHECKING:
    from runner.results.clusters import Cluster
    from runner.results.comparison import Comparison, PairedTask
    from runner.results.summary import ResultRow, Selection
    from runner.results.task_matrix import TaskGroup

RESULTS_KEY: Final = "results"
"""Id of the table of results; also the key of its filter and order in the UI state."""
BASELINE: Final = "baseline"
"""Stands for the model of an agent that used none."""
RESULT_FIELDS: Final[FieldSet[ResultRow]] = FieldSet(
    ("env", "text", "environment", lambda row: row.env),
    ("agent", "text", "agent", lambda row: row.agent),
    ("model", "text", "model that answered; none for baselines", lambda row: model_runs(row.model)),
    ("data", "text", "label of the environment's data", lambda row: row.data_label),
    ("mode", "text", "rules", lambda row: row.mode),
    ("shape", "text", "how requests differ, as the server refused the usual", lambda row: row.shape),
    ("limits", "text", "limits that are not 15 rounds and 300 s", lambda row: row.limits),
    ("batch", "id", "beginning of the id of the batch", lambda row: row.batch_id),
    ("episodes", "number", "number of episodes", lambda row: row.n),
    ("success", "number", "success rate from 0 to 1", lambda row: row.success_rate),
    ("errors", "number", "number of episodes that ended with an error", lambda row: row.n_errors),
    ("reward", "number", "mean reward", lambda row: row.score),
    ("rounds", "number", "mean number of steps", lambda row: row.avg_rounds),
    ("cost", "number", "sum of the costs", lambda row: row.cost),
    ("time", "duration", "mean duration, such as 90s or 2m", lambda row: row.completion_time_sec),
    ("tokens", "number", "sum of the tokens", lambda row: row.tokens.total),
    values={"mode": ("strict", "compat"), "shape": SHAPES},
)
"""The fields of a result in a query."""


RANK_BY_COLUMN: Final[Mapping[str, Callable[[ResultRow], Rank | None]]] = {
    **RESULT_FIELDS.ranks("agent", "episodes", "success", "errors", "reward", "rounds", "cost", "time", "tokens"),
    **RESULT_FIELDS.ranks("data", "batch"),
    "environment": lambda row: text_rank(row.env),
    "model": lambda row: text_rank(row.model),
    "interval": lambda row: number_rank(row.success_interval[0] if row.success_interval else None),
    "last runs": lambda row: number_rank(row.last_rates[-1] if row.last_rates else None),
}
"""Function that returns the sort key of a row, by column title."""


class ResultList(FilteredList["ResultRow"]):
    """Results, of which the ``marked`` one is compared with the next that is marked."""

    def __init__(self) -> None:
        super().__init__(result_key, _search_text, RANK_BY_COLUMN, RESULT_FIELDS)
        self.by_batch = False
        self.marked: ResultRow | None = None

    @property
    def n_episodes(self) -> int:
        return sum(row.n for row in self.all_rows)

    def is_marked(self, row: ResultRow) -> bool:
        return self.marked is not None and result_key(row) == result_key(self.marked)


def result_key(row: ResultRow) -> str:
    return repr((row.env, row.data_label, row.mode, row.agent, row.model, row.shape, row.limits, row.batch_id))


def selection_of(row: ResultRow) -> Selection:
    """Return the selection of the row's episodes. It ignores the case of the environment; see ``same_env``."""
    from runner.results.summary import Selection

    return Selection(
        env=row.env,
        agent=row.agent,
        models=row.model,
        has_model=row.model is not None,
        data_label=row.data_label,
        mode=row.mode,
        shape=row.shape,
        limits=row.limits,
        batch=row.batch_id,
    )


def comparable_selections(row: ResultRow, baseline: ResultRow) -> tuple[Selection, Selection]:
    """Return the selections of two rows; a batch is compared with the other batches of the same agent and model."""
    selected, other = selection_of(row), selection_of(baseline)
    if replace(selected, batch=None) == replace(other, batch=None):
        if other.batch is None:
            other = replace(other, excluded_batch=selected.batch)
        elif selected.batch is None:
            selected = replace(selected, excluded_batch=other.batch)
    return selected, other


def episodes_filter(rows: Sequence[ResultRow], **terms: object) -> str:
    """Return the query that selects exactly the episodes of rows of one environment, with further exact values."""
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


def _search_text(row: ResultRow) -> str:
    names = row.env, row.agent, row.model or BASELINE, row.data_label, row.mode, row.shape, row.limits, row.batch_id
    return search_text(names)


Result: TypeAlias = Literal["won", "lost", "tied"]


class ComparedTask(NamedTuple):
    pair: PairedTask
    result: Result


def matrix_list() -> FilteredList[TaskGroup]:
    return FilteredList(
        lambda task: str(task.task_index),
        lambda task: f"#{task.task_index} {note_of(task)} {' '.join({each.outcome.value for each in task.attempts})}",
        MATRIX_FIELDS.ranks("task", "success", "reward", "note", "attempts"),
        MATRIX_FIELDS,
    )


def comparison_list() -> FilteredList[ComparedTask]:
    return FilteredList(
        lambda task: str(task.pair.task.task_index),
        lambda task: f"#{task.pair.task.task_index} {task.result}",
        PAIR_FIELDS.ranks("task", "result", "success", "baseline", "difference"),
        PAIR_FIELDS,
    )


def cluster_list() -> FilteredList[Cluster]:
    return FilteredList(
        lambda cluster: repr((cluster.env, cluster.failure)),
        lambda cluster: f"{cluster.env} {cluster.failure} {' '.join(cluster.agents)} {cluster.representative}",
        {
            **CLUSTER_FIELDS.ranks("episodes", "cause", "action", "answer"),
            "environment": lambda cluster: text_rank(cluster.env),
            "representative": lambda cluster: text_rank(cluster.representative),
        },
        CLUSTER_FIELDS,
    )


def compared_tasks(comparison: Comparison) -> list[ComparedTask]:
    return [
        *(ComparedTask(pair, "lost") for pair in comparison.lost),
        *(ComparedTask(pair, "won") for pair in comparison.won),
        *(ComparedTask(pair, "tied") for pair in comparison.tied),
    ]


def note_of(task: TaskGroup) -> str:
    """Return what makes the group of a task useless for group-relative training; "" if it is useful."""
    if task.zero_variance and task.all_truncated:
        return "zero, truncated"
    if task.zero_variance:
        return "zero variance"
    return "all truncated" if task.all_truncated else ""


CLUSTER_FIELDS: Final[FieldSet[Cluster]] = FieldSet(
    ("env", "text", "environment", lambda cluster: cluster.env),
    ("cause", "text", "what kind of failure it is", lambda cluster: cluster.cause),
    ("action", "text", "template of the action that failed", lambda cluster: cluster.action),
    ("answer", "text", "template of the answer to it", lambda cluster: cluster.observation),
    ("episodes", "number", "number of episodes", lambda cluster: cluster.n),
    ("agent", "text", "an agent, with its model", lambda cluster: tuple(cluster.agents)),
    ("flag", "text", "a flag of an episode", lambda cluster: tuple(cluster.flags)),
)
MATRIX_FIELDS: Final[FieldSet[TaskGroup]] = FieldSet(
    ("task", "number", "index of the task", lambda task: task.task_index),
    ("success", "number", "success rate from 0 to 1", lambda task: task.success_rate),
    ("reward", "number", "mean reward", lambda task: task.mean_reward),
    ("attempts", "number", "number of attempts", lambda task: len(task.attempts)),
    ("note", "text", "why it is useless for training", note_of),
    values={"note": ("zero variance", "all truncated", "zero, truncated")},
)
PAIR_FIELDS: Final[FieldSet[ComparedTask]] = FieldSet(
    ("task", "number", "index of the task", lambda task: task.pair.task.task_index),
    ("result", "text", "how the selection did", lambda task: task.result),
    ("success", "number", "success rate from 0 to 1", lambda task: task.pair.rate),
    ("baseline", "number", "success rate of the baseline", lambda task: task.pair.baseline_rate),
    ("difference", "number", "difference of the rates", lambda task: task.pair.rate - task.pair.baseline_rate),
    values={"result": ("won", "lost", "tied")},
)
