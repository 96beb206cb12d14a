"""Lookup of streams for a subscription: late, partial and missing streams, work queues, permissions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType

from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.messages import BusMessage, Notice
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.subscriptions import SUBJECT, add_stream, publish_events, status_event, status_headers, subscribe_to

pytestmark = pytest.mark.long

PASSWORD = "hush-hush"


async def test_a_stream_created_later_is_found(bus: NatsAccount, bus_client: Client) -> None:
    consumers_created = await bus_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with subscribe_to(bus) as recorder:
        assert "no stream keeps it" in (await recorder.wait_for_notice("no_history")).text
        await bus_client.publish(SUBJECT, status_event(1), headers=status_headers(1))
        await recorder.wait_for_messages(1)
        await add_stream(bus_client)
        await publish_events(bus_client, 2)
        await consumers_created.next_msg(timeout=10)  # after the next lookup of streams
        await publish_events(bus_client, 3)
        await recorder.wait_for_messages(3)
        assert recorder.numbers == [1, 2, 3]
        assert recorder.messages[-1].sequence == 2


async def test_a_stream_created_before_the_second_lookup_is_not_reported_missing(
    bus: NatsAccount, bus_client: Client
) -> None:
    consumers_created = await bus_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with subscribe_to(bus, lookup_interval_s=3.0) as recorder:
        while not recorder.numbers:
            await bus_client.publish(SUBJECT, status_event(1), headers=status_headers(1))
            await asyncio.sleep(0.02)
        await add_stream(bus_client)
        while 2 not in recorder.numbers:
            await publish_events(bus_client, 2)
            await asyncio.sleep(0.02)
        await consumers_created.next_msg(timeout=10)
        assert recorder.notices == []


async def test_messages_received_before_their_stream_was_found_are_delivered_once(
    bus: NatsAccount, bus_client: Client
) -> None:
    consumers_created = await bus_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with (
        await NatsConnection.open(BusAddress(bus.url), name="watcher") as connection,
        Subscription(connection, patterns=["orders.>"], since="all") as subscription,
        asyncio.timeout(20),
    ):
        assert isinstance(await anext(subscription), Notice)
        await add_stream(bus_client, subjects=["orders.>"])
        for payload in (b"one", b"same", b"same"):
            await bus_client.publish("orders.new", payload)
        before = [await anext(subscription) for _ in range(3)]
        await consumers_created.next_msg(timeout=10)
        for payload in (b"same", b"last"):
            await bus_client.publish("orders.new", payload)
        after = [await anext(subscription) for _ in range(2)]
    assert [item.sequence for item in before if isinstance(item, BusMessage)] == [None, None, None]
    assert [item.sequence for item in after if isinstance(item, BusMessage)] == [4, 5]


async def test_a_catch_all_subscriber_is_not_mistaken_for_jetstream(core_nats_server: NatsServer) -> None:
    async with await NatsConnection.open(BusAddress(core_nats_server.url), name="publisher") as publisher:
        await publisher.client.subscribe(">")
        await publisher.client.flush()
        async with subscribe_to(core_nats_server) as recorder:
            assert "this bus has no streams" in (await recorder.wait_for_notice("no_history")).text
            await publisher.client.publish(SUBJECT, status_event(1))
            await recorder.wait_for_messages(1)


async def test_a_pattern_that_streams_keep_in_part(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    await add_stream(bus_client, "T", subjects=["agentgym.live.>"], storage=StorageType.MEMORY)
    await publish_events(bus_client, 1)
    async with subscribe_to(bus, patterns=["agentgym.>", "agentgym.*.status.*"]) as recorder:
        assert "some messages are in no stream" in (await recorder.wait_for_notice("no_history")).text
        await bus_client.publish("agentgym.live.health.v1.n", b"live")
        await bus_client.publish("agentgym.control.n", b"control")
        await publish_events(bus_client, 2)
        await recorder.wait_for_messages(4)
        await asyncio.sleep(0.2)  # a repeated message would arrive now
        assert sorted((m.stream or "-", m.subject) for m in recorder.messages) == [
            ("-", "agentgym.control.n"),
            ("S", SUBJECT),
            ("S", SUBJECT),
            ("T", "agentgym.live.health.v1.n"),
        ]


async def test_the_catch_all_pattern_excludes_internal_messages(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client)
    async with subscribe_to(bus, patterns=[">"]) as recorder:
        await recorder.wait_for_notice("no_history")
        await publish_events(bus_client, 1)
        await bus_client.publish("word", b"x")
        await recorder.wait_for_messages(2)
        await asyncio.sleep(0.6)  # an internal message would arrive now
        assert {message.subject for message in recorder.messages} == {SUBJECT, "word"}


async def test_only_matching_messages_of_a_stream_are_read(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, subjects=["agentgym.>"])
    js = bus_client.jetstream()
    for number in range(30):
        await publish_events(bus_client, number)
        await js.publish("agentgym.other.x.y", b"{}")
        await js.publish("agentgym.a.b", b"{}")
    async with subscribe_to(bus, patterns=[SUBJECT, "agentgym.*.b", "agentgym.a.*"]) as recorder:
        await recorder.wait_for_messages(60)
        assert {message.subject for message in recorder.messages} == {SUBJECT, "agentgym.a.b"}
        assert recorder.notices == []


async def test_a_work_queue_is_not_consumed(bus: NatsAccount, bus_client: Client) -> None:
    await add_stream(bus_client, retention=RetentionPolicy.WORK_QUEUE)
    await publish_events(bus_client, 1)
    async with subscribe_to(bus) as recorder:
        assert "stream S is a work queue" in (await recorder.wait_for_notice("no_history")).text
        await publish_events(bus_client, 2)
        await recorder.wait_for_messages(1)
    assert (await bus_client.jetstream().stream_info("S")).state.messages == 2


async def test_a_work_queue_is_reported_once_with_its_reason(bus: NatsAccount, bus_client: Client) -> None:
    intervals: dict[str, Any] = {"lookup_interval_s": 0.05}
    await add_stream(bus_client, "JOBS", subjects=["jobs.>"], retention=RetentionPolicy.WORK_QUEUE)
    await add_stream(bus_client)
    await publish_events(bus_client, 1)
    lookups = await bus_client.subscribe("$JS.API.STREAM.INFO.JOBS")
    async with subscribe_to(bus, patterns=["jobs.new", SUBJECT], **intervals) as recorder:
        for _ in range(4):
            await lookups.next_msg(timeout=10)
        await bus_client.publish("jobs.new", b"last")
        await recorder.wait_for_messages(2)
        assert [notice.kind for notice in recorder.notices] == ["no_history"]
        assert "stream JOBS is a work queue" in recorder.notices[0].text
    async with subscribe_to(bus, patterns=[">"], **intervals) as recorder:
        await recorder.wait_until(lambda: len(recorder.notices) == 2)
        assert "stream JOBS is a work queue" in recorder.notices[0].text
        assert "some messages are in no stream" in recorder.notices[1].text


def _users(**permissions: object) -> dict[str, object]:
    users = [
        {"user": "all", "password": PASSWORD},
        {"user": "restricted", "password": PASSWORD, "permissions": permissions},
    ]
    return {"authorization": {"users": users}}


@pytest.mark.parametrize(
    ("denied", "reported"),
    [
        (["$JS.API.STREAM.NAMES"], "STREAM.NAMES"),
        (["$JS.API.STREAM.INFO.>"], "STREAM.INFO"),
        (["$JS.API.CONSUMER.CREATE.>"], "CONSUMER.CREATE"),
        (["$JS.API.CONSUMER.MSG.NEXT.>"], "MSG.NEXT"),
        (["$JS.>"], "STREAM.NAMES"),
    ],
    ids=["names", "info", "create", "next", "all"],
)
async def test_without_permission_to_read_streams_only_new_messages_arrive(
    tmp_path: Path, denied: list[str], reported: str
) -> None:
    with NatsServer(tmp_path / "nats", config=_users(publish={"deny": denied})) as server:
        full_access = BusAddress(server.url, user="all", password=PASSWORD)
        restricted = BusAddress(server.url, user="restricted", password=PASSWORD)
        async with await NatsConnection.open(full_access, name="publisher") as connection:
            await add_stream(connection.client)
            await publish_events(connection.client, 1)
            async with subscribe_to(server, address=restricted) as recorder:
                assert reported.lower() in (await recorder.wait_for_notice("permission", 5.0)).text.lower()
                await recorder.wait_for_notice("no_history")
                await publish_events(connection.client, 2)
                await recorder.wait_for_messages(1)
                assert recorder.numbers == [2]
                assert PASSWORD not in str(recorder.notices)


async def test_deliveries_to_other_consumers_are_not_repeated(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config=_users(publish={"deny": ["$JS.>"]})) as server:
        full_access = BusAddress(server.url, user="all", password=PASSWORD)
        restricted = BusAddress(server.url, user="restricted", password=PASSWORD)
        async with await NatsConnection.open(full_access, name="publisher") as connection:
            await add_stream(connection.client)
            async with subscribe_to(server, address=restricted, patterns=[">"]) as listener:
                await listener.wait_for_notice("no_history")
                await publish_events(connection.client, 1)
                async with subscribe_to(server, address=full_access) as reader:
                    await reader.wait_for_messages(1)
                await connection.client.publish("last", b"")
                await listener.wait_until(lambda: any(message.subject == "last" for message in listener.messages))
                assert [message.subject for message in listener.messages] == [SUBJECT, "last"]


async def test_a_missing_subscribe_permission_is_reported(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", jetstream=False, config=_users(subscribe={"deny": ["secret.>"]})) as server:
        restricted = BusAddress(server.url, user="restricted", password=PASSWORD)
        async with subscribe_to(server, patterns=["secret.>", "open"], address=restricted) as recorder:
            assert "secret.>" in (await recorder.wait_for_notice("permission", 5.0)).text
