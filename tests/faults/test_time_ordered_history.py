"""Subscriptions that merge several streams by time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType

from agentgym_tui.sessions.time_ordered_buffer import TimeOrderedBuffer
from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice, Since
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import Bus, NatsAccount, NatsServer
from tests.support.subscriptions import add_stream

pytestmark = pytest.mark.long

LARGE = b" " * 20_000


@asynccontextmanager
async def subscribe_in_time_order(
    bus: Bus,
    *patterns: str,
    since: Since = "all",
    capacity: int = 10_000,
    max_bytes: int = 64 << 20,
    address: BusAddress | None = None,
) -> AsyncIterator[Subscription]:
    async with (
        asyncio.timeout(20),
        await NatsConnection.open(address or BusAddress(bus.url), name="watcher") as connection,
        Subscription(
            connection, patterns=patterns, since=since, capacity=capacity, max_bytes=max_bytes, buffer=TimeOrderedBuffer
        ) as subscription,
    ):
        yield subscription


async def publish_numbers(client: Client, subject: str, *numbers: int, filler: bytes = b"") -> None:
    js = client.jetstream(timeout=5)
    for number in numbers:
        await js.publish(subject, b"%d" % number + filler)


async def read_items(subscription: Subscription, count: int) -> list[int | str]:
    """Return the numbers of the next messages, and the kinds of notices among them."""
    items: list[RawMessage | Notice] = []
    while len(items) < count:
        items += await subscription.next_raw(count - len(items))
    return [int(item.payload) if isinstance(item, RawMessage) else item.kind for item in items]


@pytest.mark.parametrize("first", ["a", "b"])
async def test_the_history_of_several_streams_is_in_time_order(
    bus: NatsAccount, bus_client: Client, first: str
) -> None:
    for name in ("a", "b", "c"):
        await add_stream(bus_client, name.upper(), subjects=[name])
    last = "b" if first == "a" else "a"
    await publish_numbers(bus_client, first, *range(1_300))  # more than one fetch before the second stream begins
    for number in range(1_300, 1_400, 2):
        await publish_numbers(bus_client, last, number)
        await publish_numbers(bus_client, first, number + 1)
    await publish_numbers(bus_client, last, *range(1_400, 2_600))
    async with subscribe_in_time_order(bus, "a", "b", "c") as subscription:
        assert await read_items(subscription, 2_600) == list(range(2_600))


async def test_a_start_selects_the_first_message_of_all_streams(bus: NatsAccount, bus_client: Client) -> None:
    """The small new stream answers before the large old one."""
    await add_stream(bus_client, "OLD", subjects=["old"])
    await add_stream(bus_client, "NEW", subjects=["new"], storage=StorageType.MEMORY)
    await publish_numbers(bus_client, "old", *range(300), filler=LARGE)
    await publish_numbers(bus_client, "new", *range(300, 310))
    for since in ("all", 1, timedelta(minutes=5)):
        async with subscribe_in_time_order(bus, "old", "new", since=since) as subscription:
            assert await read_items(subscription, 310) == list(range(310))
    async with subscribe_in_time_order(bus, "old", "new", since=6) as subscription:
        assert await read_items(subscription, 300) == [*range(5, 300), *range(305, 310)]


async def test_each_stream_has_its_share_of_the_buffer(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, "A", subjects=["a"])
    await add_stream(bus_client, "B", subjects=["b"])
    await publish_numbers(bus_client, "b", 0)
    await publish_numbers(bus_client, "a", *range(1, 1_000), filler=b" " * 1_000)
    await publish_numbers(bus_client, "b", *range(1_000, 2_000), filler=b" " * 1_000)
    await publish_numbers(bus_client, "a", 2_000)
    async with subscribe_in_time_order(bus, "a", "b", capacity=40, max_bytes=200_000) as subscription:
        assert await read_items(subscription, 2_001) == list(range(2_001))


async def test_a_stream_without_read_permission_does_not_delay_the_others(tmp_path: Path) -> None:
    permissions = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.B.>"]}}
    config = {"authorization": {"users": [{"user": "restricted", "password": "hush-hush", "permissions": permissions}]}}
    with NatsServer(tmp_path / "nats", config=config) as server:
        address = BusAddress(server.url, user="restricted", password="hush-hush")
        async with await NatsConnection.open(address, name="publisher") as connection:
            await add_stream(connection.client, "A", subjects=["a"])
            await add_stream(connection.client, "B", subjects=["b"])
            await publish_numbers(connection.client, "b", 0)
            await publish_numbers(connection.client, "a", 1, 2)
        async with subscribe_in_time_order(server, "a", "b", address=address) as subscription:
            items = await read_items(subscription, 3)
            assert sorted(items, key=str) == [1, 2, "permission"]


async def test_a_gap_notice_keeps_its_place_among_the_messages(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, "A", subjects=["a"])
    await add_stream(bus_client, "B", subjects=["b"], max_msgs=100, discard=DiscardPolicy.OLD)
    await publish_numbers(bus_client, "b", 0, 1)
    await publish_numbers(bus_client, "a", 2, 3)
    await publish_numbers(bus_client, "b", 4, 5, 6)
    await publish_numbers(bus_client, "a", 7)
    await bus_client.jetstream().delete_msg("B", 4)
    async with subscribe_in_time_order(bus, "a", "b") as subscription:
        items = await read_items(subscription, 8)
        assert items.index("gap") in range(items.index(4) + 1, items.index(6))
        assert [item for item in items if item != "gap"] == [0, 1, 2, 3, 4, 6, 7]


async def test_messages_without_a_stream_come_after_the_history(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, "A", subjects=["kept.a"])
    await add_stream(bus_client, "B", subjects=["kept.b"])
    await publish_numbers(bus_client, "kept.a", *range(200), filler=LARGE)
    await publish_numbers(bus_client, "kept.b", *range(200, 400), filler=LARGE)
    async with subscribe_in_time_order(bus, ">", max_bytes=200_000) as subscription:
        items = await read_items(subscription, 1)
        while "no_history" not in items:
            items += await read_items(subscription, 1)
        await bus_client.publish("word", b"400")
        await bus_client.flush()
        items += await read_items(subscription, 402 - len(items))
        assert [item for item in items if item != "no_history"] == list(range(401))
        await bus_client.publish("word", b"401")
        assert await read_items(subscription, 1) == [401]
