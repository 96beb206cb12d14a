"""A cluster of real nats-servers, which tests kill, drain, empty and restart one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import nats
import nats.errors
import psutil
from nats.aio.client import Client
from nats.js.api import StreamConfig

from tests.support.env_server_process import free_port
from tests.support.nats_server import NatsServer

SETTLE_S = 60.0
"""Seconds for an election, or for a restarted server to catch up; an election alone takes up to 9 seconds."""

GRACE_S = 1
"""Seconds from the signal of lame-duck mode until the server begins to disconnect its clients; 10 by default."""


class NatsCluster:
    """Servers that form one cluster; as a bus, it has the addresses of all of them.

    The ports of the routes are chosen first, because every server must name the routes of all. ``config`` is the part
    of the configuration that all servers share.
    """

    def __init__(
        self, folder: Path, *, n_servers: int = 3, jetstream: bool = True, config: Mapping[str, Any] | None = None
    ) -> None:
        routes = [free_port() for _ in range(n_servers)]
        self._health_ports = [free_port() for _ in range(n_servers)]
        self.servers = [
            NatsServer(
                folder / f"s{number}",
                jetstream=jetstream,
                config={
                    **(config or {}),
                    "server_name": f"s{number}",
                    "http": f"127.0.0.1:{self._health_ports[number]}",
                    "lame_duck_grace_period": f"{GRACE_S}s",
                    "cluster": {
                        "name": "cluster",
                        "listen": f"127.0.0.1:{routes[number]}",
                        "routes": [f"nats://127.0.0.1:{port}" for port in routes],
                    },
                },
            )
            for number in range(n_servers)
        ]

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.kill()

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    @property
    def display_url(self) -> str:
        return self.url

    def others(self, server: NatsServer) -> list[NatsServer]:
        return [each for each in self.servers if each is not server]

    async def wait_until_healthy(self) -> None:
        """Start the servers that do not run, and wait until each has a copy of everything the cluster keeps."""
        async with asyncio.timeout(SETTLE_S):
            for number, server in enumerate(self.servers):
                if not server.running:
                    await asyncio.to_thread(server.start)
                while not await asyncio.to_thread(self._is_healthy, number):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)

    async def leader(self, stream: str) -> NatsServer:
        """Return the server that leads a stream, once there is one."""
        running = next(server for server in self.servers if server.running)
        async with asyncio.timeout(SETTLE_S), self.client(running) as client:
            while True:
                with contextlib.suppress(nats.errors.Error):  # such as a time-out while there is none
                    info = await client.jetstream(timeout=1).stream_info(stream)
                    if info.cluster is not None and info.cluster.leader is not None:
                        return self.servers[int(info.cluster.leader.removeprefix("s"))]
                await asyncio.sleep(0.1)

    def server_of(self, pid: int) -> NatsServer | None:
        """Return the server to which a process has its connection, None while it has none."""
        connections = psutil.Process(pid).net_connections("tcp")
        ports = {each.raddr.port for each in connections if each.status == psutil.CONN_ESTABLISHED}
        return next((server for server in self.servers if server.port in ports), None)

    async def wait_for_server_of(self, pid: int, *, other_than: NatsServer | None = None) -> NatsServer:
        async with asyncio.timeout(SETTLE_S):
            while (server := self.server_of(pid)) is None or server is other_than:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            return server

    @asynccontextmanager
    async def client(self, *servers: NatsServer) -> AsyncIterator[Client]:
        """Yield a client of these servers, which also moves to the others."""
        urls = [server.url for server in servers or self.servers]
        client = await nats.connect(urls, connect_timeout=5, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        try:
            yield client
        finally:
            await client.close()

    async def add_only_stream(self, name: str, subjects: list[str]) -> None:
        """Add an empty stream with a copy on each server, in place of all earlier streams."""
        config = StreamConfig(name=name, subjects=subjects, num_replicas=len(self.servers))
        async with asyncio.timeout(SETTLE_S), self.client() as client:
            while True:
                try:
                    js = client.jetstream(timeout=5)
                    for known in await js.streams_info():
                        await js.delete_stream(str(known.config.name))
                    await js.add_stream(config)
                except nats.errors.Error:  # the cluster elects its leader
                    await asyncio.sleep(0.2)
                else:
                    return

    def _is_healthy(self, number: int) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._health_ports[number]}/healthz", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except (URLError, OSError):
            return False


def begin_lame_duck_mode(server: NatsServer) -> None:
    """Have a server accept no more clients, give its streams to other servers, and disconnect its clients one by one.

    It exits when the last one has gone.
    """
    os.kill(server.pid, signal.SIGUSR2)
