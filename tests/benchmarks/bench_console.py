"""The console in a real terminal: start, idle CPU, and a list of ten thousand episodes; and their printed results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from runner.publish.outbox import LOCAL
from runner.store import EpisodeStore, open_index
from tests.benchmarks.measure import CONSOLE, PAIRS, Row, peak_mb, quartiles, ratio, row, store_copies
from tests.support.command import COMMAND
from tests.support.node_process import NodeProcess
from tests.support.publishing import open_outbox
from tests.support.terminal import ENTER, Terminal

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
SETTLE_S, IDLE_S = 5.0, 20.0
"""Seconds after the connection that are ignored, and seconds of the idle measurement."""

MAX_START_RATIOS: Final = (1.5, 2.0)
"""Largest ratios of the first paint, and of the first data of a running node, to the first paint of a minimal app."""

NODE_STATUS: Final = b"idle"
"""Status of the running node, which only its reply to a request contains; the connection alone is not its data."""

MAX_IDLE, MAX_LIST_S, MAX_RESULTS_S, MAX_MB, MAX_NEXT_MS = 1.0, 1.0, 1.0, 150, 50.0

_ESCAPE = re.compile(rb"\x1b(?:\][^\x07]*\x07|\[[0-9;?<>$]*[a-zA-Z])")


def run() -> list[Row]:
    """Measure the console beside a node that has stored many episodes."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        batch = store_copies(data_dir, N_EPISODES)
        ids = sorted((path.stem for path in batch.iterdir()), reverse=True)
        open_index(EpisodeStore(data_dir)).close()
        results = _results(data_dir)
        with NodeProcess(data_dir):
            _wait_until_published(data_dir)
            rows = _start(data_dir)
            with Terminal(CONSOLE, "launch", "--data-dir", folder) as terminal:
                terminal.wait_for("connected", 60)
                return [*results, *rows, _idle(terminal), *_episodes(terminal, ids)]


def _results(data_dir: Path) -> list[Row]:
    command = [COMMAND, "--results", "--json", "--data-dir", str(data_dir)]
    walls, peaks = zip(*(_measure_process(command) for _ in range(PAIRS)), strict=True)
    (q1, seconds, q3), name = quartiles(walls), f"--results over {N_EPISODES:,} episodes"
    return [
        row(f"{name} ({q1:.2f}-{q3:.2f}), wall", seconds, MAX_RESULTS_S, "{:.2f} s"),
        row(f"{name}, memory", max(peaks), MAX_MB, "{:.0f} MB"),
    ]


def _measure_process(command: list[str]) -> tuple[float, float]:
    """Return wall seconds and peak memory (MB) of a command."""
    before = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - before, usage.ru_maxrss / 1024


def _start(data_dir: Path) -> list[Row]:
    """Measure from the start of a console to its first frame, and to what its running, idle node has replied."""
    launch = (CONSOLE, "launch", "--data-dir", str(data_dir))
    measured = {
        name: ratio(
            partial(_start_until, launch, shown),
            partial(_start_until, (sys.executable, "-c", MINIMAL)),
            clock=time.perf_counter,
        )
        for name, shown in (("first paint", b""), ("first data of a running node", NODE_STATUS))
    }
    return [
        Row.of_ratio(f"{name} of launch / of a minimal app ({wall.b_median * 1e3:.0f} ms), wall", wall, at_most=bound)
        for (name, wall), bound in zip(measured.items(), MAX_START_RATIOS, strict=True)
    ]


def _start_until(command: Sequence[str], shown: bytes = b"") -> None:
    """Run a command until it has painted anything, or a text; the bytes are searched, as an emulator takes time."""
    with Terminal(*command) as terminal:

        def is_shown() -> bool:
            painted = _ESCAPE.sub(b"", terminal.raw.partition(b"\x1b[?1049h")[2])
            return shown in painted if shown else bool(painted.strip())

        terminal.wait_for(is_shown, 60)


def _idle(terminal: Terminal) -> Row:
    process = psutil.Process(terminal.process.pid)
    time.sleep(SETTLE_S)
    before, started = _cpu_s(process), time.perf_counter()
    time.sleep(IDLE_S)
    percent = 100 * (_cpu_s(process) - before) / (time.perf_counter() - started)
    return row("idle console, connected, all processes, CPU", percent, MAX_IDLE, "{:.2f}%")


def _cpu_s(process: psutil.Process) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


def _wait_until_published(data_dir: Path) -> None:
    """Wait until the events of the stored episodes have been sent; this is not measured."""
    with open_outbox(data_dir) as outbox:
        while outbox.n_pending([LOCAL]):
            time.sleep(0.1)


def _episodes(terminal: Terminal, ids: Sequence[str]) -> list[Row]:
    list_s = _response_time(terminal, "2", f"{N_EPISODES:,} episodes", "Maze")
    _response_time(terminal, ENTER, ids[0])
    nexts = [_response_time(terminal, "n", episode_id) for episode_id in ids[1 : N_NEXT + 1]]
    megabytes = peak_mb(terminal.process.pid)
    q1, next_ms, q3 = (seconds * 1e3 for seconds in quartiles(nexts))
    return [
        row(f"list of {N_EPISODES:,} episodes, wall", list_s, MAX_LIST_S, "{:.2f} s"),
        row(f"the same and {N_NEXT} of them opened, memory", megabytes, MAX_MB, "{:.0f} MB"),
        row(f"the next episode ({q1:.0f}-{q3:.0f}), wall", next_ms, MAX_NEXT_MS, "{:.0f} ms"),
    ]


def _response_time(terminal: Terminal, key: str, *texts: str) -> float:
    """Return the seconds from a key until all texts were written."""
    before, expected = len(terminal.raw), [text.encode() for text in texts]
    started = time.perf_counter()
    terminal.send(key)
    terminal.wait_for(lambda: all(text in terminal.raw[before:] for text in expected), 60)
    seconds = time.perf_counter() - started
    terminal.wait_until_quiet()
    return seconds
