"""Full disks: a small file system that is filled, and a file size limit of one process."""

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
    """Disk of a state directory, as one node sees it."""

    def fill(self) -> None:
        """Use up all space."""

    def free_space(self) -> None:
        """Free the space again."""


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

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)


class FileSizeLimit:
    """Prevents one process from extending files; needs no privilege to mount."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._process.rlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        self._process.rlimit(resource.RLIMIT_FSIZE, (0, self._before[1]))

    def free_space(self) -> None:
        self._process.rlimit(resource.RLIMIT_FSIZE, self._before)


@contextmanager
def mount_small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a small file system; skips the test if mounting is not allowed."""
    folder.mkdir()
    options = f"size={mib}m,mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("run as root with the right to mount a disk (in a container: CAP_SYS_ADMIN)")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
