"""CPU of the runner per step and per episode, compared with a bare loop over the same environment and agent."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

from ulid import ULID

from runner.agents.baselines import OracleAgent, RandomAgent
from runner.batch.workspace import Workspace
from runner.envs.babyai import BabyAI
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.store import EpisodeRecorder
from runner.store.journal import EpisodeJournal
from runner.store.parts import Ended, Part
from runner.tracing import TraceEncoder
from runner.types import EpisodeHeader, Limits
from runner.types.protocols import maybe_await
from runner.worker.frames import Watch
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of
from tests.support.episodes import TracedSpans, make_reporter

LONG, SHORT = 100, 1
"""Steps of long and short episodes; the difference is the cost of steps, the short one the cost of an episode."""
MAX_RATIO, MAX_FIXED_MS = 1.2, 8.0


@dataclass(frozen=True)
class BenchmarkAgent:
    """An agent as built by the bare loop and by the runner, and the number of tasks for a stable result."""

    name: str
    build: Callable[[], OracleAgent | RandomAgent]
    cfg: dict[str, Any]
    n_tasks: int
    bounded: bool


BABYAI = {"_target_": "runner.envs.babyai.BabyAI"}
AGENTS = (
    BenchmarkAgent(
        "oracle",
        lambda: OracleAgent(twin=BabyAI()),
        {"_target_": "runner.agents.baselines.OracleAgent", "twin": BABYAI},
        n_tasks=40,
        bounded=True,
    ),
    BenchmarkAgent(
        "random", RandomAgent, {"_target_": "runner.agents.baselines.RandomAgent"}, n_tasks=16, bounded=False
    ),
)
"""The bounds apply to the oracle, the default agent. The random agent is cheap and shows the runner's maximum share."""

Loop: TypeAlias = Callable[[int, int], int]
"""Runs a task for at most the given number of steps; returns the number of steps."""


def run() -> list[Row]:
    """Measure both agents."""
    with tempfile.TemporaryDirectory() as folder, RecordedLoop(Path(folder)) as recorded:
        return [row for benchmark in AGENTS for row in _rows(recorded, benchmark)]


def _rows(recorded: RecordedLoop, benchmark: BenchmarkAgent) -> list[Row]:
    """Run every task with both loops and in both lengths, once per pair."""
    loops = (partial(recorded.play, benchmark), partial(recorded.play_bare, benchmark))
    measure_costs(loops, benchmark.n_tasks)
    own_costs, bare_costs = zip(*(measure_costs(loops, benchmark.n_tasks) for _ in range(PAIRS)), strict=True)
    steps = ratio_of([cost.per_step_s for cost in own_costs], [cost.per_step_s for cost in bare_costs])
    fixed = [own.short_s - bare.short_s for own, bare in zip(own_costs, bare_costs, strict=True)]
    q1, fixed_ms, q3 = (seconds / benchmark.n_tasks * 1e3 for seconds in quartiles(fixed))
    n_steps = sum(cost.n_long for cost in own_costs)
    name = f"CPU per BabyAI step with full tracing and journal / bare loop, {benchmark.name} ({n_steps} steps)"
    spread = f"{fixed_ms:.2f} ms ({q1:.2f}-{q3:.2f})"
    return [
        Row.of_ratio(name, steps, at_most=MAX_RATIO) if benchmark.bounded else Row(name, str(steps)),
        Row(f"CPU per step, {benchmark.name}", f"{steps.a_median * 1e6:.0f} us / {steps.b_median * 1e6:.0f} us"),
        Row(f"fixed CPU per episode, {benchmark.name}", spread, f"<= {MAX_FIXED_MS:g} ms", fixed_ms <= MAX_FIXED_MS),
    ]


@dataclass
class Cost:
    """CPU seconds of one loop over all tasks; the difference of long and short episodes is the cost of steps."""

    long_s: float = 0.0
    short_s: float = 0.0
    n_long: int = 0
    n_short: int = 0

    def add(self, loop: Loop, task_index: int) -> None:
        """Run a task in both lengths."""
        seconds, n_steps = cpu_seconds(loop, task_index, LONG)
        self.long_s, self.n_long = self.long_s + seconds, self.n_long + n_steps
        seconds, n_steps = cpu_seconds(loop, task_index, SHORT)
        self.short_s, self.n_short = self.short_s + seconds, self.n_short + n_steps

    @property
    def per_step_s(self) -> float:
        """CPU seconds per step."""
        return (self.long_s - self.short_s) / (self.n_long - self.n_short)


def measure_costs(loops: tuple[Loop, Loop], n_tasks: int) -> tuple[Cost, Cost]:
    """Run every task with both loops in alternating order."""
    gc.collect()
    gc.freeze()  # otherwise objects of other benchmarks would be collected during one of the loops
    costs = (Cost(), Cost())
    for task_index in range(n_tasks):
        for side in (0, 1) if task_index % 2 else (1, 0):
            costs[side].add(loops[side], task_index)
    return costs


def cpu_seconds(loop: Loop, task_index: int, max_steps: int) -> tuple[float, int]:
    """Return CPU seconds and steps of one episode."""
    before = time.process_time()
    n_steps = loop(task_index, max_steps)
    return time.process_time() - before, n_steps


async def bare(benchmark: BenchmarkAgent, task_index: int, max_steps: int) -> int:
    """Run a task in a bare loop."""
    environment, agent = BabyAI(), benchmark.build()
    kwargs = {"task_index": task_index, "seed": task_index}
    agent.bind(environment, kwargs)
    observation = environment.reset(**kwargs)
    await maybe_await(agent.init_after_reset())
    n_steps, done = 0, False
    while n_steps < max_steps and not done:
        result = agent.act(observation, environment.get_tool_schemas())
        _, action = result if isinstance(result, tuple) else await result
        observation, _, done = environment.step(action)
        n_steps += 1
    return n_steps


class RecordedLoop:
    """Runs tasks as an episode worker does: with full tracing, journal, trace, episode file and index."""

    def __init__(self, folder: Path) -> None:
        """Open a state directory."""
        self._workspace = Workspace(folder, node="bench", profile="bench")
        self._batch_id = str(ULID())
        self._trace_file = self._workspace.trace_file(self._batch_id)
        self._encoder = TraceEncoder(self._trace_file.boot, "slot 0")
        self._loop = asyncio.Runner()
        self._runners: dict[tuple[str, int], EpisodeFactory] = {}  # one per batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.close()
        self._workspace.close()

    def play_bare(self, benchmark: BenchmarkAgent, task_index: int, max_steps: int) -> int:
        """Run a task on the same event loop in a bare loop."""
        return self._loop.run(bare(benchmark, task_index, max_steps))

    def play(self, benchmark: BenchmarkAgent, task_index: int, max_steps: int) -> int:
        """Run and record a task."""
        runner = self._runner(benchmark, max_steps)
        header = EpisodeHeader(
            episode_id=str(ULID()),
            batch_id=self._batch_id,
            env="BabyAI",
            agent=benchmark.name,
            task_index=task_index,
            seed=task_index,
            started_at=datetime.now(UTC),
        )
        store, spans = self._workspace.store, TracedSpans()
        recorder = EpisodeRecorder(header, store, self._workspace.index)

        def receive(part: Part) -> None:
            if isinstance(part, Ended):
                recorder.finish(part)
            else:
                recorder.receive(part)

        reporter = make_reporter(
            header,
            receive,
            tracer=spans.tracer,
            spans=spans,
            journal=EpisodeJournal(store.runs, header),
            trace=self._encoder,
            watched=lambda: Watch(steps=False, tokens=False),
        )
        context = EpisodeContext(
            header=header,
            tracer=spans.tracer,
            emit=reporter.emit,
            on_reset=reporter.on_reset,
        )
        kwargs = {"task_index": task_index, "seed": task_index}
        trajectory = self._loop.run(runner.play_episode(kwargs, context=context))
        end = recorder.log.end
        assert end is not None
        self._trace_file.append("slot 0", end.packets, end.n_lanes)
        return len(trajectory.timesteps)

    def _runner(self, benchmark: BenchmarkAgent, max_steps: int) -> EpisodeFactory:
        key = (benchmark.name, max_steps)
        if key not in self._runners:
            limits = Limits(max_rounds=max_steps)
            self._runners[key] = EpisodeFactory(env_cfg=BABYAI, agent_cfg=benchmark.cfg, limits=limits)
        return self._runners[key]
