"""Oracle episodes of an ARE scenario, after ARE was loaded; a row without a value if ARE is not installed."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from runner.config import ARESettings
from runner.envs.are.catalog import read_catalog
from runner.envs.are.client import close_processes, warm_process
from runner.types import Limits
from runner.worker.runner_setup import RunnerSetup
from tests.benchmarks.measure import PAIRS, Row
from tests.support.batches import make_setup

SCENARIO = "scenario_tutorial"
BOUND_S = 0.5
"""Bound of an oracle episode, on 2 cores."""


def run() -> list[Row]:
    """Measure the start of ARE's process, and the wall time of oracle episodes."""
    python = os.environ.get("AGENTGYM_ARE_PYTHON") or str(Path(__file__).parents[2] / ".venv-are" / "bin" / "python")
    settings = ARESettings(python=python)
    name = f"ARE {SCENARIO}, oracle episode"
    if read_catalog(settings).problem is not None:
        return [Row(name, "ARE is not installed; run: make test-are")]
    started = time.perf_counter()
    warm_process(settings)
    loaded_s = time.perf_counter() - started
    setup = make_setup(f"are:{SCENARIO}", "oracle", are=settings, limits=Limits(40))
    with asyncio.Runner() as loop:
        times = [play(loop, setup) for _ in range(2 * PAIRS)]
    close_processes()
    median, worst = statistics.median(times), max(times)
    return [
        Row("ARE, start of the process", f"{loaded_s:.1f} s"),
        Row(name, f"median {median:.3f} s, slowest {worst:.3f} s", f"<= {BOUND_S:g} s", median <= BOUND_S),
    ]


def play(loop: asyncio.Runner, setup: RunnerSetup) -> float:
    """Return the seconds of one episode."""
    runner = setup.build_factory(None)
    started = time.perf_counter()
    trajectory = loop.run(runner.play_episode({"task_index": 0}))
    if not trajectory.success:
        raise RuntimeError(f"the oracle did not solve {SCENARIO}: {trajectory.error_info}")
    return time.perf_counter() - started
