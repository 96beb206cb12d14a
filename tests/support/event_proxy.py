"""A proxy before a nats-server that stops a durable event, or its acknowledgement, on the way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import Enum, auto
from typing import Any

from tests.support.tcp_proxy import TcpProxy

_MESSAGE_ID = re.compile(rb"\r\nNats-Msg-Id: *([^\r\n]+)")
_FROM_SERVER = (b"MSG", b"HMSG")
_WITH_PAYLOAD = (b"PUB", b"HPUB", *_FROM_SERVER)
WAIT_S = 60.0


class Fate(Enum):
    """What becomes of an event or an acknowledgement at the proxy."""

    PASS = auto()
    HOLD = auto()
    """It is kept until ``release``, and everything else on the connection passes it."""
    CUT = auto()
    """It is lost, and so is the connection of the client."""


Rule = Callable[[str], Fate]


def pass_all(event_id: str) -> Fate:
    """The rule of a proxy that forwards everything."""
    return Fate.PASS


def stop(fate: Fate, kind: str, *, after: int = 0, times: float = math.inf) -> Rule:
    """Return a rule for the events of a kind: ``after`` of them pass, ``times`` have this fate, and the others pass."""
    numbers = itertools.count()

    def rule(event_id: str) -> Fate:
        if not event_id.startswith(f"{kind}:"):
            return Fate.PASS
        return fate if after <= next(numbers) < after + times else Fate.PASS

    return rule


class EventProxy(TcpProxy):
    """Forwards NATS connections to a server on loopback, frame by frame.

    Attributes:
        on_event, on_ack: the rules, which tests replace at any time; they get the id of the event.
        sent: ids of all events that clients have sent, those that were stopped here included.
        acknowledged: ids of the events whose acknowledgement went on to the client.
        stopped: ids of the events that were stopped, or whose acknowledgement was.
    """

    def __init__(self, backend_port: int) -> None:
        super().__init__(backend_port)
        self.on_event: Rule = pass_all
        self.on_ack: Rule = pass_all
        self.sent: list[str] = []
        self.acknowledged: list[str] = []
        self.stopped: list[str] = []
        self._held: list[tuple[str, asyncio.StreamWriter, bytes]] = []
        self._has_stopped = asyncio.Event()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def pass_all(self) -> None:
        """Stop nothing more; what is held stays held."""
        self.on_event = self.on_ack = pass_all

    def release(self) -> None:
        """Forward what is held, and stop nothing more."""
        self.pass_all()
        for event_id, writer, frame in self._held:
            writer.write(frame)
            if frame.startswith(_FROM_SERVER):
                self.acknowledged.append(event_id)
        self._held.clear()

    async def wait_until_stopped(self) -> None:
        """Wait until a first event or acknowledgement was stopped."""
        async with asyncio.timeout(WAIT_S):
            await self._has_stopped.wait()

    def pipes(
        self,
        to_backend: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        to_client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        waiting: dict[bytes, str] = {}
        """Ids of the events of this connection by the subject on which each acknowledgement will arrive."""
        return self._pipe_events(*to_backend, waiting), self._pipe_acks(*to_client, waiting)

    async def _pipe_events(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: dict[bytes, str]
    ) -> None:
        with contextlib.suppress(OSError):
            async for head, frame in frames(reader):
                message_id = _MESSAGE_ID.search(frame) if head[0] == b"HPUB" else None
                if message_id is None:
                    writer.write(frame)
                    continue
                event_id = message_id[1].decode()
                waiting[head[2]] = event_id
                self.sent.append(event_id)
                if not self._passes(event_id, self.on_event(event_id), writer, frame):
                    return

    async def _pipe_acks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: dict[bytes, str]
    ) -> None:
        with contextlib.suppress(OSError):
            async for head, frame in frames(reader):
                event_id = waiting.pop(head[1], None) if head[0] in _FROM_SERVER else None
                if event_id is None:
                    writer.write(frame)
                    continue
                fate = self.on_ack(event_id)
                if fate is Fate.PASS:
                    self.acknowledged.append(event_id)
                if not self._passes(event_id, fate, writer, frame):
                    return

    def _passes(self, event_id: str, fate: Fate, writer: asyncio.StreamWriter, frame: bytes) -> bool:
        """Do with a frame what the rule says; return whether the connection stays."""
        if fate is Fate.PASS:
            writer.write(frame)
        else:
            self.stopped.append(event_id)
            self._has_stopped.set()
        if fate is Fate.HOLD:
            self._held.append((event_id, writer, frame))
        return fate is not Fate.CUT


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[list[bytes], bytes]]:
    """Yield the words of the first line of each frame, and its bytes, until the connection ends."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            line = await reader.readuntil(b"\r\n")
            head = line.split() or [b""]
            if head[0] in _WITH_PAYLOAD:
                line += await reader.readexactly(int(head[-1]) + 2)
            yield head, line
