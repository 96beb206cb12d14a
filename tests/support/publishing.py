"""Outboxes, events and running publishers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from runner.bus.connection import BusAddress
from runner.events import subjects
from runner.events.subjects import DurableNames
from runner.publish.outbox import LOCAL, Outbox, OutboxEvent
from runner.publish.publisher import Publisher, Sink, SinkState
from runner.publish.sink import sink_key
from runner.store import EpisodeStore, open_index
from runner.util.clock import Clock
from tests.support.nats_server import Bus

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
WAIT_S = 20.0
RUNNER_PASSWORD = "canary-of-the-publisher"


def outbox_event(number: int, kind: str = subjects.EPISODE_COMPLETED, **fields: Any) -> OutboxEvent:  # noqa: ANN401
    known = {"id": f"event:{number}", "subject": kind, "type": kind, "source": "node1", "time": NOW}
    return OutboxEvent(**{**known, "payload": b'{"number": %d}' % number, **fields})


def event_ids(messages: Sequence[Msg]) -> list[str]:
    return [(message.headers or {})["ce-id"] for message in messages]


def sink_to(bus: Bus, name: str = "egress", **login: Any) -> Sink:  # noqa: ANN401
    return Sink(name, lambda: BusAddress(bus.url, **login), owned=name == "local")


def egress_key(bus: Bus) -> str:
    """Key of the sink ``egress`` in the outbox."""
    return f"egress {bus.display_url}"


def runner_users(publish: object, password: str = RUNNER_PASSWORD) -> dict[str, object]:
    """Return a server configuration with a user ``runner``, who may publish on these subjects, and a user ``admin``."""
    user = {"user": "runner", "password": password, "permissions": {"publish": publish, "subscribe": ">"}}
    return {"authorization": {"users": [user, {"user": "admin", "password": "admin"}]}}


def pending_ids(outbox: Outbox, sink: str = LOCAL) -> list[str]:
    return [event.id for event in outbox.pending(sink, 1000)]


@contextmanager
def open_outbox(folder: Path, names: DurableNames | None = None, clock: Clock | None = None) -> Iterator[Outbox]:
    with closing(open_index(EpisodeStore(folder))) as index, closing(Outbox(index, names, clock)) as outbox:
        yield outbox


class RunningPublisher:
    def __init__(self, outbox: Outbox, sinks: Sequence[Sink], **options: Any) -> None:  # noqa: ANN401
        self.outbox = outbox
        self.states: list[SinkState] = []
        self.publisher = Publisher(outbox, sinks, self._on_state, **options)
        self._changed = asyncio.Event()

    def _on_state(self, state: SinkState) -> None:
        self.states.append(state)
        self._changed.set()

    async def wait_for_state(self, status: str, cause: str = "", sink: str = "") -> SinkState:
        """Return the first past or future state with this status, and with these texts in its cause and sink name."""
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
async def run_publisher(outbox: Outbox, *sinks: Sink, **options: Any) -> AsyncIterator[RunningPublisher]:  # noqa: ANN401
    """Run a publisher, for which earlier events wait, too; ``options`` are the keyword arguments of ``Publisher``."""
    running = RunningPublisher(outbox, sinks, **options)
    running.publisher.register_sinks()
    outbox.send_earlier(*(key for sink in sinks if (key := sink_key(sink)) is not None))
    task = asyncio.create_task(running.publisher.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.cancelled(), task


@asynccontextmanager
async def nats_client(bus: Bus, **options: Any) -> AsyncIterator[Client]:  # noqa: ANN401
    client = await nats.connect(bus.url, connect_timeout=5, **options)
    try:
        yield client
    finally:
        await client.close()


async def add_external_stream(bus: Bus, **config: Any) -> None:  # noqa: ANN401
    """Add the stream ``THEIRS``, which keeps all subjects of the runner."""
    async with nats_client(bus) as client:
        config = {"name": "THEIRS", "subjects": ["agentgym.>"], **config}
        await client.jetstream().add_stream(StreamConfig(**config))


async def stored_messages(bus: Bus, stream: str = subjects.EVENTS_STREAM, **options: Any) -> list[Msg]:  # noqa: ANN401
    async with nats_client(bus, **options) as client:
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
