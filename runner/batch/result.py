"""Result of a batch: one summary per episode, mean reward, and success rate with a 95% Wilson score interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.results.statistics import wilson_interval
from runner.store import EpisodeRecord
from runner.store.episode_file import shared_fields
from runner.types import (
    UNFINISHED,
    UNRATED,
    BatchProgress,
    Outcome,
    Tokens,
    WorkerCounts,
    WorkerInfo,
    WorkerState,
    WorkerStatus,
    join_models,
    split_models,
)
from runner.util.resources import RESOURCES

BatchStatus: TypeAlias = Literal["completed", "cancelled", "interrupted"]
InterruptedBy: TypeAlias = Literal["server", "resources", "workers", "budget"]

_STOPPED = ", ".join(f"'{outcome.value}'" for outcome in sorted(UNFINISHED))
FINISHED: Final = f"outcome NOT IN ({_STOPPED}) AND error_type IS NOT '{RESOURCES}'"
"""SQL condition of the episodes in the index that a resumed batch does not play again: the opposite of ``is_left``."""


class EpisodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One finished episode in a batch result; ``models`` are those that answered, see ``join_models``."""

    episode_id: str
    task_index: int
    attempt: int
    outcome: Outcome
    success: bool
    reward: float
    rounds: int
    duration_s: float
    error: str | None
    error_type: str | None = None
    models: str | None = None
    worker: WorkerInfo | None = None

    @property
    def is_left(self) -> bool:
        return is_left(self.outcome, self.error_type)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of finished episodes.

    Episodes with an outcome in ``UNRATED``, and those that their evaluation leaves unscored, do not count in
    ``success_rate`` and the means, which are None if no episode counts.

    Attributes:
        n_rated: number of episodes with an outcome outside ``UNRATED`` that are not unscored.
        n_unscored: number of episodes that their evaluation leaves unscored, because idle play can succeed.
        success_interval: 95% Wilson score interval of ``success_rate``.
        tokens: token counts, summed over all episodes, and over those that were lost or interrupted and played again.
        cost: cost of the same, or None if no cost is known.
        latency_s: mean seconds per model answer, or None without answers.
        answers: number of model answers by ``endpoint: model``.
        shapes: number of episodes by shape of requests, without those of the usual one.
    """

    n_episodes: int
    n_rated: int
    n_success: int
    n_errors: int
    n_unscored: int = 0
    outcomes: dict[str, int]
    mean_reward: float | None
    success_rate: float | None
    success_interval: tuple[float, float] | None
    mean_rounds: float | None
    tokens: Tokens
    cost: float | None = None
    latency_s: float | None = None
    answers: dict[str, int] = {}
    shapes: dict[str, int] = {}


class ModelsTotals(Totals, frozen=True, kw_only=True):
    """Totals of the episodes of a batch that the same models answered, see ``join_models``."""

    model: str | None


class BatchResult(Totals, frozen=True, kw_only=True):
    """The result of a batch.

    Attributes:
        models: the models that answered, see ``EpisodeCompleted``.
        by_models: the totals by the models that answered; one without an episode if none has finished.
        baseline: whether the agent uses no model.
        problems: messages of the errors that occurred while episodes were stored.
        interruption: why the batch was interrupted, if its environment server was gone for too long, files, memory or
            threads ran out, workers were lost, or its budget is used up.
        interrupted_by: which of these it was.
        workers: numbers of worker processes at the end; None if this process played the episodes.
    """

    batch_id: str
    battery_id: str | None
    env: str
    agent: str
    model: str | None
    models: list[str] = msgspec.field(default_factory=list)
    by_models: list[ModelsTotals] = msgspec.field(default_factory=list)
    baseline: bool
    mode: str
    limits: str = ""
    data_label: str
    status: BatchStatus
    n_planned: int
    duration_s: float
    currency: str | None = None
    episodes: list[EpisodeSummary]
    problems: list[str]
    interruption: str | None = None
    interrupted_by: InterruptedBy | None = None
    workers: WorkerCounts | None = None

    @property
    def has_errors(self) -> bool:
        return bool(self.problems) or self.n_errors > 0


class _Sums:
    """Sums over finished episodes, and over the answers of those that are played again."""

    def __init__(self) -> None:
        self.n_success = self.n_rated = 0
        self.tokens = Tokens()
        self.cost: float | None = None
        self.outcomes: Counter[Outcome] = Counter()
        self._n_unscored = self._rounds = 0
        self._reward = self._model_s = 0.0
        self._answers: Counter[str] = Counter()
        self._shapes: Counter[str] = Counter()

    def add(self, record: EpisodeRecord) -> None:
        self.outcomes[record.outcome] += 1
        if shape := record.shape:
            self._shapes[shape] += 1
        self._n_unscored += record.unscored
        if record.outcome not in UNRATED and not record.unscored:
            self.n_rated += 1
            self.n_success += record.success
            self._reward += record.reward or 0.0
            self._rounds += record.rounds

    def add_answers(self, record: EpisodeRecord) -> None:
        self.tokens += record.tokens
        if record.cost is not None:
            self.cost = record.cost + (self.cost or 0.0)
        self._model_s += record.model_s or 0.0
        self._answers.update(f"{step.endpoint}: {step.model}" for step in record.timesteps if step.endpoint)

    @property
    def mean_reward(self) -> float | None:
        return self._reward / self.n_rated if self.n_rated else None

    def totals(self) -> Totals:
        n_rated = self.n_rated
        return Totals(
            n_episodes=self.outcomes.total(),
            n_rated=n_rated,
            n_success=self.n_success,
            n_errors=self.outcomes[Outcome.ERROR],
            n_unscored=self._n_unscored,
            outcomes={outcome.value: self.outcomes[outcome] for outcome in Outcome if self.outcomes[outcome]},
            mean_reward=self.mean_reward,
            success_rate=self.n_success / n_rated if n_rated else None,
            success_interval=wilson_interval(self.n_success, n_rated) if n_rated else None,
            mean_rounds=self._rounds / n_rated if n_rated else None,
            tokens=self.tokens,
            cost=self.cost,
            latency_s=self._model_s / self._answers.total() if self._answers else None,
            answers=dict(self._answers.most_common()),
            shapes=dict(self._shapes.most_common()),
        )


class BatchStats:
    """Totals of the finished episodes of a batch; rates and means exclude ``UNRATED`` and unscored episodes."""

    def __init__(self) -> None:
        self.episodes: list[EpisodeSummary] = []
        self.problems: list[str] = []
        self.n_unstored = 0
        """Number of ``episodes`` that could not be stored yet; the progress leaves them out."""
        self._all = _Sums()
        self._by_models: dict[str | None, _Sums] = {}
        self._currency: str | None = None
        self._workers: dict[str, WorkerStatus] = {}
        self._n_lost = 0

    def add(self, record: EpisodeRecord) -> None:
        error, fields = record.error, shared_fields(record, EpisodeSummary)
        fields["error"] = f"{error.type}: {error.message}" if error else None
        fields["models"] = join_models(record.model, record.models)
        self.episodes.append(EpisodeSummary(**fields, error_type=error.type if error else None))
        self.add_answers(record)
        for sums in self._sums(record):
            sums.add(record)

    def add_stored(self, stored: Iterable[EpisodeRecord], finished: Iterable[EpisodeRecord]) -> None:
        finished_ids = set[str]()
        for record in finished:
            finished_ids.add(record.episode_id)
            self.add(record)
        for record in stored:
            if record.episode_id not in finished_ids:
                self.add_answers(record)

    def add_answers(self, record: EpisodeRecord) -> None:
        """Add the answers of an episode whose task may be played again."""
        if record.cost is not None:
            self._currency = self._currency or record.currency
        for sums in self._sums(record):
            sums.add_answers(record)

    def _sums(self, record: EpisodeRecord) -> tuple[_Sums, _Sums]:
        return self._all, self._by_models.setdefault(join_models(record.model, record.models), _Sums())

    def add_worker(self, change: WorkerState) -> bool:
        before = self.workers
        if change.state != "lost":
            self._workers[change.id] = change.state
        elif self._workers.pop(change.id, None) is not None:
            self._n_lost += 1
        return self.workers != before

    @property
    def workers(self) -> WorkerCounts | None:
        if not self._workers and not self._n_lost:
            return None
        n_starting = sum(state == "starting" for state in self._workers.values())
        return WorkerCounts(n=len(self._workers) - n_starting, starting=n_starting, lost=self._n_lost)

    def progress(self, batch_id: str, n_planned: int, *, at: datetime, seq: int) -> BatchProgress:
        """Return what the finished episodes show; the caller adds why the batch waits or is interrupted."""
        return BatchProgress(
            at=at,
            batch_id=batch_id,
            seq=seq,
            n_done=len(self.episodes) - self.n_unstored,
            n_planned=n_planned,
            n_success=self._all.n_success,
            n_rated=self._all.n_rated,
            errors=self._all.outcomes[Outcome.ERROR],
            mean_reward=self._all.mean_reward,
            eta_s=None,
            tokens=self._all.tokens,
            cost=self._all.cost,
            workers=self.workers,
        )

    def result(
        self,
        spec: BatchSpec,
        *,
        batch_id: str,
        battery_id: str | None,
        status: BatchStatus,
        data_label: str,
        duration_s: float,
    ) -> BatchResult:
        by_models = {models: sums for models, sums in self._by_models.items() if sums.outcomes}
        by_models = by_models or {spec.model: self._all}
        answered = [name for models in by_models for name in split_models(models)]
        return BatchResult(
            **msgspec.structs.asdict(self._all.totals()),
            batch_id=batch_id,
            battery_id=battery_id,
            env=spec.env,
            agent=spec.agent,
            model=spec.model,
            models=split_models(join_models(spec.model, answered)),
            by_models=[
                ModelsTotals(model=models, **msgspec.structs.asdict(sums.totals()))
                for models, sums in sorted(by_models.items(), key=lambda item: item[0] or "")
            ],
            baseline=spec.model is None,
            mode=spec.mode,
            limits=spec.limits.label,
            data_label=data_label,
            status=status,
            n_planned=spec.n_planned,
            duration_s=duration_s,
            currency=self._currency,
            episodes=self.episodes,
            problems=self.problems,
            workers=self.workers,
        )


def is_left(outcome: Outcome, error_type: str | None) -> bool:
    """Return whether a batch that is resumed plays the task of an episode again.

    It does after an interruption, and after an error of the machine, which shows nothing about agent or environment.
    """
    return outcome in UNFINISHED or error_type == RESOURCES


def split_plan(
    spec: BatchSpec, earlier_episodes: Iterable[EpisodeRecord]
) -> tuple[list[EpisodeRecord], list[PlannedEpisode]]:
    """Return the finished episodes among ``earlier_episodes``, and those of the plan that are yet to be played."""
    errors = ((record, record.error.type if record.error else None) for record in earlier_episodes)
    finished = [record for record, error_type in errors if not is_left(record.outcome, error_type)]
    done = {(record.task_index, record.attempt) for record in finished}
    return finished, [planned for planned in spec.plan() if (planned.task_index, planned.attempt) not in done]


def one_per_plan(episodes: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return one of the stored episodes for each task and attempt: the finished one, or else the latest start."""
    chosen: dict[tuple[int, int], EpisodeRecord] = {}
    for record in sorted(episodes, key=lambda record: record.episode_id):
        earlier = chosen.get((record.task_index, record.attempt))
        if earlier is None or is_left(earlier.outcome, earlier.error.type if earlier.error else None):
            chosen[record.task_index, record.attempt] = record
    return list(chosen.values())
