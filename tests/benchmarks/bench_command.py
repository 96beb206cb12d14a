"""Wall time of ``--list-envs``, and of ``--results`` over 10,000 episodes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.types import Limits
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio
from tests.support.batches import resolved_batch

COMMAND = str(Path(sys.executable).with_name("agentgym-runner"))
N_EPISODES = 10_000
MAX_S, MAX_MB = 1.0, 150


def run() -> list[Row]:
    """Measure both commands."""
    with tempfile.TemporaryDirectory() as folder:
        return [_list_envs(Path(folder)), *_results(Path(folder))]


def _list_envs(folder: Path) -> Row:
    wall = ratio(
        lambda: _run([COMMAND, "--list-envs"], folder),
        lambda: _run([sys.executable, "-c", "import httpx"], folder),
        clock=time.perf_counter,
    )
    return Row.of_ratio("--list-envs, all ports closed / import httpx, wall", wall, at_most=2.5)


def _results(folder: Path) -> list[Row]:
    workspace = Workspace(folder / "data", node="bench", profile="bench")
    spec = resolved_batch(env="Maze", agent="oracle", repeat=N_EPISODES, limits=Limits(max_rounds=15), tracing="full")
    result = Batch(spec, workspace).run()
    workspace.close()
    walls, peaks = zip(*(_measure_process([COMMAND, "--results", "--json"], folder) for _ in range(PAIRS)), strict=True)
    (q1, seconds, q3), megabytes = quartiles(walls), max(peaks)
    name = f"--results over {result.n_episodes} episodes"
    return [
        Row(f"{name}, wall", f"{seconds:.2f} s ({q1:.2f}-{q3:.2f})", f"<= {MAX_S:g} s", seconds <= MAX_S),
        Row(f"{name}, memory", f"{megabytes:.0f} MB", f"<= {MAX_MB} MB", megabytes <= MAX_MB),
        Row(
            "batch run of these episodes", f"{result.duration_s / result.n_episodes * 1e3:.1f} ms an episode", "", None
        ),
    ]


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, timeout=60, check=True)


def _measure_process(command: list[str], folder: Path) -> tuple[float, float]:
    """Return wall seconds and peak memory (MB) of a command."""
    before = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - before, usage.ru_maxrss / 1024
