"""Outboxes, events and running publishers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from runner.bus.connection import BusAddress
from runner.events import subjects
from runner.publish.outbox import Outbox, OutboxEvent
from runner.publish.publisher import Publisher, Sink, SinkState
from tests.support.nats_server import NatsServer

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
WAIT_S = 20.0


def event(number: int, kind: str = subjects.EPISODE_COMPLETED, **fields: Any) -> OutboxEvent:  # noqa: ANN401
    known = {"id": f"event:{number}", "subject": kind, "type": kind, "source": "node1", "time": NOW}
    return OutboxEvent(**{**known, "payload": b'{"number": %d}' % number, **fields})


def ids(messages: Sequence[Msg]) -> list[str]:
    return [(message.headers or {})["ce-id"] for message in messages]


def sink(server: NatsServer, name: str = "egress", **login: Any) -> Sink:  # noqa: ANN401
    return Sink(name, lambda: BusAddress(server.url, **login), owned=name == "local")


def place(server: NatsServer) -> str:
    """What the outbox calls an egress at this server."""
    return f"egress {server.url}"


@contextmanager
def outbox_in(folder: Path) -> Iterator[Outbox]:
    outbox = Outbox(folder / "outbox.sqlite")
    try:
        yield outbox
    finally:
        outbox.close()


class Running:
    """A publisher at work, and the states its sinks went through."""

    def __init__(self, outbox: Outbox, sinks: Sequence[Sink]) -> None:
        self.outbox = outbox
        self.states: list[SinkState] = []
        self.publisher = Publisher(outbox, sinks, self._seen)
        self._changed = asyncio.Event()

    def _seen(self, state: SinkState) -> None:
        self.states.append(state)
        self._changed.set()

    async def state(self, status: str, cause: str = "", sink: str = "") -> SinkState:
        """The first state, past or to come, of this status and with this text in its cause."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for state in self.states:
                    if state.status == status and cause in (state.cause or "") and sink in state.sink:
                        return state
                self._changed.clear()
                await self._changed.wait()

    async def wait_until_drained(self) -> None:
        assert await self.publisher.wait_until_drained(WAIT_S), (self.states, self.outbox.counts())


@asynccontextmanager
async def publishing(outbox: Outbox, *sinks: Sink) -> AsyncIterator[Running]:
    running = Running(outbox, sinks)
    task = asyncio.create_task(running.publisher.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.cancelled(), task


@asynccontextmanager
async def client_of(server: NatsServer, **options: Any) -> AsyncIterator[Client]:  # noqa: ANN401
    client = await nats.connect(server.url, connect_timeout=5, **options)
    try:
        yield client
    finally:
        await client.close()


async def stored(server: NatsServer, stream: str = subjects.EVENTS_STREAM, **options: Any) -> list[Msg]:  # noqa: ANN401
    """All messages of a stream."""
    async with client_of(server, **options) as client:
        js = client.jetstream()
        n = (await js.stream_info(stream)).state.messages
        if not n:
            return []
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        subscription = await js.pull_subscribe("", stream=stream, config=config)
        messages: list[Msg] = []
        while len(messages) < n:
            messages += await subscription.fetch(n, timeout=5)
        return messages
