"""What a batch came to: episode by episode, and as a mean reward and a success rate with its uncertainty."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

import msgspec

from runner.batch.spec import BatchSpec
from runner.store import UNRATED, EpisodeRecord, wilson
from runner.types import Outcome, Tokens

BatchStatus: TypeAlias = Literal["completed", "cancelled", "interrupted"]


class EpisodeBrief(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a batch's result."""

    episode_id: str
    task_index: int
    attempt: int
    outcome: Outcome
    success: bool
    reward: float
    rounds: int
    duration_s: float
    error: str | None


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a batch.

    ``success_rate`` and the means leave out episodes that were cancelled or interrupted and are None when no other one
    was played; ``success_interval`` is the 95% Wilson interval of the rate. ``problems`` could not be stored.

    Attributes:
        tokens: of all episodes.
        cost: the sum, None when none is known.
        latency_s: the mean seconds that a model took for an answer, None when none answered.
        answers: how many there were by endpoint and model, which tells whether a fallback has played.
    """

    batch_id: str
    battery_id: str | None
    env: str
    agent: str
    model: str | None
    baseline: bool
    mode: str
    data_label: str
    status: BatchStatus
    n_planned: int
    n_episodes: int
    outcomes: dict[str, int]
    mean_reward: float | None
    success_rate: float | None
    success_interval: tuple[float, float] | None
    mean_rounds: float | None
    duration_s: float
    tokens: Tokens
    cost: float | None = None
    latency_s: float | None = None
    answers: dict[str, int] = {}
    episodes: list[EpisodeBrief]
    problems: list[str]

    @property
    def has_errors(self) -> bool:
        """Whether an episode ended in an error or could not be stored."""
        return bool(self.problems) or Outcome.ERROR in self.outcomes


class Tally:
    """Adds up the episodes of a batch as they end; cancelled and interrupted ones stay out of rates and means."""

    def __init__(self) -> None:
        """Start with nothing played."""
        self.episodes: list[EpisodeBrief] = []
        self.problems: list[str] = []
        self.n_success = 0
        self._n_rated = 0
        self._reward = 0.0
        self._rounds = 0
        self._tokens = Tokens()
        self._cost: float | None = None
        self._model_s = 0.0
        self._answers: Counter[str] = Counter()
        self._outcomes: Counter[Outcome] = Counter()

    def add(self, record: EpisodeRecord) -> None:
        """Count an episode that ended."""
        self.episodes.append(_brief(record))
        self._count_answers(record)
        self._outcomes[record.outcome] += 1
        if record.outcome not in UNRATED:
            self._n_rated += 1
            self.n_success += record.success
            self._reward += record.reward
            self._rounds += record.rounds

    def _count_answers(self, record: EpisodeRecord) -> None:
        self._tokens += record.tokens
        if record.cost is not None:
            self._cost = record.cost + (self._cost or 0.0)
        self._model_s += record.model_s or 0.0
        self._answers.update(f"{step.endpoint}: {step.model}" for step in record.timesteps if step.endpoint)

    @property
    def tokens(self) -> Tokens:
        """Those of all episodes."""
        return self._tokens

    @property
    def cost(self) -> float | None:
        """The sum, None when none is known."""
        return self._cost

    @property
    def mean_reward(self) -> float | None:
        """The mean reward of the rated episodes, None when there are none."""
        return self._reward / self._n_rated if self._n_rated else None

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
        """Everything so far as a result."""
        n_rated = self._n_rated
        return BatchResult(
            batch_id=batch_id,
            battery_id=battery_id,
            env=spec.env,
            agent=spec.agent,
            model=spec.model,
            baseline=spec.model is None,
            mode=spec.mode,
            data_label=data_label,
            status=status,
            n_planned=spec.n_planned,
            n_episodes=len(self.episodes),
            outcomes={outcome.value: self._outcomes[outcome] for outcome in Outcome if self._outcomes[outcome]},
            mean_reward=self.mean_reward,
            success_rate=self.n_success / n_rated if n_rated else None,
            success_interval=wilson(self.n_success, n_rated) if n_rated else None,
            mean_rounds=self._rounds / n_rated if n_rated else None,
            duration_s=duration_s,
            tokens=self._tokens,
            cost=self._cost,
            latency_s=self._model_s / self._answers.total() if self._answers else None,
            answers=dict(self._answers.most_common()),
            episodes=self.episodes,
            problems=self.problems,
        )


def _brief(record: EpisodeRecord) -> EpisodeBrief:
    return EpisodeBrief(
        episode_id=record.episode_id,
        task_index=record.task_index,
        attempt=record.attempt,
        outcome=record.outcome,
        success=record.success,
        reward=record.reward,
        rounds=record.rounds,
        duration_s=record.duration_s,
        error=f"{record.error.type}: {record.error.message}" if record.error else None,
    )
