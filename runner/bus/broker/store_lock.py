"""Lock on a broker's store; without it, two servers could use one store and lose messages."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from runner.bus.errors import BusError

_POLL_S = 0.05


class StoreLock:
    """Lock held by this process and by the server that inherits ``descriptor``, until both have ended.

    Args:
        path: the lock file, which contains the pids of its holders.
        timeout_s: seconds to wait; the server of a killed node takes a moment to end.

    Raises:
        BusError: another process holds the lock; the message has its pid.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        """Acquire the lock."""
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + timeout_s
        while not _try_lock(self.descriptor):
            if time.monotonic() > deadline:
                holder = _holder(self.descriptor)
                os.close(self.descriptor)
                raise BusError("other", f"{path.parent} is in use by process {holder}; stop that process first")
            time.sleep(_POLL_S)
        self.record(None)

    def record(self, server: int | None) -> None:
        """Write the pids of this process and of the server into the lock file."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()} {server or ''}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock of this process; the server keeps it until it ends."""
        os.close(self.descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    pids = os.pread(descriptor, 64, 0).decode(errors="replace").split()
    return next((pid for pid in pids if _is_running(pid)), "unknown")


def _is_running(pid: str) -> bool:
    with contextlib.suppress(ValueError, OverflowError, ProcessLookupError, PermissionError):
        os.kill(int(pid), 0)
        return True
    return False
