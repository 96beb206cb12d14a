"""The harness itself: a seed gives one schedule, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.history.schedule import make_schedule
from tests.support.command import REPOSITORY
from tests.support.waiting_batch import wait_until

long = pytest.mark.long


def soak_command(folder: Path, seed: int, seconds: float) -> list[str]:
    options = ("--seed", str(seed), "--seconds", str(seconds), "--folder", str(folder))
    return [sys.executable, "-m", "tests.history", *options]


def test_a_seed_gives_one_schedule() -> None:
    assert make_schedule(7, 60) == make_schedule(7, 60)
    assert make_schedule(7, 60) != make_schedule(8, 60)


def test_a_long_schedule_has_every_fault() -> None:
    kinds = {(fault.kind, fault.target) for fault in make_schedule(7, 600).faults}
    for target in ("node", "own_broker", "foreign_broker", "console", "server_a", "server_b"):
        assert {("kill", target), ("stop", target)} <= kinds
    assert {kind for kind, _ in kinds} == {"kill", "stop", "partition", "disk_full", "clock", "delete"}


@long
def test_an_interrupted_soak_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        soak_command(tmp_path, 1, 60), cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as soak:
        try:
            wait_until(lambda: any(tmp_path.glob("*/own_stream.jsonl")) and len(descendants(soak.pid)) >= 6)
            started = descendants(soak.pid)
            os.kill(soak.pid, signal.SIGINT)
            assert soak.wait(60) != 0
        finally:
            soak.kill()
    _, alive = psutil.wait_procs(started, 10)
    assert alive == []
    assert [each for each in psutil.process_iter() if str(tmp_path) in command_line(each)] == []


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
