"""What a person feels of the console, measured in a real terminal: its start, its rest, and ten thousand episodes."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from runner.batch import Batch
from runner.spec import BatchSpec
from runner.store import EpisodeStore, open_index
from runner.types import Limits
from runner.workspace import Workspace
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio
from tests.node_process import NodeProcess
from tests.store_samples import new_id
from tests.terminal import ENTER, Terminal

CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))
MINIMAL = """
from textual.app import App
from textual.widgets import Static

class Minimal(App):
    def compose(self):
        yield Static("minimal")

Minimal().run()
"""
N_EPISODES = 10_000
N_NEXT = 20
IDLE_S = 20.0
MAX_START, MAX_IDLE, MAX_LIST_S, MAX_MB, MAX_NEXT_MS = 1.6, 1.0, 1.0, 150, 50.0

_ESCAPE = re.compile(rb"\x1b(?:\][^\x07]*\x07|\[[0-9;?<>$]*[a-zA-Z])")


def run() -> list[Row]:
    """The console beside a node that has stored nothing, then beside one with many episodes."""
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder) / "few", Path(folder) / "many"
        with NodeProcess(few):
            rows = [_first_paint(few), _idle(few)]
        ids = _store(many)
        return rows + _episodes(many, ids)


def _first_paint(data_dir: Path) -> Row:
    wall = ratio(
        lambda: _until_painted(CONSOLE, "launch", "--data-dir", str(data_dir)),
        lambda: _until_painted(sys.executable, "-c", MINIMAL),
        clock=time.perf_counter,
    )
    name = f"first paint of launch / of a minimal app ({wall.b_median * 1e3:.0f} ms), wall"
    return Row.of_ratio(name, wall, at_most=MAX_START)


def _until_painted(*command: str) -> None:
    with Terminal(*command) as terminal:
        terminal.wait_for(lambda: bool(_ESCAPE.sub(b"", terminal.raw.partition(b"\x1b[?1049h")[2]).strip()), 60)


def _idle(data_dir: Path) -> Row:
    with Terminal(CONSOLE, "launch", "--data-dir", str(data_dir)) as terminal:
        terminal.wait_for("connected", 60)
        process = psutil.Process(terminal.process.pid)
        time.sleep(5)  # what follows the connection is not rest
        before, started = process.cpu_times(), time.perf_counter()
        time.sleep(IDLE_S)
        after, seconds = process.cpu_times(), time.perf_counter() - started
        percent = 100 * (after.user + after.system - before.user - before.system) / seconds
    return Row("console at rest, connected, CPU", f"{percent:.2f}%", f"< {MAX_IDLE:g}%", percent < MAX_IDLE)


def _store(data_dir: Path) -> Sequence[str]:
    """One episode that was played, and copies of it with ids of their own; the ids, the newest first."""
    workspace = Workspace(data_dir, node="bench", profile="bench")
    spec = BatchSpec(env="Maze", limits=Limits(max_rounds=15), tracing="full").checked()
    Batch(spec, workspace).run()
    workspace.close()
    (played,) = data_dir.glob("runs/*/*.json")
    content = played.read_bytes()
    ids = sorted({new_id() for _ in range(N_EPISODES - 1)})
    for episode_id in ids:
        copy = content.replace(played.stem.encode(), episode_id.encode())
        played.with_stem(episode_id).write_bytes(copy)
    open_index(EpisodeStore(data_dir)).close()
    return [*reversed(ids), played.stem]


def _episodes(data_dir: Path, ids: Sequence[str]) -> list[Row]:
    seconds, nexts, megabytes = [], [], []
    for _ in range(3):
        with Terminal(CONSOLE, "open", str(data_dir)) as terminal:
            terminal.wait_for("Episodes", 60)
    return []
