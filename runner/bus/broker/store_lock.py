"""The lock on a broker's store: two servers on one store would both run and lose messages."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from runner.bus.errors import BusError

_POLL_S = 0.05


class StoreLock:
    """Held by this process and by the server that inherits ``descriptor``, until both are gone.

    Args:
        path: the lock file; it names its holders.
        timeout_s: how long to wait for the server of a node that was killed, which needs a moment to die, too.

    Raises:
        BusError: when another process has it, with its pid.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        """Take the lock."""
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + timeout_s
        while not _locked(self.descriptor):
            if time.monotonic() > deadline:
                holder = _holder(self.descriptor)
                os.close(self.descriptor)
                raise BusError("other", f"{path.parent} is in use by process {holder}; stop that one first")
            time.sleep(_POLL_S)
        self.record(None)

    def record(self, server: int | None) -> None:
        """Write down who holds the store, for the next one who wants it."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()} {server or ''}\n".encode(), 0)

    def release(self) -> None:
        """Let go, as far as this process is concerned."""
        os.close(self.descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """The pid of the node that has the store, or of the server it left behind."""
    pids = os.pread(descriptor, 64, 0).decode(errors="replace").split()
    return next((pid for pid in pids if _lives(pid)), "unknown")


def _lives(pid: str) -> bool:
    with contextlib.suppress(ValueError, OverflowError, ProcessLookupError, PermissionError):
        os.kill(int(pid), 0)
        return True
    return False
