"""Limits of open files, and exceptions that show what ran out."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from itertools import pairwise

import httpcore
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError, ServerGone
from runner.util import resources
from runner.util.resources import SpareFiles, find_shortage, require_open_files
from tests.support.command import limited_command


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


def test_spare_files_are_closed_once() -> None:
    spare = SpareFiles(3)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    spare.release()
    spare.release()
    descriptor = os.dup(0)
    os.close(descriptor)
    assert descriptor < lowest_free
