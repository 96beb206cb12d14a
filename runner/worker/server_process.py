"""The process of a fork server. Starting it imports little, so that a command starts it before it loads its modules."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import IO, Literal, NamedTuple, TypeAlias

from runner.util.display_text import public_variables
from runner.util.resources import raise_open_file_limit

StartMode: TypeAlias = Literal["fork", "spawn"]
DEFAULT_MODE: StartMode = "fork" if sys.platform == "linux" else "spawn"
"""``spawn`` where a process cannot be forked safely."""


class ServerProcess(NamedTuple):
    """A started fork server, its control channel, and the file with its output."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    errors: IO[bytes]

    def discard(self) -> None:
        """End the server, which has no workers."""
        self.process.kill()
        self.process.wait()
        self.control.close()
        self.errors.close()


_early: list[ServerProcess] = []


def start_server(mode: StartMode, key_names: Iterable[str] = ()) -> ServerProcess:
    """Start a fork server without waiting for it; it inherits the environment variables without secrets.

    Args:
        mode: how it starts workers.
        key_names: names of variables with secrets that ``public_variables`` does not recognize.

    Raises:
        OSError: files or processes ran out.
    """
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as opened, theirs:
        opened.callback(ours.close)
        import tempfile  # imported late: most runs start no process

        errors = opened.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.worker", "server", str(theirs.fileno()), mode],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(theirs.fileno(),),
            env=public_variables(os.environ, key_names),
            start_new_session=True,  # Ctrl-C reaches only the driver
        )
        opened.pop_all()
    return ServerProcess(process, ours, errors)


def start_early() -> None:
    """Start a fork server for ``take_early``, before the profile is known; do nothing if it cannot be started."""
    raise_open_file_limit()  # the server and its workers inherit it
    with contextlib.suppress(OSError):  # the start of the first worker fails with the same error, and reports it
        _early.append(start_server(DEFAULT_MODE))


def take_early() -> ServerProcess | None:
    """Return the server that ``start_early`` has started, once; None if there is none."""
    return _early.pop() if _early else None


def end_early() -> None:
    """End the server that ``start_early`` has started, if it is not needed."""
    if (server := take_early()) is not None:
        server.discard()
