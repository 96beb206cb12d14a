"""What the runner adds to an episode: CPU per step and per episode, against a bare loop over the same two objects."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeAlias

from ulid import ULID

from runner.agents.random import RandomAgent
from runner.envs.babyai import BabyAI
from runner.episode import EpisodeContext, Runner
from runner.playing import EpisodeSpans
from runner.store import EpisodeRecorder
from runner.tracing import SpanList, Tracer
from runner.types import EpisodeHeader, Limits
from runner.workspace import Workspace
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of

N_TASKS = 64
LONG, SHORT = 100, 1
"""Rounds: the difference of the two lengths is what steps cost, the short one what an episode costs."""


Loop: TypeAlias = Callable[[int, int], int]
"""Plays one task for at most so many rounds; returns how many it played."""


def run() -> list[Row]:
    """Play every task with both loops and in both lengths, the loops taking turns, once per pair."""
    with tempfile.TemporaryDirectory() as folder, Recorded(Path(folder)) as recorded:
        loops = (recorded.play, bare)
        both_costs(loops)
        pairs = [both_costs(loops) for _ in range(PAIRS)]
    ours, others = zip(*pairs, strict=True)
    steps = ratio_of([cost.per_step_s for cost in ours], [cost.per_step_s for cost in others])
    fixed = [(own.per_episode_s - other.per_episode_s) * 1e3 for own, other in pairs]
    q1, fixed_ms, q3 = quartiles(fixed)
    name = f"CPU per step of the runner, full tracing and journal / bare loop ({ours[0].n_steps} BabyAI steps)"
    return [
        Row.of_ratio(name, steps, at_most=1.15),
        Row("CPU per step", f"{steps.a_median * 1e6:.0f} us / {steps.b_median * 1e6:.0f} us"),
        Row("fixed CPU per episode", f"{fixed_ms:.2f} ms ({q1:.2f}-{q3:.2f})", "<= 10 ms", fixed_ms <= 10),
    ]


@dataclass
class Cost:
    """CPU seconds of one loop over all tasks; long minus short episodes is what steps cost."""

    long_s: float = 0.0
    short_s: float = 0.0
    n_long: int = 0
    n_short: int = 0

    def add(self, loop: Loop, task_index: int) -> None:
        """Play a task in both lengths."""
        seconds, n_steps = cpu(loop, task_index, LONG)
        self.long_s, self.n_long = self.long_s + seconds, self.n_long + n_steps
        seconds, n_steps = cpu(loop, task_index, SHORT)
        self.short_s, self.n_short = self.short_s + seconds, self.n_short + n_steps

    @property
    def n_steps(self) -> int:
        """Steps of the long episodes."""
        return self.n_long

    @property
    def per_step_s(self) -> float:
        """What one more step costs."""
        return (self.long_s - self.short_s) / (self.n_long - self.n_short)

    @property
    def per_episode_s(self) -> float:
        """What an episode of one step costs."""
        return self.short_s / N_TASKS


def both_costs(loops: tuple[Loop, Loop]) -> tuple[Cost, Cost]:
    """Play every task with both loops, which begin in turns."""
    gc.collect()
    costs = (Cost(), Cost())
    for task_index in range(N_TASKS):
        for side in (0, 1) if task_index % 2 else (1, 0):
            costs[side].add(loops[side], task_index)
    return costs


def cpu(loop: Loop, task_index: int, rounds: int) -> tuple[float, int]:
    """CPU seconds and steps of one episode."""
    before = time.process_time()
    n_steps = loop(task_index, rounds)
    return time.process_time() - before, n_steps


def bare(task_index: int, rounds: int) -> int:
    """Play a task with nothing around it."""
    environment, agent = BabyAI(), RandomAgent()
    agent.bind(environment, {"seed": task_index})
    observation = environment.reset(task_index=task_index)
    n_steps, done = 0, False
    while n_steps < rounds and not done:
        _, action = agent.act(observation, environment.get_tool_schemas())
        observation, _, done = environment.step(action)
        n_steps += 1
    return n_steps


class Recorded:
    """Plays tasks as a slot does: on one event loop, with full tracing, journal, trace, episode file and index."""

    def __init__(self, folder: Path) -> None:
        """Open a state directory."""
        self._workspace = Workspace(folder, node="bench", profile="bench")
        self._batch_id = str(ULID())
        self._trace_file = self._workspace.trace_file(self._batch_id)
        self._loop = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.close()
        self._workspace.close()

    def play(self, task_index: int, rounds: int) -> int:
        """Play and record a task."""
        runner = Runner(
            env_cfg={"_target_": "runner.envs.babyai.BabyAI"},
            agent_cfg={"_target_": "runner.agents.random.RandomAgent"},
            limits=Limits(max_rounds=rounds),
        )
        header = EpisodeHeader(
            episode_id=str(ULID()),
            batch_id=self._batch_id,
            env="BabyAI",
            agent="random",
            task_index=task_index,
            seed=task_index,
            started_at=datetime.now(UTC),
        )
        spans, trace = SpanList(), self._trace_file.for_track("slot 0")
        tracer = Tracer(collectors=(spans, trace))
        source = EpisodeSpans(spans.spans, spans.flows, tracer.open_spans)
        recorder = EpisodeRecorder(self._workspace.store, self._workspace.index, source)
        context = EpisodeContext(header=header, tracer=tracer, emit=recorder.on_event, on_reset=recorder.on_reset)
        kwargs = {"task_index": task_index, "seed": task_index}
        played = self._loop.run(runner.play_episode(kwargs, context=context))
        trace.flush()
        return len(played.timesteps)
