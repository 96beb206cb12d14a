"""Batch specification: one environment, one agent, a range of tasks, and the number of attempts per task."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.agents.agentgym import Instruction
from runner.errors import ConfigError
from runner.pool.choose import default_workers
from runner.types import MAX_DURATION_S, MAX_ROUNDS, MAX_WORKERS, Budget, Limits, Mode, SpanLevel, Workers

INTEGER_LIMIT = 2**62
"""Exclusive limit of seeds and task indices; with the attempt or task number added, they still fit 64 bits."""
MAX_CONCURRENCY = 256
MAX_EPISODES = 1_000_000
DEFAULT_AGENT = "react"


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """The adaptive repeats of which a batch is a part: up to ``repeat`` tasks, until the interval is ``width`` wide."""

    width: float
    task_index: int
    repeat: int


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one batch: play each task from ``task_index`` to ``task_index + repeat - 1`` ``attempts`` times.

    Attributes:
        seed: random seed of the agent; attempt k of a task, counted from 0, uses ``seed + k``.
        script: actions of the ``scripted`` agent; None for other agents.
        instruction: what the agent ``agentgym`` begins with, read when the batch is accepted; None for other agents.
        workers: where the episodes run; None: in this process one at a time, else in local processes.
        budget: what the batch may use up each time it is started or resumed; None: no limit.
        tasks: the ``repeat`` tasks in their order, beginning with ``task_index``; None: consecutive ones from there.
        chosen: (task index, attempt) of the only episodes to play; None: all.
        adaptive: the adaptive repeats of which the batch is a part; None: it is no part.
    """

    env: str
    agent: str = DEFAULT_AGENT
    model: str | None = None
    repeat: int = 1
    attempts: int = 1
    task_index: int = 0
    seed: int = 0
    concurrency: int = 1
    limits: Limits = Limits()
    mode: Mode = "strict"
    tracing: SpanLevel = "full"
    script: tuple[str, ...] | None = None
    instruction: Instruction | None = None
    lost_episodes: Literal["replay", "interrupt"] = "replay"
    workers: Workers | None = None
    budget: Budget | None = None
    chosen: tuple[tuple[int, int], ...] | None = None
    adaptive: Adaptive | None = None
    tasks: tuple[int, ...] | None = None

    @property
    def n_planned(self) -> int:
        return self.repeat * self.attempts if self.chosen is None else len(self.chosen)

    def plan(self) -> list[PlannedEpisode]:
        tasks = range(self.task_index, self.task_index + self.repeat) if self.tasks is None else self.tasks
        every = ((task, attempt) for task in tasks for attempt in range(self.attempts))
        return [
            PlannedEpisode(task_index=task, attempt=attempt, seed=self.seed + attempt)
            for task, attempt in (every if self.chosen is None else self.chosen)
        ]

    @property
    def chosen_workers(self) -> Workers:
        """Where the episodes run: ``workers``, or the default for this number of episodes at a time."""
        if self.workers is not None:
            return self.workers
        return default_workers(min(self.concurrency, self.n_planned), self.agent)

    def check_numbers(self) -> None:
        """Raise ``ConfigError`` if a number is out of range; the message has the number and the range."""
        for field, minimum in (("repeat", 1), ("attempts", 1), ("concurrency", 1), ("task_index", 0)):
            if (value := getattr(self, field)) < minimum:
                raise ConfigError(f"{field} is {_shown(value)}; it must be at least {minimum}")
        if self.n_planned > MAX_EPISODES:
            raise ConfigError(
                f"repeat x attempts is {_shown(self.n_planned)}; one batch has at most {MAX_EPISODES} episodes"
            )
        if self.concurrency > MAX_CONCURRENCY:
            requested = _shown(self.concurrency)
            raise ConfigError(f"concurrency is {requested}; a batch plays at most {MAX_CONCURRENCY} episodes at a time")
        if isinstance(self.workers, int) and not 0 <= self.workers <= MAX_WORKERS:
            raise ConfigError(
                f"workers is {_shown(self.workers)}; give 0 to {MAX_WORKERS} local processes (0: none), or ray"
            )
        if self.limits.max_rounds < 1 or not self.limits.max_duration_s > 0:
            raise ConfigError("The limits must be at least one round and a positive number of seconds")
        if self.limits.max_rounds > MAX_ROUNDS:
            raise ConfigError(f"max_rounds is {_shown(self.limits.max_rounds)}; it must be at most {MAX_ROUNDS}")
        if self.limits.max_duration_s > MAX_DURATION_S:
            duration = f"{self.limits.max_duration_s:g}"
            raise ConfigError(f"max_duration_sec is {duration}; it must be at most {MAX_DURATION_S} seconds")
        if self.tasks is not None and (len(set(self.tasks)) < self.repeat or min(self.tasks) < 0):
            raise ConfigError("tasks has a task twice, or a negative number; give each task once")
        if self.tasks is not None and max(self.tasks) >= INTEGER_LIMIT:
            raise ConfigError(f"tasks has {_shown(max(self.tasks))}; a task must be below {INTEGER_LIMIT}")
        for field in ("seed", "task_index"):
            if abs(getattr(self, field)) >= INTEGER_LIMIT:
                raise ConfigError(f"{field} is {_shown(getattr(self, field))}; it must be below {INTEGER_LIMIT}")


class PlannedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    task_index: int
    attempt: int
    seed: int


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**30 else f"a number of {number.bit_length()} bits"
