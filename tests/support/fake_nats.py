"""A NATS server of a few lines, whose greeting and replies to pings a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_INFO: dict[str, object] = {"server_id": "x", "version": "2.10.0", "proto": 1, "max_payload": 1 << 20, "headers": True}


class FakeNatsServer:
    """Answers pings and records everything that its clients send.

    Args:
        after_ping: bytes to send after the reply to each ping of a connection except the first.
        info: fields of its greeting.
    """

    def __init__(self, after_ping: bytes, info: dict[str, object]) -> None:
        self.received, self.url = b"", ""
        self.writers: list[asyncio.StreamWriter] = []
        self._after_ping = after_ping
        self._greeting = b"INFO " + json.dumps({**_INFO, **info}).encode() + b"\r\n"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self._greeting)
        received, n_pings = b"", 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.received += data
                received += data
                while n_pings < received.count(b"PING\r\n"):
                    writer.write(b"PONG\r\n" + (self._after_ping if n_pings else b""))
                    n_pings += 1
                await writer.drain()
        writer.close()


@asynccontextmanager
async def run_fake_nats(after_ping: bytes = b"", *, port: int = 0, **info: object) -> AsyncIterator[FakeNatsServer]:
    server = FakeNatsServer(after_ping, info)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", port)
    async with listener:
        server.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server
