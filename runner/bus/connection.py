"""Connection to a bus: its loop walks all servers, reports the state, and replaces each lost client by a new one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from nats.aio.client import Client

from runner.bus.address import BusAddress, TlsSettings, address_from_environ, address_of_node
from runner.bus.backoff import Backoff
from runner.bus.errors import BusError, BusErrorKind, BusState
from runner.bus.hardened_client import HardenedNatsClient, Server, connect_options
from runner.errors import RunnerError, catch_foreign, log_failure

__all__ = [
    "BusAddress",
    "BusError",
    "BusErrorKind",
    "BusState",
    "NatsConnection",
    "TlsSettings",
    "address_from_environ",
    "address_of_node",
]

logger = logging.getLogger(__name__)

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 2
MAX_BACKOFF_S = 1.0


class NatsConnection:
    """Connection that is restored for ever. Create it with ``open``; end it with ``async with`` or ``close``.

    Each connect makes a new ``client``, on which everything has to be subscribed again.

    Args:
        name: client name shown by the server.
        on_state: called in the event loop at each change of state.
        read_address: called before each attempt, for a bus that may move; returns its address, None if unchanged.
        timeout_s: seconds for an attempt at one server.

    Attributes:
        generation: number of clients connected so far.
        last_loss: reason of the last disconnect, "" before the first one.
    """

    def __init__(
        self,
        address: BusAddress,
        *,
        name: str,
        on_state: Callable[[BusState], None] | None = None,
        read_address: Callable[[], BusAddress | None] | None = None,
        timeout_s: float = 3.0,
    ) -> None:
        self.address = address
        self.state = BusState("connecting")
        self.generation = 0
        self.last_loss = ""
        self._name = name
        self._on_state = on_state
        self._read_address = read_address
        self._timeout_s = timeout_s
        self._client: HardenedNatsClient | None = None
        self._known: list[Server] = []
        self._changed = asyncio.Event()
        self._backoff = Backoff(MAX_BACKOFF_S)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        address: BusAddress,
        *,
        name: str,
        on_state: Callable[[BusState], None] | None = None,
        read_address: Callable[[], BusAddress | None] | None = None,
        timeout_s: float = 3.0,
        required: bool = True,
    ) -> Self:
        """Connect to a bus and stay connected; for the arguments see the class.

        Args:
            required: raise when no server can be connected; otherwise retry in the background.

        Raises:
            BusError: why no server could be connected.
            ConfigError: the address is invalid.
        """
        connection = cls(address, name=name, on_state=on_state, read_address=read_address, timeout_s=timeout_s)
        try:
            await connection._connect()
        except RunnerError as exc:
            if required:
                raise
            connection._set_disconnected(exc)
        connection._task = asyncio.create_task(connection.run())
        return connection

    @property
    def client(self) -> Client:
        """The client of the latest connect; raises ``BusError`` while there has been none."""
        if self._client is None:
            raise BusError(self.state.kind or "other", self.state.reason or "not connected")
        return self._client

    @property
    def connected(self) -> bool:
        """Whether the server answers; a loss counts before it is reported."""
        return self.state.status == "connected" and self._client is not None and self._client.is_connected

    def permission_error(self, subject: str) -> BusError | None:
        """Return the error when the server denied publishing or subscribing since the last connect, else None."""
        return None if self._client is None else self._client.denied.get(subject.lower())

    async def wait_connected(self) -> None:
        while not self.connected:
            await self.wait_changed()

    def wait_changed(self) -> Coroutine[Any, Any, object]:
        """Wait until the connection is lost, stalled or restored, or another attempt to connect has failed.

        The first change after this call counts, even if it comes before the coroutine runs.
        """
        return self._changed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send pending data, then close permanently; waits for a hanging server for a few seconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._client is not None:
            await self._client.shut()
        self._set_state(BusState("closed"))

    async def run(self) -> None:
        """Keep connected until cancelled; ``open`` has started this in a task."""
        while True:
            if self._client is not None and not self._client.is_closed:
                await self._follow(self._client)
            await asyncio.sleep(self._backoff.next())
            self._refresh_address()
            try:
                await self._connect()
            except RunnerError as exc:
                self._set_disconnected(exc)

    def _refresh_address(self) -> None:
        before = self.address
        if self._read_address is not None:
            with contextlib.suppress(RunnerError):  # files may be damaged or half replaced; keep the old address
                self.address = self._read_address() or before
        if self.address != before:
            self._known.clear()

    async def _connect(self) -> None:
        """Connect to one of the servers, those of the address and those that the last one has announced.

        The server that was lost comes last. Keys and certificates are read each time, as they may have been replaced.
        """
        options = connect_options(self.address)
        servers = list(dict.fromkeys([*map(Server, self.address.servers), *self._known]))
        random.shuffle(servers)
        servers.sort(key=lambda server: server in self._known[:1])
        errors: list[BusError] = []
        for server in servers:
            client = HardenedNatsClient(self.address, server)
            try:
                await client.open(self._name, options, self._timeout_s)
            except BusError as exc:
                errors.append(exc)
                continue
            self._client = client
            self.generation += 1
            self._backoff.reset()
            self._set_state(BusState("connected"))
            return
        raise next((error for error in errors if error.kind in ("auth", "tls")), errors[0])

    async def _follow(self, client: HardenedNatsClient) -> None:
        """Wait for the end of a connection; report meanwhile whether the server answers."""
        probing = asyncio.create_task(self._probe(client))
        try:
            await client.lost.wait()
        finally:
            probing.cancel()
        self._known = client.known_servers
        self._set_disconnected(client.loss)
        await client.shut()

    async def _probe(self, client: HardenedNatsClient) -> None:
        """Detect a hanging server, which keeps its connections open."""
        while not client.lost.is_set():  # flushing may swallow a cancellation
            await asyncio.sleep(PROBE_INTERVAL_S)
            answers = await client.is_responsive(PROBE_TIMEOUT_S)
            if client.lost.is_set():
                return
            if not answers:
                self._set_state(BusState("stalled", "timeout", f"{self.address.display_url} does not answer"))
            elif self.state.status == "stalled":
                self._set_state(BusState("connected"))

    def _set_disconnected(self, error: RunnerError) -> None:
        self.last_loss = str(error)
        self._set_state(BusState("disconnected", error.kind if isinstance(error, BusError) else "other", str(error)))

    def _set_state(self, state: BusState) -> None:
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                with catch_foreign(log_failure(logger, "a state callback")):
                    self._on_state(state)
        self._changed.set()
        self._changed = asyncio.Event()
