"""Wall time and memory of ``--results`` over 10,000 episodes."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.store import EpisodeStore, open_index
from runner.types import Limits
from tests.benchmarks.measure import PAIRS, Row, quartiles
from tests.support.batches import resolved_batch
from tests.support.command import COMMAND
from tests.support.episodes import new_id

N_PLAYED, N_EPISODES = 1_000, 10_000
"""Episodes that are played, and those with the copies of their files."""
MAX_S, MAX_MB = 1.0, 150


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return _results(Path(folder))


def _results(folder: Path) -> list[Row]:
    workspace = Workspace(folder / "data", node="bench", profile="bench")
    spec = resolved_batch(env="Maze", agent="oracle", repeat=N_PLAYED, limits=Limits(max_rounds=15), tracing="full")
    result = Batch(spec, workspace).run()
    workspace.close()
    _copy_episodes(folder / "data", N_EPISODES // N_PLAYED - 1)
    walls, peaks = zip(*(_measure_process([COMMAND, "--results", "--json"], folder) for _ in range(PAIRS)), strict=True)
    (q1, seconds, q3), megabytes = quartiles(walls), max(peaks)
    name = f"--results over {N_EPISODES:,} episodes"
    return [
        Row(f"{name}, wall", f"{seconds:.2f} s ({q1:.2f}-{q3:.2f})", f"<= {MAX_S:g} s", seconds <= MAX_S),
        Row(f"{name}, memory", f"{megabytes:.0f} MB", f"<= {MAX_MB} MB", megabytes <= MAX_MB),
        Row(
            f"batch run of {result.n_episodes:,} of these episodes",
            f"{result.duration_s / result.n_episodes * 1e3:.1f} ms an episode",
            "",
            None,
        ),
    ]


def _copy_episodes(data_dir: Path, n_copies: int) -> None:
    """Store copies of each episode under new ids."""
    for path in [*data_dir.glob("runs/*/*.json")]:
        content = path.read_bytes()
        for _ in range(n_copies):
            episode_id = new_id()
            path.with_stem(episode_id).write_bytes(content.replace(path.stem.encode(), episode_id.encode()))
    open_index(EpisodeStore(data_dir)).close()


def _measure_process(command: list[str], folder: Path) -> tuple[float, float]:
    """Return wall seconds and peak memory (MB) of a command."""
    before = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - before, usage.ru_maxrss / 1024
