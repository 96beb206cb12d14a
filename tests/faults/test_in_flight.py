"""Unread messages of a subscription: a server disconnects a client that leaves too many bytes unread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from nats.aio.client import Client

from agentgym_tui.sessions.time_ordered_buffer import TimeOrderedBuffer
from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.messages import Since
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import add_stream

pytestmark = pytest.mark.long

MAX_PENDING_BYTES: Final = 24 << 20
"""Less than the server's default of 64 MiB, so that the tests store less."""

BUFFERS: Final = (DedupBuffer, TimeOrderedBuffer)
STREAMS: Final = ("A", "B", "C", "D")
LARGE, SMALL = b"x" * 200_000, b"x" * 300
STARTS: Final[tuple[Since, ...]] = (5, "all", 30, 1, 60, "all", 2, 10)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", config={"max_pending": MAX_PENDING_BYTES}) as server:
        yield server


async def fill_stream(client: Client, stream: str, count: int) -> None:
    await add_stream(client, stream, subjects=[stream.lower()])
    js = client.jetstream(timeout=10)
    for number in range(count):
        await js.publish(stream.lower(), LARGE if number % 3 == 0 else SMALL)


def n_disconnects(nats_server: NatsServer) -> int:
    return nats_server.log.read_text().count("Slow Consumer")


@pytest.mark.parametrize("buffer", BUFFERS)
async def test_reading_large_messages_from_many_positions_causes_no_disconnect(
    nats_server: NatsServer, buffer: type[DedupBuffer]
) -> None:
    async with (
        asyncio.timeout(50),
        await NatsConnection.open(BusAddress(nats_server.url), name="publisher") as publisher,
        await NatsConnection.open(BusAddress(nats_server.url), name="watcher") as watcher,
    ):
        await asyncio.gather(*(fill_stream(publisher.client, stream, 150) for stream in STREAMS))
        for since in STARTS:
            async with Subscription(watcher, patterns=[">"], since=since, buffer=buffer) as subscription:
                read = 0
                while read < 20:
                    read += sum(isinstance(item, RawMessage) for item in await subscription.next_raw(20))
        await watcher.client.flush()
        assert n_disconnects(nats_server) == 0
        assert watcher.client.stats["reconnects"] == 0


async def test_messages_larger_than_a_buffer_part_arrive_complete_and_in_order(nats_server: NatsServer) -> None:
    names = [f"S{n}" for n in range(40)]  # with so many streams a part is smaller than the largest message
    async with (
        asyncio.timeout(50),
        await NatsConnection.open(BusAddress(nats_server.url), name="publisher") as publisher,
        await NatsConnection.open(BusAddress(nats_server.url), name="watcher") as watcher,
    ):
        for name in names:
            await add_stream(publisher.client, name, subjects=[name.lower()])
        js = publisher.client.jetstream(timeout=10)
        for number in range(30):
            await js.publish("s0", b"%d " % number + (b"x" * 900_000 if number % 4 == 0 else b""))
        for buffer in BUFFERS:
            patterns = [name.lower() for name in names]
            received: list[RawMessage] = []
            async with Subscription(watcher, patterns=patterns, since="all", buffer=buffer) as subscription:
                while len(received) < 30:
                    received += [item for item in await subscription.next_raw() if isinstance(item, RawMessage)]
            assert [int(item.payload.split()[0]) for item in received] == list(range(30))
