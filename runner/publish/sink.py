"""Sinks of events: ``Sink``, its ``SinkConnection``, and its key and lock file in the outbox.

Each address has its own key, so that two brokers never share delivery states.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from nats.aio.client import Client

from runner.bus.connection import BusAddress, BusState, NatsConnection
from runner.bus.streams import DEFAULT_STREAMS
from runner.config import StreamSettings
from runner.errors import RunnerError
from runner.publish.outbox import LOCAL

SinkStatus: TypeAlias = Literal["absent", "connecting", "up", "down", "stalled"]

_STATES: Final[dict[SinkStatus, str]] = {
    "absent": "has no address, so events wait",
    "connecting": "is connecting",
    "up": "is connected",
    "down": "is not connected, so events wait",
    "stalled": "is connected, but events wait",
}

ADDRESS_POLL_S = 1.0
"""Seconds between two reads of the address while a sink has none."""


class Sink(msgspec.Struct, frozen=True):
    """Destination of durable events and live items.

    Args:
        name: ``local`` for the node's own broker, ``egress`` for an external one, see ``sink_key``.
        read_address: called before each attempt to connect; returns None while there is no address.
        owned: whether the sink is the node's own broker, on which the runner creates streams.
    """

    name: str
    read_address: Callable[[], BusAddress | None]
    owned: bool = False
    streams: StreamSettings = DEFAULT_STREAMS


class SinkState(msgspec.Struct, frozen=True):
    """State of a sink; ``cause`` is the reason for ``down`` or ``stalled`` (connected, but accepts no events)."""

    sink: str
    status: SinkStatus
    cause: str | None = None

    @property
    def text(self) -> str:
        return f"{broker_name(self.sink)} {_STATES[self.status]}{(self.cause and f': {self.cause}') or ''}"


OnState: TypeAlias = Callable[[SinkState], None]


class SinkConnection:
    """Connection to a sink that reconnects forever; ``n_connects`` counts how often the server became responsive."""

    def __init__(self, sink: Sink, *, client_name: str, on_state: OnState) -> None:
        self.sink = sink
        self.n_connects = 0
        self.state = SinkState(sink.name, "connecting")
        self._client_name = client_name
        self._on_state = on_state
        self._connection: NatsConnection | None = None
        self._changed = asyncio.Event()

    @property
    def is_unreachable(self) -> bool:
        """Whether there is no address, or connecting has failed and has never succeeded."""
        return self.state.status in ("absent", "down") and not self.n_connects

    @property
    def client(self) -> Client | None:
        connection = self._connection
        return connection.client if connection is not None and connection.connected else None

    def wait_changed(self) -> Coroutine[Any, Any, object]:
        return self._changed.wait()

    def publish_denial(self, subject: str) -> str | None:
        error = self._connection.permission_error(subject) if self._connection is not None else None
        return None if error is None else str(error)

    async def run(self) -> None:
        while (address := self._read_address()) is None:  # noqa: ASYNC110 - the address is in a file
            await asyncio.sleep(ADDRESS_POLL_S)
        connection = self._connection = NatsConnection(
            address, name=self._client_name, on_state=self._apply_state, read_address=self.sink.read_address
        )
        try:
            await connection.run()
        finally:
            self._connection = None
            self._wake()
            await connection.close()

    def _read_address(self) -> BusAddress | None:
        try:
            if (address := self.sink.read_address()) is None:
                self.report("absent")
        except RunnerError as exc:  # the address is invalid and may be corrected later
            self.report("down", str(exc))
            return None
        return address

    def _apply_state(self, state: BusState) -> None:
        match state.status:
            case "connected":
                self.n_connects += 1
                self.report("up")
            case "stalled" | "disconnected":
                self.report("stalled" if state.status == "stalled" else "down", state.reason)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def report(self, status: SinkStatus, cause: str | None = None) -> None:
        state = SinkState(self.sink.name, status, cause)
        if state != self.state:
            self.state = state
            self._on_state(state)


def broker_name(sink: str) -> str:
    """Return what users read for the name or key of a sink."""
    name, _, servers = sink.partition(" ")
    return "the node's own broker" if name == LOCAL else f"the external broker {servers}".rstrip()


def sink_key(sink: Sink) -> str | None:
    """Return a sink's key in the outbox: ``local``, or name and servers; None while it has no valid address."""
    if sink.name == LOCAL:
        return LOCAL
    try:
        address = sink.read_address()
        return None if address is None else f"{sink.name} {','.join(sorted(set(address.servers)))}"
    except RunnerError:  # the connection reports the reason
        return None


def sink_lock_path(data_dir: Path, key: str) -> Path:
    """Return the file whose lock is held by the process that drains the outbox to a sink."""
    name, _, address = key.partition(" ")
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    return data_dir / (f"outbox.{name}-{digest}.lock" if address else f"outbox.{name}.lock")
