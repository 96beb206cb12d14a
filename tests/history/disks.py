"""The disk of a state directory, which the schedule fills: a small file system, or a file size limit of the node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.full_disk import Disk, FileSizeLimits, mount_if_allowed

_REACTION_S = 5.0
"""Seconds in which a process that found the disk full may still end."""


class ObservedDisk:
    """A disk whose lack of space an observer can look up.

    Attributes:
        is_full: whether the disk is full or was a moment ago.
    """

    def __init__(self, disk: Disk) -> None:
        self.measure = disk.measure
        self._disk = disk
        self._full = False
        self._freed_at = -_REACTION_S

    @property
    def is_full(self) -> bool:
        return self._full or time.monotonic() - self._freed_at < _REACTION_S

    def fill(self) -> None:
        self._full = True
        self._disk.fill()

    def free_space(self) -> None:
        self._disk.free_space()
        self._full, self._freed_at = False, time.monotonic()


@contextmanager
def open_disk(folder: Path, mib: int, pids: Callable[[], list[int]]) -> Iterator[ObservedDisk]:
    """Create ``folder`` on a small file system of its own if mounting is allowed."""
    with mount_if_allowed(folder, mib) as disk:
        yield ObservedDisk(disk or FileSizeLimits(pids))
