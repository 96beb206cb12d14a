from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from tests.history.observers import INDEXING, count_children
from tests.support.waiting_batch import wait_until


@contextmanager
def child_processes(*names: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a process for each name, which is in its command line and ends when its input is closed."""
    with ExitStack() as started:
        yield [
            started.enter_context(subprocess.Popen(["sh", "-c", "read line", name], stdin=subprocess.PIPE))
            for name in names
        ]


def test_one_process_of_the_full_text_index_is_not_counted_and_others_are() -> None:
    this = psutil.Process()
    n_before = count_children(this)
    with child_processes(INDEXING):
        assert count_children(this) == n_before
    with child_processes(INDEXING, "worker", INDEXING):
        assert count_children(this) == n_before + 2
    assert count_children(this) == n_before


def test_an_ended_process_is_counted_until_it_is_reaped() -> None:
    this = psutil.Process()
    n_before = count_children(this)
    with child_processes(INDEXING) as [child]:
        child.kill()
        wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
        assert count_children(this) == n_before + 1
        child.wait()
        assert count_children(this) == n_before
