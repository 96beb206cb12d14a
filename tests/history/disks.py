"""The disk of a state directory, which the schedule fills: a small file system, or a file size limit of the node."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from tests.support.full_disk import SmallDisk

_REACTION_S = 5.0
"""Seconds in which a process that found the disk full may still end."""

_PROBE_BYTES = 16 << 10

Pids = Callable[[], list[int]]


class Disk(Protocol):
    """A disk that can be filled."""

    def fill(self) -> None:
        """Use up all space."""

    def measure(self) -> str:
        """Return a measurement of the full disk; "" if it has room."""

    def free_space(self) -> None:
        """Free the space again."""


class ObservedDisk:
    """A disk whose lack of space an observer can look up.

    Attributes:
        is_full: whether the disk is full or was a moment ago.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._full = False
        self._freed_at = -_REACTION_S

    @property
    def is_full(self) -> bool:
        return self._full or time.monotonic() - self._freed_at < _REACTION_S

    def fill(self) -> None:
        self._full = True
        self._disk.fill()

    def measure(self) -> str:
        return self._disk.measure()

    def free_space(self) -> None:
        self._disk.free_space()
        self._full, self._freed_at = False, time.monotonic()


class FileSizeLimits:
    """Prevents processes from extending files, where a file system cannot be mounted.

    Args:
        pids: returns the processes that are limited.
    """

    def __init__(self, pids: Pids) -> None:
        self._pids = pids

    def fill(self) -> None:
        self._limit(0)

    def free_space(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def measure(self) -> str:
        limited = [pid for pid in self._pids() if _file_size_limit(pid) == 0]
        return f"processes {limited} cannot extend files" if limited else ""

    def _limit(self, size: int) -> None:
        for pid in self._pids():
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).rlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class _MountedDisk(SmallDisk):
    def measure(self) -> str:
        try:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                file.write(bytes(_PROBE_BYTES))
        except OSError as exc:
            return str(exc)
        return ""


def _file_size_limit(pid: int) -> int | None:
    try:
        return psutil.Process(pid).rlimit(resource.RLIMIT_FSIZE)[0]
    except psutil.Error:
        return None


@contextmanager
def open_disk(folder: Path, mib: int, pids: Pids) -> Iterator[ObservedDisk]:
    """Create ``folder`` on a small file system of its own if mounting is allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield ObservedDisk(FileSizeLimits(pids))
        return
    try:
        yield ObservedDisk(_MountedDisk(folder))
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
