"""Two selections compared task by task: which tasks were won and lost, and whether chance explains the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set

import msgspec

from runner.errors import ConfigError
from runner.results.statistics import sign_test
from runner.results.summary import ResultSource, Selection
from runner.results.task_matrix import TaskGroup, TaskMatrix
from runner.types import MIX, shape_note

SIGNIFICANCE = 0.05
"""Largest p-value of a difference that counts as more than chance."""
_ANSWERED = """
    SELECT model, models, fallback IS NOT NULL, count(*) FROM episodes
    WHERE models IS NOT NULL AND {condition} GROUP BY 1, 2, 3
"""


class TaskKey(msgspec.Struct, frozen=True):
    """A task: the index of the task alone selects it within its environment, data and mode."""

    env: str
    data_label: str
    mode: str
    task_index: int


class PairedTask(msgspec.Struct, frozen=True):
    task: TaskKey
    rate: float
    baseline_rate: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A selection against another one over the tasks that both have played with an outcome that counts.

    Attributes:
        won: the tasks with a higher success rate than in the other one, whose values are named ``baseline_…`` in JSON.
        n_unpaired: number of tasks that only one of the two has.
        shapes: the shapes of requests of the selection in the compared tasks, "" for the usual one.
        mixed: number of episodes on both sides that a fallback answered, by the models that answered.
        p_value: of the exact two-sided sign test over the won and lost tasks.
    """

    won: list[PairedTask]
    lost: list[PairedTask]
    tied: list[PairedTask] = []
    n_tied: int
    n_unpaired: int
    success_rate: float | None
    baseline_rate: float | None
    p_value: float
    shapes: list[str] = []
    baseline_shapes: list[str] = []
    mixed: dict[str, int] = {}

    @property
    def n_paired(self) -> int:
        return len(self.won) + len(self.lost) + self.n_tied

    @property
    def shape_note(self) -> str:
        return shape_note({"selection": self.shapes, "the other": self.baseline_shapes})

    @property
    def is_worse(self) -> bool:
        """Whether more tasks were lost than won, by more than chance."""
        return len(self.lost) > len(self.won) and self.p_value <= SIGNIFICANCE


def mixed_episodes(source: ResultSource, *selections: Selection) -> dict[str, int]:
    """Return how many of the selected episodes were not answered by one model as the others were, by their models.

    They are those with the answers of several models, and those that a fallback played alone with a model that has
    never been the first to answer for the one that was requested.
    """
    groups: Counter[tuple[str, str, bool]] = Counter()
    for selection in selections:
        condition, parameters = selection.condition()
        for model, models, is_fallback, n in source.select(_ANSWERED.format(condition=condition), parameters):
            groups[model, models, bool(is_fallback)] += n
    mixed: Counter[str] = Counter()
    for (model, models, is_fallback), n in groups.items():
        if MIX in models or (is_fallback and models != model and not groups[model, models, False]):
            mixed[models] += n
    return dict(mixed)


def compare(selected: Sequence[TaskMatrix], baseline: Sequence[TaskMatrix]) -> Comparison:
    """Compare the tasks of two selections, each of one agent and model per environment.

    Shapes of requests may differ, as agents and models may: what the server took is a part of what is compared. Raises
    ``ConfigError`` if a selection mixes agents or models.
    """
    groups, baseline_groups = _groups(selected), _groups(baseline)
    pairs = [
        PairedTask(key, rate, baseline_rate)
        for key, group in groups.items()
        if (other := baseline_groups.get(key)) is not None
        and (rate := group.success_rate) is not None
        and (baseline_rate := other.success_rate) is not None
    ]
    paired = {pair.task for pair in pairs}
    won = [pair for pair in pairs if pair.rate > pair.baseline_rate]
    lost = [pair for pair in pairs if pair.rate < pair.baseline_rate]
    tied = [pair for pair in pairs if pair.rate == pair.baseline_rate]
    return Comparison(
        won=won,
        lost=lost,
        tied=tied,
        n_tied=len(tied),
        n_unpaired=len(groups.keys() | baseline_groups.keys()) - len(pairs),
        success_rate=_mean([pair.rate for pair in pairs]),
        baseline_rate=_mean([pair.baseline_rate for pair in pairs]),
        p_value=sign_test(len(won), len(lost)),
        shapes=_shapes(selected, paired),
        baseline_shapes=_shapes(baseline, paired),
    )


def _groups(matrices: Sequence[TaskMatrix]) -> dict[TaskKey, TaskGroup]:
    players: dict[tuple[str, str, str], TaskMatrix] = {}
    for matrix in matrices:
        first = players.setdefault((matrix.env, matrix.data_label, matrix.mode), matrix)
        if (first.agent, first.model) != (matrix.agent, matrix.model):
            names = " and ".join(f"{each.agent} {each.model or ''}".strip() for each in (first, matrix))
            raise ConfigError(
                f"the results of {names} in {matrix.env} cannot be compared as one; choose with --agent or --model"
            )
    groups: dict[TaskKey, TaskGroup] = {}
    for key, group in _keyed(matrices):
        attempts = (*groups[key].attempts, *group.attempts) if key in groups else group.attempts
        groups[key] = TaskGroup(task_index=key.task_index, attempts=attempts)
    return groups


def _keyed(matrices: Iterable[TaskMatrix]) -> Iterator[tuple[TaskKey, TaskGroup]]:
    for matrix in matrices:
        for group in matrix.tasks:
            yield TaskKey(matrix.env, matrix.data_label, matrix.mode, group.task_index), group


def _shapes(matrices: Sequence[TaskMatrix], tasks: Set[TaskKey]) -> list[str]:
    return sorted({matrix.shape for matrix in matrices if any(key in tasks for key, _ in _keyed([matrix]))})


def _mean(rates: list[float]) -> float | None:
    return sum(rates) / len(rates) if rates else None
