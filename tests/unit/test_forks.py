"""Tests that run in forked processes report what tests in one process do."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long
pytest_plugins = ["pytester"]

TESTS = """
import os
import signal

import pytest


@pytest.mark.skip
def test_is_skipped():
    pass


@pytest.mark.parametrize("number", range(30))
def test_passes(number):
    pass


def test_fails():
    print("what was printed")
    raise AssertionError


def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_test_runs_once_and_a_process_that_dies_fails_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "tests.support.forks", "--forks", "2", "-q")
    result.assert_outcomes(passed=30, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["what was printed", "its process died, *", "FAILED *::test_dies*"])
