"""The matrix of tasks and their attempts: which succeeded, pass@k, pass^k, and groups that teach a trainer nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal

import msgspec

from runner.results.statistics import pass_at_k, pass_hat_k
from runner.results.summary import EVERYTHING, IS_RATED, SUCCESS_COLUMNS, ResultSource, Score, Selection
from runner.types import Outcome, agentgym_item_id

MAX_K = 16
_KEY = "env, data_label, mode, agent, model, shape, limits"
_N_KEY = 7
_QUERY = f"""
    SELECT {_KEY.replace("model", "{by} AS model")}, task_index, episode_id, batch_id,
        outcome, {{success}} AS success, {{reward}} AS reward, {IS_RATED} AS rated, agentgym_score
    FROM episodes
    WHERE {{condition}} AND task_index IS NOT NULL
    ORDER BY {_KEY}, task_index, episode_id
"""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An episode of a task; ``rated`` is False for outcomes that do not depend on the agent, and for unscored ones."""

    episode_id: str
    batch_id: str
    outcome: Outcome
    success: bool
    reward: float | None
    rated: bool
    agentgym_score: float | None = None


class TaskGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one task, oldest first; ``item_id`` is AgentGym's id of the task, if it has one."""

    task_index: int
    item_id: str | None = None
    attempts: tuple[Attempt, ...]

    @property
    def rated(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.rated]

    @property
    def n_success(self) -> int:
        return sum(attempt.success for attempt in self.rated)

    @property
    def success_rate(self) -> float | None:
        return self.n_success / n if (n := len(self.rated)) else None

    @property
    def zero_variance(self) -> bool:
        """Whether at least two attempts are rated and all have the same reward, so their advantages are all zero."""
        return len(self.rewards) > 1 and len(set(self.rewards)) == 1

    @property
    def rewards(self) -> list[float]:
        return [attempt.reward for attempt in self.rated if attempt.reward is not None]

    @property
    def mean_reward(self) -> float | None:
        return sum(rewards) / len(rewards) if (rewards := self.rewards) else None

    @property
    def all_truncated(self) -> bool:
        """Whether attempts are rated and each ended at a limit."""
        limits = (Outcome.TRUNCATED, Outcome.TIMEOUT)
        return bool(rated := self.rated) and all(attempt.outcome in limits for attempt in rated)


class Estimate(msgspec.Struct, frozen=True):
    """Mean of pass@k and of pass^k over the ``n_tasks`` tasks with at least ``k`` rated attempts."""

    k: int
    n_tasks: int
    pass_at_k: float
    pass_hat_k: float


class TaskMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of one player in one environment and mode, by task; the player is as in ``ResultRow``."""

    env: str
    data_label: str
    mode: str
    agent: str
    model: str | None
    shape: str = ""
    limits: str = ""
    tasks: list[TaskGroup]
    estimates: list[Estimate]


msgspec.json.Decoder(TaskMatrix)  # ``convert`` could crash where two threads are the first to use nested structs


def task_matrices(
    source: ResultSource,
    selection: Selection = EVERYTHING,
    *,
    by: Literal["models", "model"] = "models",
    score: Score = "reward",
) -> list[TaskMatrix]:
    """Return one matrix per environment, data, mode, agent, models, shape and limits, with its tasks in their order.

    ``by`` is the column by which models differ: those that answered, or the one that was requested. ``score`` is whose
    success and reward the attempts have. Raises ``StoreError`` if the index cannot be read, or has values that no
    episode has.
    """
    condition, parameters = selection.condition()
    success, reward = SUCCESS_COLUMNS[score]
    query = _QUERY.format(condition=condition, by=by, success=success, reward=reward)
    rows = source.select(query, parameters)
    try:
        return [_matrix(key, group) for key, group in groupby(rows, key=lambda row: row[:_N_KEY])]
    except (ValueError, OverflowError) as exc:
        raise source.unusable(exc) from exc


def estimates(tasks: Iterable[TaskGroup]) -> list[Estimate]:
    """Return pass@k and pass^k for each k from 1 on for which at least one task has enough rated attempts."""
    counts = [(task.n_success, n) for task in tasks if (n := len(task.rated))]
    return [_estimate(counts, k) for k in range(1, min(MAX_K, max((n for _, n in counts), default=0)) + 1)]


def _matrix(key: tuple[Any, ...], rows: Iterable[tuple[Any, ...]]) -> TaskMatrix:
    tasks = [
        TaskGroup(
            task_index=task_index,
            item_id=agentgym_item_id(key[0], task_index),
            attempts=tuple(_attempts(group)),
        )
        for task_index, group in groupby(rows, key=lambda row: row[_N_KEY])
    ]
    names = dict(zip(_KEY.split(", "), key, strict=True))
    return msgspec.convert({**names, "tasks": tasks, "estimates": estimates(tasks)}, TaskMatrix)


def _attempts(rows: Iterable[tuple[Any, ...]]) -> Iterator[Attempt]:
    for row in rows:
        named = dict(zip(Attempt.__struct_fields__, row[_N_KEY + 1 :], strict=True))
        yield msgspec.convert(named, Attempt, strict=False)


def _estimate(counts: list[tuple[int, int]], k: int) -> Estimate:
    enough = [(successes, n) for successes, n in counts if n >= k]
    return Estimate(
        k=k,
        n_tasks=len(enough),
        pass_at_k=sum(pass_at_k(successes, n, k) for successes, n in enough) / len(enough),
        pass_hat_k=sum(pass_hat_k(successes, n, k) for successes, n in enough) / len(enough),
    )
