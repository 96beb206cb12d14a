"""Content of a subscription: history, new messages, damaged messages and gaps."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType

from runner.bus.connection import BusAddress, NatsConnection
from runner.events import subjects
from runner.events.codec import DurableRow, RawRow
from runner.events.durable import EpisodeCompleted as Episode
from runner.subscribe.messages import BusMessage, Notice, Since, SubscriptionItem
from runner.subscribe.subscription import Subscription
from runner.util.clock import is_ulid
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.subscriptions import (
    SUBJECT,
    SubscriptionRecorder,
    add_stream,
    publish_events,
    status_event,
    status_headers,
    subscribe_to,
)

pytestmark = pytest.mark.long


async def test_one_consumer_delivers_history_and_new_messages(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    await publish_events(bus_client, *range(1200))
    consumers_created = await bus_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with subscribe_to(bus) as recorder:
        await recorder.wait_for_messages(1200)
        await publish_events(bus_client, *range(1200, 1210))
        await recorder.wait_for_messages(1210)
        assert recorder.numbers == list(range(1210))
        assert [m.sequence for m in recorder.messages] == list(range(1, 1211))
        assert {(m.stream, m.subject) for m in recorder.messages} == {("S", SUBJECT)}
        assert recorder.notices == []
        assert consumers_created.pending_msgs == 1


@pytest.mark.parametrize(
    ("since", "first"),
    [("now", 10), ("all", 0), (4, 3), (timedelta(hours=1), 0), (timedelta(seconds=-60), 10)],
    ids=["now", "all", "sequence", "past", "future"],
)
async def test_since_selects_the_first_message(bus: NatsAccount, bus_client: Client, since: Since, first: int) -> None:
    consumers_created = await bus_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    await add_stream(bus_client)
    await publish_events(bus_client, *range(10))
    async with subscribe_to(bus, since=since) as recorder:
        await consumers_created.next_msg(timeout=10)
        await publish_events(bus_client, 10)
        await recorder.wait_until(lambda: 10 in recorder.numbers)
        assert recorder.numbers == list(range(first, 11))


async def test_a_start_beyond_the_end_of_one_stream_selects_its_new_messages(
    bus: NatsAccount, bus_client: Client
) -> None:
    await add_stream(bus_client)
    await add_stream(bus_client, "LONG", subjects=["other"])
    consumers_created = await bus_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    await publish_events(bus_client, 1, 2)
    await publish_events(bus_client, *range(10, 20), subject="other")
    async with subscribe_to(bus, patterns=[SUBJECT, "other"], since=9) as recorder:
        for _ in range(2):
            await consumers_created.next_msg(timeout=10)
        await publish_events(bus_client, 3)
        await recorder.wait_for_messages(3)
        assert sorted(recorder.numbers) == [3, 18, 19]
        assert recorder.notices == []


async def test_a_start_beyond_the_end_of_all_streams_is_reported(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    await add_stream(bus_client, "LONG", subjects=["other"])
    await publish_events(bus_client, 1, 2)
    await publish_events(bus_client, *range(10, 20), subject="other")
    async with subscribe_to(bus, patterns=[SUBJECT, "other"], since=12) as recorder:
        await recorder.wait_for_notice("no_history")
        assert "#12; the highest sequence is #10" in recorder.notices[0].text
        await publish_events(bus_client, 3)
        await recorder.wait_for_messages(1)
        assert (recorder.numbers, len(recorder.notices)) == ([3], 1)


async def test_an_event_stored_twice_is_delivered_once(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, duplicate_window=0.1)
    await publish_events(bus_client, 1, 1, 2)
    info = await bus_client.jetstream().stream_info("S")
    assert info.state.last_seq == 2
    await asyncio.sleep(0.3)  # until the server has forgotten the id
    await publish_events(bus_client, 1, 3)
    info = await bus_client.jetstream().stream_info("S")
    assert info.state.last_seq == 4
    async with subscribe_to(bus) as recorder:
        await recorder.wait_until(lambda: 3 in recorder.numbers)
        assert recorder.numbers == [1, 2, 3]


async def test_hostile_messages_become_raw_rows(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    hostile = [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"pid": 1e999}', b"\x00" * 1000, b"x" * 1_000_000]
    js = bus_client.jetstream(timeout=5)
    for payload in hostile:
        await js.publish(SUBJECT, payload)
    await js.publish(SUBJECT, status_event(1), headers={"ce-id": "\x1b[2J", "ce-type": "\x07" * 500, "x": "y" * 10_000})
    await js.publish(SUBJECT, status_event(2), headers={"ce-type": "agentgym.field.status.v9"})
    await js.publish(
        SUBJECT, status_event(3), headers={"ce-time": "\N{SNOWMAN}", "Status": "100", "Description": "Idle"}
    )
    async with subscribe_to(bus) as recorder:
        await recorder.wait_for_messages(len(hostile) + 3)
        rows = [message.decoded for message in recorder.messages]
        assert [isinstance(row, RawRow) for row in rows] == [True] * len(hostile) + [False, True, False]
        assert isinstance(rows[-2], RawRow)
        assert rows[-2].reason == "unknown version"
        await publish_events(bus_client, 4)
        await recorder.wait_for_messages(len(hostile) + 4)
        assert [message.sequence for message in recorder.messages] == list(range(1, len(hostile) + 5))
        assert recorder.notices == []


async def test_hostile_header_bytes_do_not_stop_the_subscription(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    async with subscribe_to(bus, patterns=[SUBJECT, "other"]) as recorder:
        await recorder.wait_for_notice("no_history")
        reader, writer = await asyncio.open_connection("127.0.0.1", bus.port)
        await reader.readline()
        login = {"verbose": False, "headers": True, "user": bus.name, "pass": bus.name}
        writer.write(f"CONNECT {json.dumps(login)}\r\n".encode())
        for block in (
            b"NATS/1.0 \xff\xff\xff\r\n\r\n",
            b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n",
            b"NATS/1.0 100 \xff\r\n\r\n",
        ):
            for subject in (SUBJECT, "other"):
                size = len(block)
                writer.write(f"HPUB {subject} {size} {size + 2}\r\n".encode() + block + b"hi\r\n")
        writer.write(b"PING\r\n")
        await writer.drain()
        async with asyncio.timeout(5):
            assert await reader.readline() == b"PONG\r\n"
        writer.close()
        await publish_events(bus_client, 1)
        await recorder.wait_until(
            lambda: any(not isinstance(message.decoded, RawRow) for message in recorder.messages), 3.0
        )


async def test_an_episode_without_an_id_is_one_episode_per_position_in_its_stream(
    bus: NatsAccount, bus_client: Client
) -> None:
    original = b'{"env":"Maze","success":true,"score":1.0,"rounds":3,"duration_sec":2.5,"model":"m","node":"n"}'
    minimal = b'{"episode_id":"e1","env":"Maze","reward":1.0,"rounds":3,"duration_s":2.5}'

    def ids(recorder: SubscriptionRecorder) -> list[str]:
        rows = [message.decoded for message in recorder.messages]
        return [row.event.episode_id for row in rows if isinstance(row, DurableRow) if isinstance(row.event, Episode)]

    async with subscribe_to(bus, patterns=["agentgym.>"], since="now") as recorder:
        await recorder.wait_for_notice("no_history")
        for payload in (original, minimal, minimal, original):
            await bus_client.publish(subjects.EPISODE_COMPLETED, payload)
        await recorder.wait_for_messages(3)
        unstored = ids(recorder)
    assert len(set(unstored)) == 3 and "e1" in unstored
    await add_stream(bus_client, subjects=["agentgym.>"])
    for payload in (original, minimal, minimal, original):
        await bus_client.jetstream().publish(subjects.EPISODE_COMPLETED, payload)
    seen = []
    for _ in range(2):  # the second subscription replays the stream
        async with subscribe_to(bus, patterns=["agentgym.>"]) as recorder:
            await recorder.wait_for_messages(3)
            seen.append(ids(recorder))
    first, second = seen
    assert first == second and len(first) == len(set(first)) == 3 and first[1] == "e1"
    assert is_ulid(first[0]) and is_ulid(first[2])


async def test_wrong_clocks_keep_the_order_and_are_measured(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    js = bus_client.jetstream()
    for number, hours in enumerate((0, 1, -1, 0)):
        sent = datetime.now(UTC) + timedelta(hours=hours)
        await js.publish(SUBJECT, status_event(number), headers=status_headers(number, sent))
    async with subscribe_to(bus) as recorder:
        await recorder.wait_for_messages(4)
        assert recorder.numbers == [0, 1, 2, 3]
        ahead = [message.ahead_s for message in recorder.messages]
        assert [round((seconds or 0) / 3600) for seconds in ahead] == [0, 1, -1, 0]


async def test_messages_removed_unread_are_counted(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, max_msgs=100, discard=DiscardPolicy.OLD, subjects=[SUBJECT, "other"])
    await publish_events(bus_client, *range(50))
    async with subscribe_to(bus, patterns=[SUBJECT, "other"], capacity=20) as recorder:
        await recorder.wait_for_messages(50)
        await bus_client.jetstream().purge_stream("S")
        await publish_events(bus_client, *range(50, 60))
        await bus_client.jetstream().delete_msg("S", 55)
        await recorder.wait_until(lambda: 59 in recorder.numbers)
        assert recorder.numbers == list(range(60))
        assert recorder.notices == []
    async with subscribe_to(bus, patterns=[SUBJECT, "other"], since=41) as recorder:
        await recorder.wait_until(lambda: 59 in recorder.numbers)
        gaps = [notice.count for notice in recorder.notices if notice.kind == "gap"]
        assert gaps == [10, 1]
        assert recorder.numbers == [50, 51, 52, 53, 55, 56, 57, 58, 59]


async def test_a_slow_subscriber_counts_messages_that_a_full_stream_dropped(
    bus: NatsAccount, bus_client: Client
) -> None:
    await add_stream(bus_client, max_msgs=200, discard=DiscardPolicy.OLD, storage=StorageType.MEMORY)
    async with (
        await NatsConnection.open(BusAddress(bus.url), name="slow") as connection,
        _subscribe(connection, capacity=20) as subscription,
    ):
        await publish_events(bus_client, *range(20))
        await anext(subscription)
        await publish_events(bus_client, *range(20, 2000))
        items = [await anext(subscription) for _ in range(10)]
        async with asyncio.timeout(15):
            while not (isinstance(items[-1], BusMessage) and items[-1].sequence == 2000):
                items.append(await anext(subscription))
        missing = sum(item.count for item in items if isinstance(item, Notice))
        assert [item.kind for item in items if isinstance(item, Notice)] == ["gap"] * _count(items, Notice)
        assert _count(items, BusMessage) + missing == 1999
        assert missing > 0


def _subscribe(connection: NatsConnection, *, capacity: int) -> Subscription:
    return Subscription(connection, patterns=[SUBJECT], since="all", capacity=capacity)


def _count(items: list[SubscriptionItem], kind: type[SubscriptionItem]) -> int:
    return sum(isinstance(item, kind) for item in items)


async def test_a_slow_core_subscriber_counts_every_skipped_message(core_nats_server: NatsServer) -> None:
    async with (
        await NatsConnection.open(BusAddress(core_nats_server.url), name="slow") as connection,
        await NatsConnection.open(BusAddress(core_nats_server.url), name="publisher") as publisher,
        _subscribe(connection, capacity=100) as subscription,
    ):
        assert isinstance(await anext(subscription), Notice)
        for number in range(5000):
            await publisher.client.publish(SUBJECT, status_event(number))
        items: list[SubscriptionItem] = []
        async with asyncio.timeout(15):
            while _count(items, BusMessage) + _n_skipped(items) < 5000:
                items.append(await anext(subscription))
        assert _count(items, BusMessage) + _n_skipped(items) == 5000
        assert _n_skipped(items) > 1000
        assert {item.kind for item in items if isinstance(item, Notice)} == {"skipped"}


def _n_skipped(items: list[SubscriptionItem]) -> int:
    return sum(item.count for item in items if isinstance(item, Notice))


async def test_a_subscription_leaves_no_consumer(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    await publish_events(bus_client, 1)
    for _ in range(3):
        async with subscribe_to(bus) as recorder:
            await recorder.wait_for_messages(1)
    await bus_client.flush()
    assert (await bus_client.jetstream().stream_info("S")).state.consumer_count == 0
