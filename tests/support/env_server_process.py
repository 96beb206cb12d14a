"""A real environment server that tests kill and restart at the same port, and a proxy in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import IO, Self, cast

from tests.support.command import COMMAND, ENVIRON

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
def run_dropping_proxy(backend_port: int) -> Iterator[int]:
    """Forward connections to ``backend_port`` and yield the proxy's port; while the backend is gone, drop them."""
    ports: list[int] = []
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), closing(writer):
            backend_reader, backend_writer = await asyncio.open_connection("127.0.0.1", backend_port)
            with closing(backend_writer):
                pipes = [_pipe(reader, backend_writer), _pipe(backend_reader, writer)]
                tasks = [asyncio.ensure_future(pipe) for pipe in pipes]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()

    async def run() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            ports.append(listener.sockets[0].getsockname()[1])
            ready.set()
            await stop.wait()

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=run_loop, name="proxy", daemon=True)
    thread.start()
    assert ready.wait(READY_TIMEOUT_S)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_TIMEOUT_S)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
