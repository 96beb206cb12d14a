"""What is on its way from the server to a follower: a server cuts off whoever leaves too much of it unread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from nats.aio.client import Client

from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Since
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import add_stream

MOST: Final = 24 << 20
"""What this server lets wait, less than its usual 64 MiB so that less has to be stored."""

STREAMS: Final = ("A", "B", "C", "D")
LARGE, SMALL = b"x" * 200_000, b"x" * 300
STARTS: Final[tuple[Since, ...]] = (5, "all", 30, 1, 60, "all", 2, 10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", config={"max_pending": MOST}) as started:
        yield started


async def fill(client: Client, stream: str, count: int) -> None:
    await add_stream(client, stream, subjects=[stream.lower()])
    js = client.jetstream(timeout=10)
    for number in range(count):
        await js.publish(stream.lower(), LARGE if number % 3 == 0 else SMALL)


def cuts(server: NatsServer) -> int:
    return server.log.read_text().count("Slow Consumer")


@pytest.mark.parametrize("in_time_order", [True, False])
async def test_jumping_about_in_large_messages_cuts_nobody_off(server: NatsServer, in_time_order: bool) -> None:
    async with (
        asyncio.timeout(50),
        await NatsConnection.open(BusAddress(server.url), name="publisher") as publisher,
        await NatsConnection.open(BusAddress(server.url), name="watcher") as watcher,
    ):
        await asyncio.gather(*(fill(publisher.client, stream, 150) for stream in STREAMS))
        for since in STARTS:
            async with Subscription(watcher, patterns=[">"], since=since, in_time_order=in_time_order) as follow:
                read = 0
                while read < 20:
                    read += sum(isinstance(each, RawMessage) for each in await follow.next_raw(20))
        await watcher.client.flush()
        assert cuts(server) == 0
        assert watcher.client.stats["reconnects"] == 0


async def test_messages_that_are_larger_than_a_part_come_whole_and_in_order(server: NatsServer) -> None:
    """With so many streams a part is smaller than the largest message."""
    names = [f"S{n}" for n in range(40)]
    async with (
        asyncio.timeout(50),
        await NatsConnection.open(BusAddress(server.url), name="publisher") as publisher,
        await NatsConnection.open(BusAddress(server.url), name="watcher") as watcher,
    ):
        for name in names:
            await add_stream(publisher.client, name, subjects=[name.lower()])
        js = publisher.client.jetstream(timeout=10)
        for number in range(30):
            await js.publish("s0", b"%d " % number + (b"x" * 900_000 if number % 4 == 0 else b""))
        for in_time_order in (True, False):
            patterns = [name.lower() for name in names]
            came: list[RawMessage] = []
            async with Subscription(watcher, patterns=patterns, since="all", in_time_order=in_time_order) as follow:
                while len(came) < 30:
                    came += [each for each in await follow.next_raw() if isinstance(each, RawMessage)]
            assert [int(each.payload.split()[0]) for each in came] == list(range(30))
