"""CPU of a whole batch: what an episode costs beside its steps, and a run compared with a bare loop.

The CPU is that of this process and of all its descendants, so the rows hold for every pool of workers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from runner.agents.baselines import OracleAgent
from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.envs.babyai import BabyAI
from runner.envs.base import EmbeddedEnvironment
from runner.envs.maze import Maze
from runner.pool.choose import open_pool
from runner.store import EpisodeRecord
from runner.types import Limits
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of
from tests.support.batches import resolved_batch

MAX_FIXED_MS, MAX_RATIO = 8.0, 1.20
PLACES = {0: "in this process", 1: "driver and one worker"}
"""Number of worker processes, and where the episodes are played."""
N_WARM = 20
"""Episodes before the measurement, which pay for imports and for the start of workers."""
N_MAZE, N_BABYAI = 100, 20
"""Episodes of one measurement; those of BabyAI are one of each of 20 levels."""


def run() -> list[Row]:
    """Measure the fixed CPU of Maze and the whole run of BabyAI."""
    with tempfile.TemporaryDirectory() as folder, closing(Workspace(Path(folder), node="b", profile="b")) as workspace:
        return [row for workers in PLACES for row in (_fixed_row(workspace, workers), _ratio_row(workspace, workers))]


def _fixed_row(workspace: Workspace, workers: int) -> Row:
    """Episodes of one step, minus the same episodes in a bare loop."""
    pairs = _measure_pairs(workspace, "Maze", Maze, N_MAZE, max_steps=1, workers=workers)
    q1, fixed_ms, q3 = quartiles([(own - bare) / N_MAZE * 1e3 for own, bare in pairs])
    name = f"fixed CPU per Maze episode beside its steps, {PLACES[workers]} ({PAIRS * N_MAZE} episodes)"
    bound = f"<= {MAX_FIXED_MS:g} ms"
    return Row(name, f"{fixed_ms:.2f} ms ({q1:.2f}-{q3:.2f})", bound, fixed_ms <= MAX_FIXED_MS)


def _ratio_row(workspace: Workspace, workers: int) -> Row:
    pairs = _measure_pairs(workspace, "BabyAI", BabyAI, N_BABYAI, max_steps=100, workers=workers)
    measured = ratio_of(*zip(*pairs, strict=True))
    same = "bare loop over the same environment and oracle"
    name = f"CPU of a whole BabyAI run / {same}, {PLACES[workers]} ({PAIRS * N_BABYAI} episodes)"
    return Row.of_ratio(name, measured, at_most=MAX_RATIO)


def _measure_pairs(
    workspace: Workspace,
    env: str,
    build: Callable[[], EmbeddedEnvironment],
    n_episodes: int,
    *,
    max_steps: int,
    workers: int,
) -> list[tuple[float, float]]:
    """Return the CPU seconds of the batch and of the bare loop over the same tasks, in interleaved pairs."""

    def play() -> float:
        return batch_cpu_s(workspace, env, n_episodes, max_steps, workers)

    def play_bare() -> float:
        return bare_cpu_s(build, n_episodes, max_steps)

    play_bare()
    pairs: list[tuple[float, float]] = []
    for number in range(PAIRS):
        if number % 2:
            bare = play_bare()
            pairs.append((play(), bare))
        else:
            pairs.append((play(), play_bare()))
    return pairs


def batch_cpu_s(workspace: Workspace, env: str, n_episodes: int, max_steps: int, workers: int) -> float:
    """Play a batch; return the CPU seconds from its ``N_WARM``-th stored episode to its last one."""
    marks: list[float] = []

    def mark(record: EpisodeRecord) -> None:
        marks.append(tree_cpu_s() if len(marks) in (N_WARM - 1, N_WARM + n_episodes - 1) else 0.0)

    spec = resolved_batch(
        env=env,
        agent="oracle",
        repeat=N_WARM + n_episodes,
        limits=Limits(max_rounds=max_steps),
    )
    gc.collect()
    pool = open_pool(workers, spec.spec, spec.setup, None, workspace.store.runs, print)
    result = Batch(spec, workspace, on_record=mark, pool=pool).run()
    assert (result.status, len(marks)) == ("completed", N_WARM + n_episodes)
    return marks[-1] - marks[N_WARM - 1]


def bare_cpu_s(build: Callable[[], EmbeddedEnvironment], n_episodes: int, max_steps: int) -> float:
    """Return the CPU seconds of a bare loop over the tasks that ``batch_cpu_s`` measures, in this process."""

    async def play(task_index: int) -> None:
        environment, agent = build(), OracleAgent(twin=build())
        kwargs = {"task_index": task_index, "seed": 0}
        agent.bind(environment, kwargs)
        observation, done, n_steps = environment.reset(**kwargs), False, 0
        await agent.init_after_reset()
        while not done and n_steps < max_steps:
            _, action = await agent.act(observation, environment.get_tool_schemas())
            observation, _, done = environment.step(action)
            n_steps += 1

    async def play_all() -> None:
        for task_index in range(N_WARM, N_WARM + n_episodes):
            await play(task_index)

    gc.collect()
    before = time.process_time()
    asyncio.run(play_all())
    return time.process_time() - before


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and its living descendants."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:  # the process has ended
            continue
        if fields:
            parents[int(entry.name)], ticks[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    own = os.getpid()
    others = [pid for pid in parents if pid != own and _descends(pid, own, parents)]
    return time.process_time() + sum(ticks[pid] for pid in others) / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
