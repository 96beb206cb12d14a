"""A separate program that supervises one environment server for a node; it needs only the standard library.

    python -I -S process_guard.py COMMAND… < pipe

The first line of standard input is a JSON object with the environment variables of the server. The program itself gets
none of them: variables of the loader or of the interpreter, such as ``LD_PRELOAD``, must not affect it.

The program runs the command in its own process group and exits with the exit code of the command. The node holds the
other end of standard input: when standard input closes, the node stops the server or has died. The program then ends
the whole process group: first with SIGTERM, and after ``STOP_GRACE_S`` seconds with SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

STOP_GRACE_S = 3.0
"""Seconds that the server has to end after SIGTERM, before SIGKILL."""
EXIT_NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Run the server; return its exit code, or 128 plus the number of the signal that ended it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore_signal)  # not SIG_IGN, which the server would inherit
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=json.loads(sys.stdin.buffer.readline()))
    except OSError as exc:
        os.write(2, f"{command[0]} could not be started: {exc.strerror}\n".encode(errors="replace"))
        return EXIT_NOT_STARTED
    threading.Thread(target=_stop_group_at_the_end_of_input, daemon=True).start()
    code = server.wait()
    os.killpg(0, signal.SIGTERM)  # processes that the server left behind
    return code if code >= 0 else 128 - code


def _ignore_signal(number: int, frame: FrameType | None) -> None: ...


def _stop_group_at_the_end_of_input() -> None:
    while os.read(0, 512):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(STOP_GRACE_S)
    os.killpg(0, signal.SIGKILL)  # ends this process, too


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
