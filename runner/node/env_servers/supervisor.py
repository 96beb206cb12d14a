"""Keeps one server for a node: a program of its own, which needs the standard library alone.

    python -I -S keeper.py COMMAND… < pipe

It starts the command in its own process group and ends as that does. When its standard input closes, because the node
wants the server stopped or is gone however that came, it ends the whole group: asked first, then made to.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from types import FrameType

STOP_GRACE_S = 3.0
"""Seconds a server has to end once it was asked to."""
EXIT_NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Keep the server; returns its exit code, 128 and the number of a signal where that ended it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _ignore_signal)  # not ignored: what is ignored stays so in the server
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as exc:
        os.write(2, f"{command[0]} could not be started: {exc.strerror}\n".encode(errors="replace"))
        return EXIT_NOT_STARTED
    if _wait_for_end(server, wakeup_read):
        _stop_group(server)
    os.killpg(0, signal.SIGTERM)  # what it started and left behind
    code = server.wait()
    return code if code >= 0 else 128 - code


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Waiting ends and is begun again."""


def _wait_for_end(server: subprocess.Popen[bytes], wakeup_read: int) -> bool:
    """Wait until the server ended by itself, or is not wanted any more: then True."""
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
        os.killpg(0, signal.SIGKILL)  # this process with it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
