"""Where events go, and the connection that is kept to it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from nats.aio.client import Client

from runner.bus.connection import BusAddress, BusState, NatsConnection
from runner.bus.streams import DEFAULT_STREAMS
from runner.config import StreamSettings
from runner.errors import RunnerError
from runner.publish.outbox import LOCAL

SinkStatus: TypeAlias = Literal["absent", "connecting", "up", "down", "stalled"]

LOOK_AGAIN_S = 1.0
"""Seconds between two looks for an address where there is none."""


@dataclass(frozen=True)
class Sink:
    """Somewhere durable events and live items go.

    Args:
        name: ``local`` for the node's own broker, ``egress`` for the other one; the outbox adds the address to the
            latter, see ``sink_key``.
        read_address: asked at each attempt to connect; None while there is nothing to connect to.
        owned: the own broker, where streams are made as needed.
        streams: what they keep there.
    """

    name: str
    read_address: Callable[[], BusAddress | None]
    owned: bool = False
    streams: StreamSettings = DEFAULT_STREAMS


class SinkState(msgspec.Struct, frozen=True):
    """How a sink is doing: ``cause`` says why it is ``down``, or ``stalled``, which is there but takes no events."""

    sink: str
    status: SinkStatus
    cause: str | None = None


OnState: TypeAlias = Callable[[SinkState], None]


class SinkConnection:
    """Keeps one connection to a sink.

    Attributes:
        up: set while connected to a server that answers.
        down: set while not.
        reconnected: set at each time the connection has come up; cleared by who waits for it.
        n_connects: how often it has come up.
    """

    def __init__(self, sink: Sink, *, client_name: str, on_state: OnState) -> None:
        """Not connected before ``run``."""
        self.sink = sink
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.down.set()
        self.reconnected = asyncio.Event()
        self.n_connects = 0
        self.state = SinkState(sink.name, "connecting")
        self._client_name = client_name
        self._on_state = on_state
        self._connection: NatsConnection | None = None

    @property
    def is_unreachable(self) -> bool:
        """Whether there is nothing to wait for: no address, or a first attempt that failed."""
        return self.state.status in ("absent", "down") and not self.n_connects

    @property
    def client(self) -> Client | None:
        """The client while connected."""
        return self._connection.client if self._connection is not None and self.up.is_set() else None

    def publish_refusal(self, subject: str) -> str | None:
        """Why the server does not let us publish on a subject; None when it did not say so."""
        error = self._connection.permission_error(subject) if self._connection is not None else None
        return None if error is None else str(error)

    async def run(self) -> None:
        """Connect, and stay connected until cancelled."""
        while (connection := await self._open()) is None:  # noqa: ASYNC110 - a file says where
            await asyncio.sleep(LOOK_AGAIN_S)
        async with connection:
            self._connection = connection
            self._follow(connection.state)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._set_up(False)
                self._connection = None

    async def _open(self) -> NatsConnection | None:
        try:
            address = self.sink.read_address()
            if address is None:
                self.report("absent")
                return None
            return await NatsConnection.open(
                address,
                name=self._client_name,
                on_state=self._follow,
                read_address=self.sink.read_address,
                required=False,
            )
        except RunnerError as exc:  # an address that cannot be used; it may be mended while we run
            self.report("down", str(exc))
            return None

    def _follow(self, state: BusState) -> None:
        if self._connection is None:
            return  # ``run`` asks for the state once there is a client to go with it
        match state.status:
            case "connected":
                self._set_up(True)
                self.report("up")
            case "connecting":
                self._set_up(False)
                self.report("connecting")
            case "stalled" | "disconnected" | "closed":
                self._set_up(False)
                self.report("stalled" if state.status == "stalled" else "down", state.reason or None)

    def _set_up(self, up: bool) -> None:
        """Both events, as one cannot wait for an event to be cleared."""
        (self.up if up else self.down).set()
        (self.down if up else self.up).clear()
        if up:
            self.n_connects += 1
            self.reconnected.set()

    def report(self, status: SinkStatus, cause: str | None = None) -> None:
        """Report a state, once."""
        state = SinkState(self.sink.name, status, cause)
        if state != self.state:
            self.state = state
            self._on_state(state)


def sink_key(sink: Sink) -> str | None:
    """``local``, or the sink's name and its servers without user information; None while no address can be used."""
    if sink.name == LOCAL:
        return LOCAL
    try:
        address = sink.read_address()
        return None if address is None else f"{sink.name} {','.join(sorted(set(address.servers)))}"
    except RunnerError:  # whoever connects says why
        return None


def sink_lock_path(outbox: Path, place: str) -> Path:
    """The file whose lock has who brings events to a place."""
    name, _, address = place.partition(" ")
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    return outbox.with_name(f"outbox.{name}-{digest}.lock" if address else f"outbox.{name}.lock")
