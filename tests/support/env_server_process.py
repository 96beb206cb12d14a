"""A real environment server that tests kill and restart at the same port, and a proxy in front of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import IO, Self, cast

from anyio.from_thread import start_blocking_portal

from tests.support.command import COMMAND, ENVIRON
from tests.support.tcp_proxy import TcpProxy, run_proxy

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


class EnvServerProcess:
    """``agentgym-runner serve ENV`` at a fixed port; killed at the end of the block.

    Attributes:
        n_starts: number of times that the server was started.
    """

    def __init__(self, env: str, port: int | None = None, *options: str) -> None:
        self.port = port or free_port()
        self.n_starts = 0
        self._command = [COMMAND, "serve", env, "--port", str(self.port), *options]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self._process = subprocess.Popen(
            self._command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.n_starts += 1
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        announcement = cast(IO[str], self._process.stdout).readline()
        watchdog.cancel()
        assert announcement, "the server did not start"

    def kill(self) -> None:
        """Kill the server as ``kill -9`` does, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=STOP_TIMEOUT_S)

    def suspend(self) -> None:
        """Stop the server without closing its sockets."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended server."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextmanager
def run_proxy_in_thread(backend_port: int) -> Iterator[int]:
    """Forward connections to ``backend_port`` and yield the proxy's port."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(run_proxy(TcpProxy(backend_port))) as proxy,
    ):
        yield proxy.port
