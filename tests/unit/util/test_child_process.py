"""Child processes: they end with what they have started, and their end is seen within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from runner.util.child_process import ChildProcess, describe_end
from tests.support.worker_runs import wait_until_ended

ENVIRON = {"PATH": os.environ["PATH"]}
LIMIT_S = 60.0
STARTS_ANOTHER = "sleep 300 & echo $!"


def run(script: str) -> tuple[ChildProcess, psutil.Process]:
    """Start a shell script whose first line is the pid of a process that it has started."""
    child = ChildProcess(["/bin/sh", "-c", script], ENVIRON, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as output:
        return child, psutil.Process(int(output.readline()))


def test_what_a_child_leaves_behind_is_killed() -> None:
    child, left = run(f"{STARTS_ANOTHER}; read line; exit 3")
    assert child.wait(LIMIT_S) == 3
    wait_until_ended(left)


def test_a_killed_child_takes_its_children_along() -> None:
    child, other = run(f"{STARTS_ANOTHER}; wait")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    assert child.end(0.01) == -signal.SIGKILL
    wait_until_ended(other)
    child.kill()


def test_a_child_has_its_own_variables_and_no_input() -> None:
    variables = {"A": "b", "LC_CTYPE": "C.UTF-8"}
    program = f"import os, sys; sys.exit(7 if dict(os.environ) == {variables} and not sys.stdin.read() else 1)"
    assert ChildProcess([sys.executable, "-I", "-c", program], variables).wait(LIMIT_S) == 7


def test_an_end_in_words() -> None:
    assert [describe_end(code) for code in (0, 3, -9, -64, -200)] == [
        "ended with exit code 0",
        "ended with exit code 3",
        "was ended by SIGKILL",
        "was ended by SIGRTMAX",
        "was ended by signal 200",
    ]
