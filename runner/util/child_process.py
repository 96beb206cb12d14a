"""Child processes: each has a session of its own, and is killed with all that it has started; standard library only.

As a program, ``python -I -S child_process.py PARENT COMMAND…`` runs a command that Linux kills when ``PARENT`` ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import IO

_PR_SET_PDEATHSIG = 1
_POLL_S, _MAX_WAIT_S = 0.02, 3600.0
"""Seconds between two looks at a child where the system does not report its end, and where it does."""


class ChildProcess(subprocess.Popen[bytes]):
    """A child in a session of its own, which Ctrl-C does not reach; its group is killed before it is reaped.

    Args:
        env: all of its environment variables, so that no secret is inherited by mistake.
        dies_with_thread: Linux kills the child when the thread that starts it ends, and thus with this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        cwd: str | os.PathLike[str] | None = None,
        pass_fds: Collection[int] = (),
        dies_with_thread: bool = False,
    ) -> None:
        self._reaping = threading.Lock()
        own = [sys.executable, "-I", "-S", __file__, str(os.getpid())] if dies_with_thread else []
        super().__init__(
            [*own, *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def poll(self) -> int | None:
        with self._reaping:
            if self.returncode is None:
                self.returncode = reap(self.pid)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            _await_end(self.pid, left_s)
        return code

    def kill(self) -> None:
        """Also kills the processes of its group; does nothing after its end."""
        with self._reaping:
            if self.returncode is None:
                kill_group(self.pid)

    def end(self, timeout: float) -> int:
        """Wait for the end, and kill the child after ``timeout`` seconds; return its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(timeout)
        self.kill()
        return self.wait()


def reap(pid: int) -> int | None:
    """Return the exit code of a child, negative for a signal, and kill what is left of its group; None while it runs.

    The group is killed before its leader is reaped, because the pid may then belong to another process.
    """
    try:
        if has_waitid := hasattr(os, "waitid"):  # on macOS since Python 3.13
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                return None
            kill_group(pid)
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # this process ignores SIGCHLD, so the system reaps its children
        return 0
    if not ended:
        return None
    if not has_waitid:
        kill_group(pid)
    return os.waitstatus_to_exitcode(status)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_end(code: int) -> str:
    """Return what ended a process with this exit code, in words that follow its name."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def die_with(parent: int) -> None:
    """Let Linux kill this process when the thread of ``parent`` that has started it ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before that took effect
        os._exit(1)


def _await_end(pid: int, timeout_s: float) -> None:
    """Return at the end of a child, or earlier, and at the latest after ``timeout_s`` seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not on Linux, reaped on another thread, or no descriptors left
        time.sleep(min(timeout_s, _POLL_S))
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll(min(timeout_s, _MAX_WAIT_S) * 1000)
    os.close(descriptor)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
