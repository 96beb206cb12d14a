"""A separate program that supervises one environment server for a node; it needs only the standard library.

    python -I -S process_guard.py COMMAND… < pipe

The server gets the environment variables of this program; a variable ``AGENTGYM_SERVER_ENV_NAME`` becomes ``NAME``, so
that variables for the server do not affect this program.

The program runs the command in its own process group and exits with the exit code of the command. The node holds the
other end of standard input: when standard input closes, the node stops the server or has died. The program then ends
the whole process group: first with SIGTERM, and after ``STOP_GRACE_S`` seconds with SIGKILL.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import FrameType

STOP_GRACE_S = 3.0
"""Seconds that the server has to end after SIGTERM, before SIGKILL."""
EXIT_NOT_STARTED = 127
SERVER_VARIABLE_PREFIX = "AGENTGYM_SERVER_ENV_"


def main(command: list[str]) -> int:
    """Run the server; return its exit code, or 128 plus the number of the signal that ended it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _ignore_signal)  # not SIG_IGN, which the server would inherit
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=server_environ(os.environ))
    except OSError as exc:
        os.write(2, f"{command[0]} could not be started: {exc.strerror}\n".encode(errors="replace"))
        return EXIT_NOT_STARTED
    if _wait_for_end(server, wakeup_read):
        _stop_group(server)
    os.killpg(0, signal.SIGTERM)  # processes that the server left behind
    code = server.wait()
    return code if code >= 0 else 128 - code


def server_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the server; a variable with the prefix replaces one without."""
    own = {name: value for name, value in environ.items() if not name.startswith(SERVER_VARIABLE_PREFIX)}
    prefixed = {name: value for name, value in environ.items() if name.startswith(SERVER_VARIABLE_PREFIX)}
    return own | {name.removeprefix(SERVER_VARIABLE_PREFIX): value for name, value in prefixed.items()}


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal handler must exist, so that the wakeup file descriptor interrupts ``select``."""


def _wait_for_end(server: subprocess.Popen[bytes], wakeup_read: int) -> bool:
    while server.poll() is None:
        ready, _, _ = select.select([0, wakeup_read], [], [])
        if wakeup_read in ready:
            os.read(wakeup_read, 512)
        if 0 in ready and not os.read(0, 512):
            return True
    return False


def _stop_group(server: subprocess.Popen[bytes]) -> None:
    os.killpg(0, signal.SIGTERM)
    try:
        server.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGKILL)  # ends this process, too


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
