"""What a person waits for: ``--list-envs``, and ``--results`` over 10,000 episodes that were really played."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.types import Limits
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio

COMMAND = str(Path(sys.executable).with_name("agentgym-runner"))
N_EPISODES = 10_000
MAX_S, MAX_MB = 1.0, 150


def run() -> list[Row]:
    """Both commands."""
    with tempfile.TemporaryDirectory() as folder:
        return [_list_envs(Path(folder)), *_results(Path(folder))]


def _list_envs(folder: Path) -> Row:
    wall = ratio(
        lambda: _call([COMMAND, "--list-envs"], folder),
        lambda: _call([sys.executable, "-c", "import httpx"], folder),
        clock=time.perf_counter,
    )
    return Row.of_ratio("--list-envs, all ports closed / import httpx, wall", wall, at_most=2.5)


def _results(folder: Path) -> list[Row]:
    workspace = Workspace(folder / "data", node="bench", profile="bench")
    spec = BatchSpec(
        env="Maze", agent="oracle", repeat=N_EPISODES, limits=Limits(max_rounds=15), tracing="full"
    ).validated()
    played = Batch(spec, workspace).run()
    workspace.close()
    walls, peaks = zip(*(_measured([COMMAND, "--results", "--json"], folder) for _ in range(PAIRS)), strict=True)
    (q1, seconds, q3), megabytes = quartiles(walls), max(peaks)
    name = f"--results over {played.n_episodes} played episodes"
    return [
        Row(f"{name}, wall", f"{seconds:.2f} s ({q1:.2f}-{q3:.2f})", f"<= {MAX_S:g} s", seconds <= MAX_S),
        Row(f"{name}, memory", f"{megabytes:.0f} MB", f"<= {MAX_MB} MB", megabytes <= MAX_MB),
        Row("playing them", f"{played.duration_s / played.n_episodes * 1e3:.1f} ms an episode", "", None),
    ]


def _call(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, timeout=60, check=True)


def _measured(command: list[str], folder: Path) -> tuple[float, float]:
    """Wall seconds and peak memory (MB) of a command."""
    before = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - before, usage.ru_maxrss / 1024
