"""Where events go, and the connection that is kept to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
from nats.aio.client import Client

from runner.bus.connection import BusAddress, BusState, Connection
from runner.bus.streams import DEFAULTS
from runner.config import StreamSettings
from runner.errors import RunnerError

SinkStatus: TypeAlias = Literal["absent", "connecting", "up", "down", "stalled"]

LOOK_AGAIN_S = 1.0
"""Seconds between two looks for an address where there is none."""


@dataclass(frozen=True)
class Sink:
    """Somewhere durable events and live items go.

    Args:
        name: ``local`` for the node's own broker, ``egress`` for the other one; the outbox adds the address to the
            latter, see ``place_of``.
        read_address: asked at each attempt to connect; None while there is nothing to connect to.
        owned: the own broker, where streams are made as needed.
        streams: what they keep there.
    """

    name: str
    read_address: Callable[[], BusAddress | None]
    owned: bool = False
    streams: StreamSettings = DEFAULTS


class SinkState(msgspec.Struct, frozen=True):
    """How a sink is doing: ``cause`` says why it is ``down``, or ``stalled``, which is there but takes no events."""

    sink: str
    status: SinkStatus
    cause: str | None = None


OnState: TypeAlias = Callable[[SinkState], None]


class Uplink:
    """Keeps one connection to a sink.

    Attributes:
        up: set while connected to a server that answers.
        down: set while not.
        came_up: set at each time the connection has come up; cleared by who waits for it.
        n_ups: how often it has come up.
    """

    def __init__(self, sink: Sink, *, client_name: str, on_state: OnState) -> None:
        """Not connected before ``run``."""
        self.sink = sink
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.down.set()
        self.came_up = asyncio.Event()
        self.n_ups = 0
        self.state = SinkState(sink.name, "connecting")
        self._client_name = client_name
        self._on_state = on_state
        self._connection: Connection | None = None

    @property
    def unreachable(self) -> bool:
        """Whether there is nothing to wait for: no address, or a first attempt that failed."""
        return self.state.status in ("absent", "down") and not self.n_ups

    @property
    def client(self) -> Client | None:
        """The client while connected."""
        return self._connection.client if self._connection is not None and self.up.is_set() else None

    def refused(self, subject: str) -> str | None:
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

    async def _open(self) -> Connection | None:
        try:
            address = self.sink.read_address()
            if address is None:
                self.tell("absent")
                return None
            return await Connection.open(
                address,
                name=self._client_name,
                on_state=self._follow,
                read_address=self.sink.read_address,
                required=False,
            )
        except RunnerError as exc:  # an address that cannot be used; it may be mended while we run
            self.tell("down", str(exc))
            return None

    def _follow(self, state: BusState) -> None:
        if self._connection is None:
            return  # ``run`` asks for the state once there is a client to go with it
        match state.status:
            case "connected":
                self._set_up(True)
                self.tell("up")
            case "connecting":
                self._set_up(False)
                self.tell("connecting")
            case "stalled" | "disconnected" | "closed":
                self._set_up(False)
                self.tell("stalled" if state.status == "stalled" else "down", state.reason or None)

    def _set_up(self, up: bool) -> None:
        """Both events, as one cannot wait for an event to be cleared."""
        (self.up if up else self.down).set()
        (self.down if up else self.up).clear()
        if up:
            self.n_ups += 1
            self.came_up.set()

    def tell(self, status: SinkStatus, cause: str | None = None) -> None:
        """Report a state, once."""
        state = SinkState(self.sink.name, status, cause)
        if state != self.state:
            self.state = state
            self._on_state(state)
