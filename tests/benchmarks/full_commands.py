"""CPU of short commands, and of an idle node."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.benchmarks.measure import PAIRS, Row, quartiles, row
from tests.support.command import COMMAND
from tests.support.node_process import NodeProcess

STARTS, MAX_START_S = ("--help", "--list-envs"), 0.5
SETTLE_S, IDLE_S, MAX_IDLE_SHARE = 15.0, 40.0, 0.01


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [*_starts(folder), _idle_node(Path(folder))]


def _starts(folder: str) -> Iterator[Row]:
    """Measure with compiled modules, as an installed package has them; the first process compiles them."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{folder}/cache"}

    def cpu_s(option: str) -> float:
        before = _children_s()
        subprocess.run([COMMAND, option], cwd=folder, env=environ, capture_output=True, timeout=60, check=True)
        return _children_s() - before

    for option in STARTS:
        low, median, high = quartiles([cpu_s(option) for _ in range(PAIRS + 1)][1:])
        yield row(f"{option} ({low:.2f}-{high:.2f}), CPU", median, MAX_START_S, "{:.2f} s")


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _idle_node(folder: Path) -> Row:
    with NodeProcess(folder / "data") as node:
        usage = psutil.Process(node.pid)
        time.sleep(SETTLE_S)
        started = sum(usage.cpu_times()[:2])
        time.sleep(IDLE_S)
        share = (sum(usage.cpu_times()[:2]) - started) / IDLE_S
    name = f"idle node without its broker, {SETTLE_S:.0f} to {SETTLE_S + IDLE_S:.0f} s after its start, CPU"
    return row(name, share, MAX_IDLE_SHARE, "{:.2%}")
