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

GRACE_S = 3.0
"""Seconds a server has to end once it was asked to."""
NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Keep the server; returns its exit code, 128 and the number of a signal where that ended it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _go_on)  # not ignored: what is ignored stays so in the server
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as exc:
        os.write(2, f"{command[0]} could not be started: {exc.strerror}\n".encode(errors="replace"))
        return NOT_STARTED
    if _unwanted(server, woken):
        _end(server)
    os.killpg(0, signal.SIGTERM)  # what it started and left behind
    code = server.wait()
    return code if code >= 0 else 128 - code


def _go_on(number: int, frame: FrameType | None) -> None:
    """Waiting ends and is begun again."""


def _unwanted(server: subprocess.Popen[bytes], woken: int) -> bool:
    """Wait until the server ended by itself, or is not wanted any more: then True."""
    while server.poll() is None:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
        if 0 in ready and not os.read(0, 512):
            return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    os.killpg(0, signal.SIGTERM)
    try:
        server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGKILL)  # this process with it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
