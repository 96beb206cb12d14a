"""Whether a node can store anything: a full or read-only disk is reported, and its batches wait until there is room."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from runner.bus.broker.broker import DISK_FULL_BYTES, DISK_RECOVERED_BYTES
from runner.errors import StoreError, catch_foreign, log_failure
from runner.util.resources import file_advice

logger = logging.getLogger(__name__)

POLL_S = 1.0
PROBE_BYTES = 64 * 1024
"""Size of the file that is written to find out whether a disk with free space can be written, e.g. with a quota."""
ADVICE = "free disk space there or make it writable"


class StorageWatch(threading.Thread):
    """Thread that checks the disk of a state directory; ``problem`` may be read from any thread.

    A check compares the free space. Only after a failed write, and until there is room again, it also writes a small
    file: that finds quotas, size limits and read-only disks, and costs an idle node nothing.

    Args:
        on_change: called on the checking thread after ``problem`` has changed.
    """

    def __init__(self, folder: Path, on_change: Callable[[], object]) -> None:
        super().__init__(name="storage watch", daemon=True)
        self._folder = folder
        self._on_change = on_change
        self._closed = threading.Event()
        self._checking = threading.Lock()
        self.problem: str | None = None
        """Why nothing can be stored; None while there is room."""

    def close(self) -> None:
        """Does not wait for the thread, which ends after its current check."""
        self._closed.set()

    def run(self) -> None:
        while not self._closed.wait(POLL_S):
            with catch_foreign(log_failure(logger, "checking the disk")):
                self.check()

    def check(self, *, write: bool = False) -> str | None:
        """Return ``problem``; pass ``write`` after a failed write."""
        with self._checking:
            before = self.problem
            min_free = DISK_FULL_BYTES if before is None else DISK_RECOVERED_BYTES
            found = storage_problem(self._folder, min_free=min_free, write=write or before is not None)
            self.problem = None if found is None else found.text
        if (before is None) != (self.problem is None):
            if found is not None:
                logger.warning("%s; %s: batches wait until then", *found)
            else:
                logger.warning("there is room in %s again; batches continue", self._folder)
            self._on_change()
        return self.problem


class StorageFailure(NamedTuple):
    text: str
    advice: str = ADVICE


def storage_problem(folder: Path, *, min_free: int = DISK_RECOVERED_BYTES, write: bool = True) -> StorageFailure | None:
    """Return why nothing can be stored in a folder, or in its nearest existing parent; None if files can be stored.

    ``min_free`` bytes must be free; ``write``: whether to write and remove a file of ``PROBE_BYTES``, too.
    """
    existing = next((each for each in (folder, *folder.parents) if each.is_dir()), folder)
    try:
        disk = os.statvfs(existing)
        free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
        if free < min_free:
            return StorageFailure(f"nothing can be stored in {folder}: its disk is full ({free >> 10:,} KiB are free)")
        if disk.f_files and not disk.f_ffree:
            return StorageFailure(f"nothing can be stored in {folder}: its disk has no room for another file")
        if write:
            _write_probe(existing)
    except OSError as exc:
        reason = "a size limit is reached" if exc.errno == errno.EFBIG else exc.strerror
        return StorageFailure(f"nothing can be stored in {folder}: {reason}", file_advice(exc, ADVICE))
    return None


def require_storage(data_dir: Path) -> None:
    """Raise a ``StoreError`` with the path and advice if nothing can be stored."""
    if (problem := storage_problem(data_dir)) is not None:
        raise StoreError(f"{problem.text}; {problem.advice}, or choose another folder with --data-dir")


@contextmanager
def storage_required(data_dir: Path) -> Iterator[None]:
    """Check that files can be stored, and check again where a ``StoreError`` leaves the ``with`` block."""
    require_storage(data_dir)
    try:
        yield
    except StoreError:
        require_storage(data_dir)
        raise


def _write_probe(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE_BYTES))
