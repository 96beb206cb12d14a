"""Full disks: a small file system that is filled, and a file size limit of one process."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil
import pytest

_PROBE_BYTES = 16 << 10


class Disk(Protocol):
    """Disk of a state directory, as one node sees it."""

    def fill(self) -> None:
        """Use up all space."""

    def free_space(self) -> None:
        """Free the space again."""

    def measure(self) -> str:
        """Return a measurement of the full disk; "" if it has room."""


class SmallDisk:
    """A small file system mounted on ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        size = 1 << 20
        with self._filler.open("ab", buffering=0) as file:
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def free_space(self) -> None:
        self._filler.unlink(missing_ok=True)

    def measure(self) -> str:
        try:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                file.write(bytes(_PROBE_BYTES))
        except OSError as exc:
            return str(exc)
        return ""

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)


class FileSizeLimits:
    """Prevents processes from extending files; needs no privilege to mount.

    Args:
        pids: returns the processes that are limited.
    """

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids

    def fill(self) -> None:
        self._limit(0)

    def free_space(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def measure(self) -> str:
        limited = [pid for pid in self._pids() if psutil.Process(pid).rlimit(resource.RLIMIT_FSIZE)[0] == 0]
        return f"processes {limited} cannot extend files" if limited else ""

    def _limit(self, size: int) -> None:
        for pid in self._pids():
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).rlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class FileSizeLimit(FileSizeLimits):
    """Prevents one process from extending files."""

    def __init__(self, pid: int) -> None:
        super().__init__(lambda: [pid])


@contextmanager
def mount_if_allowed(folder: Path, mib: int) -> Iterator[SmallDisk | None]:
    """Mount a small file system; yields None if mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def mount_small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a small file system; skips the test if mounting is not allowed."""
    with mount_if_allowed(folder, mib) as disk:
        if disk is None:
            pytest.skip("run as root with the right to mount a disk (in a container: CAP_SYS_ADMIN)")
        yield disk
