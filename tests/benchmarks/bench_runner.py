"""What the runner adds to an episode: CPU per step and per episode, against a bare loop over the same two objects."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of
from ulid import ULID

from runner.agents.random import RandomAgent
from runner.batch import EpisodeSpans
from runner.envs.babyai import BabyAI
from runner.episode import EpisodeContext, Runner
from runner.store import EpisodeRecorder
from runner.tracing import PerfettoFile, SpanList, Tracer
from runner.types import EpisodeHeader, Limits
from runner.workspace import Workspace

N_TASKS = 48
LONG, SHORT = 100, 1
"""Rounds: the difference of the two lengths is what steps cost, the short one what an episode costs."""


def run() -> list[Row]:
    """Measure both lengths of both loops, interleaved."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), node="bench", profile="bench")
        loops: dict[str, Callable[[int], int]] = {"bare": bare, "runner": lambda rounds: recorded(workspace, rounds)}
        for loop in loops.values():
            loop(SHORT)
        per_step: dict[str, list[float]] = {name: [] for name in loops}
        per_episode: dict[str, list[float]] = {name: [] for name in loops}
        n_steps = 0
        for pair in range(PAIRS):
            for name in sorted(loops, reverse=bool(pair % 2)):
                long_s, n_long = cpu(loops[name], LONG)
                short_s, n_short = cpu(loops[name], SHORT)
                n_steps = n_long - n_short
                per_step[name].append((long_s - short_s) / n_steps)
                per_episode[name].append(short_s / N_TASKS)
        workspace.close()
    fixed_ms = [(ours - bare_s) * 1e3 for ours, bare_s in zip(per_episode["runner"], per_episode["bare"], strict=True)]
    steps = ratio_of(per_step["runner"], per_step["bare"])
    median_ms = statistics.median(fixed_ms)
    ours_us, bare_us = (statistics.median(per_step[name]) * 1e6 for name in ("runner", "bare"))
    detail = f"{steps} ({ours_us:.0f} against {bare_us:.0f} us)"
    return [
        Row(
            f"CPU per step, full tracing and journal / bare loop, {n_steps} BabyAI steps",
            detail,
            "<= 1.15",
            steps.median <= 1.15,
        ),
        Row("fixed CPU per episode", f"{median_ms:.2f} ms {quartiles(fixed_ms)}", "<= 10 ms", median_ms <= 10),
    ]


def cpu(loop: Callable[[int], int], rounds: int) -> tuple[float, int]:
    """CPU seconds and steps of one pass over all tasks."""
    before = time.process_time()
    n_steps = loop(rounds)
    return time.process_time() - before, n_steps


def bare(rounds: int) -> int:
    """Play every task with nothing around it; returns the number of steps."""
    n_steps = 0
    for task_index in range(N_TASKS):
        environment, agent = BabyAI(), RandomAgent()
        agent.bind(environment, {"seed": task_index})
        observation = environment.reset(task_index=task_index)
        done = False
        for _ in range(rounds):
            _, action = agent.act(observation, environment.get_tool_schemas())
            observation, _, done = environment.step(action)
            n_steps += 1
            if done:
                break
    return n_steps


def recorded(workspace: Workspace, rounds: int) -> int:
    """Play every task as a batch does, with full tracing, journal, trace file, episode file and index."""
    runner = Runner(
        env_cfg={"_target_": "runner.envs.babyai.BabyAI"},
        agent_cfg={"_target_": "runner.agents.random.RandomAgent"},
        limits=Limits(max_rounds=rounds),
    )
    batch_id = str(ULID())
    trace_file = workspace.trace_file(batch_id)
    return asyncio.run(_record_all(runner, workspace, batch_id, trace_file))


async def _record_all(runner: Runner, workspace: Workspace, batch_id: str, trace_file: PerfettoFile) -> int:
    n_steps = 0
    for task_index in range(N_TASKS):
        spans, trace = SpanList(), trace_file.for_track("slot 0")
        header = EpisodeHeader(
            episode_id=str(ULID()),
            batch_id=batch_id,
            env="BabyAI",
            agent="random",
            task_index=task_index,
            seed=task_index,
            started_at=datetime.now(UTC),
        )
        tracer = Tracer(collectors=(spans, trace))
        source = EpisodeSpans(spans.spans, spans.flows, tracer.open_spans)
        recorder = EpisodeRecorder(workspace.store, workspace.index, source)
        context = EpisodeContext(header=header, tracer=tracer, emit=recorder.on_event)
        played = await runner.play_episode({"task_index": task_index, "seed": task_index}, context=context)
        trace.flush()
        n_steps += len(played.timesteps)
    return n_steps
