"""Several streams of a real bus as one history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType

from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice, Since
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import add_stream

LARGE = b" " * 20_000


@asynccontextmanager
async def following(
    server: NatsServer,
    *patterns: str,
    since: Since = "all",
    capacity: int = 10_000,
    max_bytes: int = 64 << 20,
    address: BusAddress | None = None,
) -> AsyncIterator[Subscription]:
    async with (
        asyncio.timeout(20),
        await NatsConnection.open(address or BusAddress(server.url), name="watcher") as connection,
        Subscription(
            connection, patterns=patterns, since=since, capacity=capacity, max_bytes=max_bytes, in_time_order=True
        ) as follow,
    ):
        yield follow


async def say(client: Client, subject: str, *numbers: int, filler: bytes = b"") -> None:
    js = client.jetstream(timeout=5)
    for number in numbers:
        await js.publish(subject, b"%d" % number + filler)


async def read(follow: Subscription, count: int) -> list[RawMessage | Notice]:
    """The next things as they come, single ones as well as many."""
    came: list[RawMessage | Notice] = []
    while len(came) < count:
        came += await follow.next_raw(count - len(came))
    return came


def told(came: list[RawMessage | Notice]) -> list[int | str]:
    return [int(each.payload) if isinstance(each, RawMessage) else each.kind for each in came]


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_history_of_several_streams_is_in_the_order_of_its_times(
    server: NatsServer, client: Client, first: str
) -> None:
    for name in ("a", "b", "c"):
        await add_stream(client, name.upper(), subjects=[name])
    last = "b" if first == "a" else "a"
    await say(client, first, *range(1_300))  # more than one part before the other one begins
    for number in range(1_300, 1_400, 2):
        await say(client, last, number)
        await say(client, first, number + 1)
    await say(client, last, *range(1_400, 2_600))
    async with following(server, "a", "b", "c") as follow:
        assert told(await read(follow, 2_600)) == list(range(2_600))


async def test_a_jump_lands_on_the_first_message_of_all_streams(server: NatsServer, client: Client) -> None:
    """The one that was made anew answers first as it has little; the other one is older and large."""
    await add_stream(client, "OLD", subjects=["old"])
    await add_stream(client, "ANEW", subjects=["anew"], storage=StorageType.MEMORY)
    await say(client, "old", *range(300), filler=LARGE)
    await say(client, "anew", *range(300, 310))
    for since in ("all", 1, timedelta(minutes=5)):
        async with following(server, "old", "anew", since=since) as follow:
            assert told(await read(follow, 310)) == list(range(310))
    async with following(server, "old", "anew", since=6) as follow:
        assert told(await read(follow, 300)) == [*range(5, 300), *range(305, 310)]


async def test_no_stream_takes_the_room_of_another(server: NatsServer, client: Client) -> None:
    await add_stream(client, "A", subjects=["a"])
    await add_stream(client, "B", subjects=["b"])
    await say(client, "b", 0)
    await say(client, "a", *range(1, 1_000), filler=b" " * 1_000)
    await say(client, "b", *range(1_000, 2_000), filler=b" " * 1_000)
    await say(client, "a", 2_000)
    async with following(server, "a", "b", capacity=40, max_bytes=200_000) as follow:
        assert told(await read(follow, 2_001)) == list(range(2_001))


async def test_a_stream_that_may_not_be_read_holds_nobody_up(tmp_path: Path) -> None:
    permissions = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.B.>"]}}
    config = {"authorization": {"users": [{"user": "few", "password": "hush-hush", "permissions": permissions}]}}
    with NatsServer(tmp_path / "nats", config=config) as server:
        address = BusAddress(server.url, user="few", password="hush-hush")
        async with await NatsConnection.open(address, name="publisher") as connection:
            await add_stream(connection.client, "A", subjects=["a"])
            await add_stream(connection.client, "B", subjects=["b"])
            await say(connection.client, "b", 0)
            await say(connection.client, "a", 1, 2)
        async with following(server, "a", "b", address=address) as follow:
            came = told(await read(follow, 3))
            assert sorted(came, key=str) == [1, 2, "permission"]


async def test_a_notice_of_a_stream_stays_where_its_messages_are_missing(server: NatsServer, client: Client) -> None:
    await add_stream(client, "A", subjects=["a"])
    await add_stream(client, "B", subjects=["b"], max_msgs=100, discard=DiscardPolicy.OLD)
    await say(client, "b", 0, 1)
    await say(client, "a", 2, 3)
    await say(client, "b", 4, 5, 6)
    await say(client, "a", 7)
    await client.jetstream().delete_msg("B", 4)
    async with following(server, "a", "b") as follow:
        came = told(await read(follow, 8))
        assert came.index("gap") in range(came.index(4) + 1, came.index(6))
        assert [each for each in came if each != "gap"] == [0, 1, 2, 3, 4, 6, 7]


async def test_what_no_stream_keeps_comes_behind_the_history(server: NatsServer, client: Client) -> None:
    await add_stream(client, "A", subjects=["kept.a"])
    await add_stream(client, "B", subjects=["kept.b"])
    await say(client, "kept.a", *range(200), filler=LARGE)
    await say(client, "kept.b", *range(200, 400), filler=LARGE)
    async with following(server, ">", max_bytes=200_000) as follow:
        came = told(await read(follow, 1))
        while "no_history" not in came:
            came += told(await read(follow, 1))
        await client.publish("word", b"400")
        await client.flush()
        came += told(await read(follow, 402 - len(came)))
        assert [each for each in came if each != "no_history"] == list(range(401))
        await client.publish("word", b"401")
        assert told(await read(follow, 1)) == [401]


async def test_what_comes_after_the_history_comes_at_once(server: NatsServer, client: Client) -> None:
    await add_stream(client, "A", subjects=["a"])
    await add_stream(client, "B", subjects=["b"])
    await say(client, "a", 0)
    async with following(server, "a", "b") as follow:
        assert told(await read(follow, 1)) == [0]
        for number, subject in enumerate("abbab", start=1):
            await say(client, subject, number)
            assert told(await read(follow, 1)) == [number]


async def test_a_stream_made_again_is_told_and_goes_on(server: NatsServer, client: Client) -> None:
    await add_stream(client, "A", subjects=["a"])
    await add_stream(client, "B", subjects=["b"])
    await say(client, "a", 0)
    await say(client, "b", 1)
    async with following(server, "a", "b") as follow:
        assert told(await read(follow, 2)) == [0, 1]
        await client.jetstream().delete_stream("A")
        await add_stream(client, "A", subjects=["a"])
        await say(client, "a", 2)
        came = told(await read(follow, 2))
        assert came == ["recreated", 2]
        await say(client, "b", 3)
        assert told(await read(follow, 1)) == [3]
