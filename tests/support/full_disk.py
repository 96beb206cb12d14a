"""Disks that are full: a small file system that is filled for real, and a process that may write no files any more."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil
import pytest


class Disk(Protocol):
    """What a state directory is on, as one node sees it."""

    def fill(self) -> None:
        """Leave no room at all."""

    def make_room(self) -> None:
        """Clear it again."""


class SmallDisk:
    """A file system with little room, mounted on ``folder``."""

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

    def make_room(self) -> None:
        self._filler.unlink()


class Forbidden:
    """For one process no file may grow: the same errors where no disk can be mounted."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._process.rlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        self._process.rlimit(resource.RLIMIT_FSIZE, (0, self._before[1]))

    def make_room(self) -> None:
        self._process.rlimit(resource.RLIMIT_FSIZE, self._before)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Skips the test where nothing may be mounted."""
    folder.mkdir()
    options = f"size={mib}m,mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
