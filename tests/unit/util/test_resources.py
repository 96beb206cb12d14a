"""Limits of open files, exceptions that show what ran out, and child processes, which end with what they started."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from itertools import pairwise

import httpcore
import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError, ServerGone
from runner.util import resources
from runner.util.child_process import ChildProcess, describe_end
from runner.util.resources import SpareResources, file_advice, find_shortage, require_open_files
from tests.support.command import limited_command
from tests.support.worker_runs import wait_until_ended


def raised_from(exc: BaseException, cause: BaseException) -> BaseException:
    exc.__cause__ = cause
    return exc


def raised_from_none(exc: BaseException, context: BaseException) -> BaseException:
    exc.__context__, exc.__suppress_context__ = context, True
    return exc


NO_FILES = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("exc", "shortage"),
    [
        (NO_FILES, "open files"),
        (OSError(errno.ENFILE, "x"), "open files of the machine"),
        (OSError(errno.ENOMEM, "x"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "threads"),
        (raised_from(ImportError("cannot import name 'instantiate'"), NO_FILES), "open files"),
        (raised_from_none(ServerGone("x"), raised_from(httpx.ConnectError("x"), NO_FILES)), "open files"),
        (raised_from(httpcore.ConnectError(), ExceptionGroup("multiple", [ValueError(), NO_FILES])), "open files"),
        (ImportError("numpy.so: failed to map segment from shared object"), "memory"),
        (ImportError("x.so: cannot open shared object file: Too many open files"), "open files"),
        (ImportError("x.so: cannot allocate memory in static TLS block"), None),
        (ModuleNotFoundError("No module named 'x'"), None),
        (OSError(errno.ENOSPC, "No space left on device"), None),
        (OSError("without a number"), None),
        (RuntimeError("can't start"), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), None),
        (RecursionError(), None),
    ],
)
def test_a_shortage_is_found_in_the_whole_chain(exc: BaseException, shortage: str | None) -> None:
    assert find_shortage(exc) == shortage


@given(st.integers(1, 300), st.integers(0, 300))
def test_chains_of_any_length_and_loops_end(length: int, back_to: int) -> None:
    chain = [ValueError(str(number)) for number in range(length)]
    for exc, cause in pairwise(chain):
        exc.__cause__ = cause
    chain[-1].__context__ = chain[min(back_to, length - 1)]
    assert find_shortage(chain[0]) is None


def test_an_exception_that_cannot_be_read_is_no_shortage() -> None:
    class Hostile(OSError):
        @property
        def errno(self) -> int:  # type: ignore[override]
            raise SystemExit(3)

    assert find_shortage(Hostile(24, "x")) is None


@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 300, 300), (200, 200, 200)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft: int, hard: int, expected: int) -> None:
    program = "from runner.util.resources import *; print(raise_open_file_limit(), open_file_limit())"
    command = limited_command(hard, sys.executable, "-c", program, soft=soft)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(expected)] * 2


@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, 1 << 30])
def test_a_system_that_refuses_a_high_limit_gets_a_lower_one(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    """macOS reports an infinite hard limit and refuses more files than the kernel allows for one process."""
    limits = [256, hard]

    def set_limits(kind: int, requested: tuple[int, int]) -> None:
        if requested[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = requested

    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    assert resources.raise_open_file_limit() == 10_240
    assert limits == [10_240, hard]


def test_a_limit_that_is_too_low_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (12, 12))
    with pytest.raises(ConfigError, match="A run needs 38 open files and the limit is 12; raise it with ulimit -n"):
        require_open_files(38, "A run")
    assert require_open_files(12, "A run") == 12


def test_a_process_that_cannot_be_started_is_a_shortage_and_a_read_that_would_block_is_none() -> None:
    program = """
import os, resource, subprocess
from runner.util.resources import find_shortage
if os.getuid() == 0:
    os.setuid(12345)  # the limit does not apply to root
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
reading, writing = os.pipe()
os.set_blocking(reading, False)
for attempt in (lambda: subprocess.run(["true"]), lambda: os.read(reading, 1)):
    try:
        attempt()
    except BlockingIOError as exc:
        print(find_shortage(exc))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["threads", "None"]


def test_the_advice_after_a_failed_access_names_files_that_ran_out() -> None:
    assert file_advice(OSError(errno.ENOSPC, "x"), "free disk space") == "free disk space"
    assert file_advice(sqlite3.OperationalError("disk I/O error"), "free disk space") == "free disk space"
    assert "raise it with ulimit -n" in file_advice(raised_from(OSError("x"), NO_FILES), "free disk space")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        advice = file_advice(sqlite3.OperationalError("unable to open database file"), "free disk space")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert advice == "no more open files (the limit is 3); raise it with ulimit -n, or lower the concurrency"


@pytest.mark.skipif(sys.platform != "linux", reason="run on Linux: needs /proc, and a limit of memory that is enforced")
def test_spare_memory_uses_none_until_it_is_needed_and_is_then_freed() -> None:
    program = """
import resource
from runner.util.resources import SpareResources
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unused = SpareResources(0, 256 << 20)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * before
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (48 << 20), resource.RLIM_INFINITY))
spare = SpareResources(0, 32 << 20)
assert SpareResources(0, 1 << 40).release() is None
try:
    bytearray(32 << 20)
except MemoryError:
    spare.release()
    print(len(bytearray(32 << 20)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(32 << 20)]


def test_spare_files_are_closed_once() -> None:
    spare = SpareResources(3)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    spare.release()
    spare.release()
    descriptor = os.dup(0)
    os.close(descriptor)
    assert descriptor < lowest_free


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
