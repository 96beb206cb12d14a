"""Lists of tasks: the matrix of tasks and attempts, the tasks of a comparison; and failure clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.state.filtered_list import FilteredList
from agentgym_tui.state.query import FieldSet
from agentgym_tui.state.sorting import Rank, number_rank, text_rank

if TYPE_CHECKING:
    from runner.results.clusters import Cluster
    from runner.results.comparison import Comparison, PairedTask
    from runner.results.task_matrix import TaskGroup

Result: TypeAlias = Literal["won", "lost", "tied"]


class ComparedTask(NamedTuple):
    """A task of a comparison and how the selection did on it."""

    pair: PairedTask
    result: Result


def matrix_list() -> FilteredList[TaskGroup]:
    """Return an empty list of the tasks of a matrix."""
    return FilteredList(
        lambda task: str(task.task_index),
        lambda task: f"#{task.task_index} {note_of(task)} {' '.join({each.outcome.value for each in task.attempts})}",
        _MATRIX_RANKS,
        MATRIX_FIELDS,
    )


def comparison_list() -> FilteredList[ComparedTask]:
    """Return an empty list of the tasks of a comparison."""
    return FilteredList(
        lambda task: str(task.pair.task.task_index),
        lambda task: f"#{task.pair.task.task_index} {task.result}",
        _PAIR_RANKS,
        PAIR_FIELDS,
    )


def cluster_list() -> FilteredList[Cluster]:
    """Return an empty list of failure clusters."""
    return FilteredList(
        lambda cluster: repr((cluster.env, cluster.failure)),
        lambda cluster: f"{cluster.env} {cluster.failure} {' '.join(cluster.agents)} {cluster.representative}",
        _CLUSTER_RANKS,
        CLUSTER_FIELDS,
    )


def compared_tasks(comparison: Comparison) -> list[ComparedTask]:
    """Return the tasks of a comparison: those that were lost, won and tied."""
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


_MATRIX_RANKS: Final[Mapping[str, Callable[[TaskGroup], Rank | None]]] = {
    "task": lambda task: number_rank(task.task_index),
    "success": lambda task: number_rank(task.success_rate),
    "reward": lambda task: number_rank(task.mean_reward),
    "note": lambda task: text_rank(note_of(task)),
    "attempts": lambda task: number_rank(len(task.attempts)),
}

_PAIR_RANKS: Final[Mapping[str, Callable[[ComparedTask], Rank | None]]] = {
    "task": lambda task: number_rank(task.pair.task.task_index),
    "result": lambda task: text_rank(task.result),
    "success": lambda task: number_rank(task.pair.rate),
    "baseline": lambda task: number_rank(task.pair.baseline_rate),
    "difference": lambda task: number_rank(task.pair.rate - task.pair.baseline_rate),
}

_CLUSTER_RANKS: Final[Mapping[str, Callable[[Cluster], Rank | None]]] = {
    "episodes": lambda cluster: number_rank(cluster.n),
    "environment": lambda cluster: text_rank(cluster.env),
    "cause": lambda cluster: text_rank(cluster.cause),
    "action": lambda cluster: text_rank(cluster.action),
    "answer": lambda cluster: text_rank(cluster.observation),
    "representative": lambda cluster: text_rank(cluster.representative),
}

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
