"""A TCP proxy that can be cut: a partition is silent, as a cable that was pulled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_CHUNK = 1 << 16
_LINE_LIMIT = 1 << 22
ProxyT = TypeVar("ProxyT", bound="TcpProxy")


class TcpProxy:
    """Forwards connections to ``backend_port`` on loopback; while nothing listens there, it closes them.

    While it is cut, it accepts connections and forwards nothing. Healing resets the connections of that time, because
    their bytes were lost.

    Attributes:
        port: port of the proxy, the same over all restarts of its clients and its backend.
    """

    def __init__(self, backend_port: int) -> None:
        self.port = 0
        self._backend_port = backend_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def n_connections(self) -> int:
        return len(self._tasks)

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # asyncio would log the end of a cancelled connection
                await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._tracked(writer), contextlib.suppress(OSError):
            await self._open.wait()
            backend_reader, backend_writer = await asyncio.open_connection(
                "127.0.0.1", self._backend_port, limit=_LINE_LIMIT
            )
            with self._tracked(backend_writer):
                pipes = [
                    asyncio.ensure_future(pipe)
                    for pipe in self.pipes((reader, backend_writer), (backend_reader, writer))
                ]
                try:
                    await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pipe in pipes:
                        pipe.cancel()

    def pipes(
        self,
        to_backend: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        to_client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """Return what forwards the two directions of a connection; the first that ends closes it."""
        return self._pipe(*to_backend), self._pipe(*to_client)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()

    @contextlib.contextmanager
    def _tracked(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.close()

    async def close(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def run_proxy(proxy: ProxyT) -> AsyncIterator[ProxyT]:
    """Run a proxy on a free port."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LINE_LIMIT)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
