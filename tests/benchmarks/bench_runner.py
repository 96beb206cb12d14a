"""What the runner adds to an episode: CPU per step and per episode, against a bare loop over the same two objects."""

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

from runner.agents.oracle import OracleAgent
from runner.agents.random import RandomAgent
from runner.batch.running_episode import EpisodeSpans
from runner.batch.state_dir import Workspace
from runner.envs.babyai import BabyAI
from runner.episode.runner import EpisodeContext, Runner
from runner.store import EpisodeRecorder
from runner.tracing import SpanList, Tracer
from runner.types import EpisodeHeader, Limits
from runner.types.maybe_async import maybe_await
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of

LONG, SHORT = 100, 1
"""Rounds: the difference of the two lengths is what steps cost, the short one what an episode costs."""
MAX_RATIO, MAX_FIXED_MS = 1.15, 10.0


@dataclass(frozen=True)
class Player:
    """An agent, as a bare loop and as the runner build it, and how many tasks give enough steps."""

    name: str
    build: Callable[[], OracleAgent | RandomAgent]
    cfg: dict[str, Any]
    n_tasks: int
    bounded: bool


BABYAI = {"_target_": "runner.envs.babyai.BabyAI"}
PLAYERS = (
    Player(
        "oracle",
        lambda: OracleAgent(twin=BabyAI()),
        {"_target_": "runner.agents.oracle.OracleAgent", "twin": BABYAI},
        n_tasks=64,
        bounded=True,
    ),
    Player("random", RandomAgent, {"_target_": "runner.agents.random.RandomAgent"}, n_tasks=32, bounded=False),
)
"""The oracle plays by default and is what the bound is about; random costs next to nothing itself, so it shows the
runner's share at its largest."""

Loop: TypeAlias = Callable[[int, int], int]
"""Plays one task for at most so many rounds; returns how many it played."""


def run() -> list[Row]:
    """Both players."""
    with tempfile.TemporaryDirectory() as folder, Recorded(Path(folder)) as recorded:
        return [row for player in PLAYERS for row in _rows(recorded, player)]


def _rows(recorded: Recorded, player: Player) -> list[Row]:
    """Play every task with both loops and in both lengths, the loops taking turns, once per pair."""
    loops = (partial(recorded.play, player), partial(recorded.play_bare, player))
    both_costs(loops, player.n_tasks)
    ours, others = zip(*(both_costs(loops, player.n_tasks) for _ in range(PAIRS)), strict=True)
    steps = ratio_of([cost.per_step_s for cost in ours], [cost.per_step_s for cost in others])
    fixed = [own.short_s - other.short_s for own, other in zip(ours, others, strict=True)]
    q1, fixed_ms, q3 = (seconds / player.n_tasks * 1e3 for seconds in quartiles(fixed))
    n_steps = sum(cost.n_long for cost in ours)
    name = f"CPU per BabyAI step with full tracing and journal / bare loop, {player.name} ({n_steps} steps)"
    spread = f"{fixed_ms:.2f} ms ({q1:.2f}-{q3:.2f})"
    return [
        Row.of_ratio(name, steps, at_most=MAX_RATIO) if player.bounded else Row(name, str(steps)),
        Row(f"CPU per step, {player.name}", f"{steps.a_median * 1e6:.0f} us / {steps.b_median * 1e6:.0f} us"),
        Row(f"fixed CPU per episode, {player.name}", spread, f"<= {MAX_FIXED_MS:g} ms", fixed_ms <= MAX_FIXED_MS),
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
    def per_step_s(self) -> float:
        """What one more step costs."""
        return (self.long_s - self.short_s) / (self.n_long - self.n_short)


def both_costs(loops: tuple[Loop, Loop], n_tasks: int) -> tuple[Cost, Cost]:
    """Play every task with both loops, which begin in turns."""
    gc.collect()
    gc.freeze()  # what other benchmarks have left would be gone through in whichever loop it happens to be
    costs = (Cost(), Cost())
    for task_index in range(n_tasks):
        for side in (0, 1) if task_index % 2 else (1, 0):
            costs[side].add(loops[side], task_index)
    return costs


def cpu(loop: Loop, task_index: int, rounds: int) -> tuple[float, int]:
    """CPU seconds and steps of one episode."""
    before = time.process_time()
    n_steps = loop(task_index, rounds)
    return time.process_time() - before, n_steps


async def bare(player: Player, task_index: int, rounds: int) -> int:
    """Play a task with nothing around it."""
    environment, agent = BabyAI(), player.build()
    kwargs = {"task_index": task_index, "seed": task_index}
    agent.bind(environment, kwargs)
    observation = environment.reset(**kwargs)
    await maybe_await(agent.init_after_reset())
    n_steps, done = 0, False
    while n_steps < rounds and not done:
        turn = agent.act(observation, environment.get_tool_schemas())
        _, action = turn if isinstance(turn, tuple) else await turn
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

    def play_bare(self, player: Player, task_index: int, rounds: int) -> int:
        """Play a task on the same event loop, but with nothing around it."""
        return self._loop.run(bare(player, task_index, rounds))

    def play(self, player: Player, task_index: int, rounds: int) -> int:
        """Play and record a task."""
        runner = Runner(env_cfg=BABYAI, agent_cfg=player.cfg, limits=Limits(max_rounds=rounds))
        header = EpisodeHeader(
            episode_id=str(ULID()),
            batch_id=self._batch_id,
            env="BabyAI",
            agent=player.name,
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
