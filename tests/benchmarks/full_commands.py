"""CPU of short commands, and of an idle node."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.benchmarks.measure import PAIRS, Row, environ_with_compiled_modules, ratio_of
from tests.support.command import COMMAND
from tests.support.node_process import NodeProcess

STARTS = {"--help": 4.0, "--list-envs": 9.0, "--run Maze --agent oracle": 15.0}
"""Commands, and the largest CPU of each compared with an interpreter that does nothing."""
SETTLE_S, IDLE_S, MAX_IDLE_SHARE = 15.0, 40.0, 0.004


def run() -> list[Row]:
    """Measure processes, each with its compiled modules cached."""
    with tempfile.TemporaryDirectory() as folder:
        return [*_starts(folder), _idle_node(Path(folder))]


def _starts(folder: str) -> Iterator[Row]:
    environ = environ_with_compiled_modules(folder)

    def cpu_s(*command: str) -> float:
        before = _children_s()
        subprocess.run(command, cwd=folder, env=environ, capture_output=True, timeout=60, check=True)
        return _children_s() - before

    for command, at_most in STARTS.items():
        own, bare = [COMMAND, *command.split()], [sys.executable, "-c", "pass"]
        pairs = [(cpu_s(*own), cpu_s(*bare)) for _ in range(PAIRS + 1)][1:]
        yield Row.of_ratio(f"{command} / python -c pass, CPU", ratio_of(*zip(*pairs, strict=True)), at_most=at_most)


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
    return Row(name, f"{share:.2%}", f"<= {MAX_IDLE_SHARE:.1%}", share <= MAX_IDLE_SHARE)
