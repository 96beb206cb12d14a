from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType

from runner.bus.connection import BusAddress, NatsConnection
from runner.events import subjects
from runner.events.codec import ForeignRow, RawRow
from runner.subscribe import subscription as consumer
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import (
    SUBJECT,
    add_stream,
    publish_events,
    publish_with_retries,
    retry_until_success,
    status_event,
    status_headers,
    subscribe_to,
)

PASSWORD = "hush-hush"


async def test_history_and_what_comes_after_in_one(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await publish_events(client, *range(1200))
    made = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with subscribe_to(server) as watcher:
        await watcher.wait_for_messages(1200)
        await publish_events(client, *range(1200, 1210))
        await watcher.wait_for_messages(1210)
        assert watcher.numbers == list(range(1210))
        assert [m.sequence for m in watcher.messages] == list(range(1, 1211))
        assert {(m.stream, m.subject) for m in watcher.messages} == {("S", SUBJECT)}
        assert watcher.notices == []
        assert made.pending_msgs == 1


@pytest.mark.parametrize(
    ("since", "first"), [("now", 10), ("all", 0), (4, 3), (timedelta(hours=1), 0), (timedelta(seconds=-60), 10)]
)
async def test_since(server: NatsServer, client: Client, since: object, first: int) -> None:
    await add_stream(client)
    await publish_events(client, *range(10))
    async with subscribe_to(server, since=since) as watcher:  # type: ignore[arg-type]
        if since == "now" or first == 10:
            await asyncio.sleep(0.5)  # nothing may come
        await publish_events(client, 10)
        await watcher.wait_until(lambda: 10 in watcher.numbers)
        assert watcher.numbers == list(range(first, 11))


async def test_a_message_is_seen_soon(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    async with subscribe_to(server) as watcher:
        await publish_events(client, 0)
        await watcher.wait_for_messages(1)
        delays = []
        for number in range(1, 20):
            sent = time.monotonic()
            await publish_events(client, number)
            await watcher.wait_for_messages(number + 1)
            delays.append(time.monotonic() - sent)
        assert sorted(delays)[10] < 0.1


@pytest.mark.long
async def test_killed_servers_cost_nothing_and_are_told(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    async with subscribe_to(server) as watcher:
        published = 0

        def numbers() -> Iterator[int]:
            nonlocal published
            while not done:
                yield published
                published += 1

        done = False
        publishing = asyncio.create_task(publish_with_retries(client, numbers()))
        for round_ in range(3):
            await watcher.wait_for_messages(len(watcher.messages) + 50)
            server.kill()
            killed = time.monotonic()
            await watcher.wait_until(lambda n=round_: watcher.kinds.count("disconnected") > n)  # type: ignore[misc]
            assert time.monotonic() - killed < 1.0
            server.start()
            started, before = time.monotonic(), len(watcher.messages)
            await watcher.wait_for_messages(before + 1)
            assert time.monotonic() - started < 2.0
            # messages come before it is told; a server that is killed in between was never there
            await watcher.wait_until(lambda n=round_: watcher.kinds.count("reconnected") > n)  # type: ignore[misc]
        done = True
        await publishing
        await watcher.wait_for_messages(published)
        assert watcher.numbers == list(range(published))
        assert set(watcher.kinds) == {"disconnected", "reconnected"}


async def test_a_stream_made_again_is_told_and_read_from_its_beginning(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await publish_events(client, 1, 2, 3)
    async with subscribe_to(server) as watcher:
        await watcher.wait_for_messages(3)
        server.kill()
        server.empty_store()
        server.start()
        await retry_until_success(lambda: add_stream(client))
        await publish_events(client, 2, 3, 4, 5, 6)
        await watcher.wait_for_messages(6)
        assert watcher.numbers == [1, 2, 3, 4, 5, 6]
        await watcher.wait_for_notice("recreated")
        await publish_events(client, 7)
        await watcher.wait_for_messages(7)
        assert watcher.numbers == [1, 2, 3, 4, 5, 6, 7]


async def test_a_stream_made_again_while_nobody_was_away(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await publish_events(client, 1, 2)
    async with subscribe_to(server) as watcher:
        await watcher.wait_for_messages(2)
        await client.jetstream().delete_stream("S")
        await add_stream(client)
        await publish_events(client, 3, 4, 5)
        await watcher.wait_for_messages(5)
        assert watcher.numbers == [1, 2, 3, 4, 5]
        await watcher.wait_for_notice("recreated")


@pytest.mark.long
async def test_a_stream_made_later_is_found(server: NatsServer, client: Client) -> None:
    made = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with subscribe_to(server) as watcher:
        assert "no stream keeps it" in (await watcher.wait_for_notice("no_history")).text
        await client.publish(SUBJECT, status_event(1), headers=status_headers(1))
        await watcher.wait_for_messages(1)
        await add_stream(client)
        await publish_events(client, 2)
        await made.next_msg(timeout=10)  # the stream is looked for now and then
        await publish_events(client, 3)
        await watcher.wait_for_messages(3)
        assert watcher.numbers == [1, 2, 3]
        assert watcher.messages[-1].sequence == 2


async def test_a_start_beyond_the_end_of_a_stream_means_from_now_on_there(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await add_stream(client, "LONG", subjects=["other"])
    made = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    await publish_events(client, 1, 2)
    await publish_events(client, *range(10, 20), subject="other")
    async with subscribe_to(server, patterns=[SUBJECT, "other"], since=9) as watcher:
        for _ in range(2):
            await made.next_msg(timeout=10)
        await publish_events(client, 3)
        await watcher.wait_for_messages(3)
        assert sorted(watcher.numbers) == [3, 18, 19]
        assert watcher.notices == []


async def test_a_start_that_all_streams_have_before_them_is_told(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await add_stream(client, "LONG", subjects=["other"])
    await publish_events(client, 1, 2)
    await publish_events(client, *range(10, 20), subject="other")
    async with subscribe_to(server, patterns=[SUBJECT, "other"], since=12) as watcher:
        await watcher.wait_for_notice("no_history")
        assert "#12; the highest sequence is #10" in watcher.notices[0].text
        await publish_events(client, 3)
        await watcher.wait_for_messages(1)
        assert (watcher.numbers, len(watcher.notices)) == ([3], 1)


@pytest.mark.long
async def test_a_stopped_server_is_told_and_costs_nothing(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    async with subscribe_to(server) as watcher:
        await publish_events(client, 1)
        await watcher.wait_for_messages(1)
        server.pause()
        stopped = time.monotonic()
        await watcher.wait_for_notice("lost_server")
        assert time.monotonic() - stopped < 5.0
        server.resume()
        await watcher.wait_for_notice("reconnected")
        await publish_with_retries(client, [2, 3])
        await watcher.wait_for_messages(3)
        assert watcher.numbers == [1, 2, 3]


async def test_a_server_that_is_absent_at_first(server: NatsServer) -> None:
    server.kill()
    async with subscribe_to(server, required=False) as watcher:
        await watcher.wait_for_notice("disconnected", 1.0)
        server.start()
        async with await NatsConnection.open(BusAddress(server.url), name="publisher") as connection:
            await add_stream(connection.client)
            await publish_events(connection.client, 1)
        await watcher.wait_for_messages(1)
        assert "reconnected" in watcher.kinds


async def test_an_event_stored_twice_is_seen_once(server: NatsServer, client: Client) -> None:
    await add_stream(client, duplicate_window=0.1)
    await publish_events(client, 1, 1, 2)
    info = await client.jetstream().stream_info("S")
    assert info.state.last_seq == 2
    await asyncio.sleep(0.3)  # the window is over
    await publish_events(client, 1, 3)
    info = await client.jetstream().stream_info("S")
    assert info.state.last_seq == 4
    async with subscribe_to(server) as watcher:
        await watcher.wait_until(lambda: 3 in watcher.numbers)
        assert watcher.numbers == [1, 2, 3]


async def test_hostile_messages_are_raw_rows_and_stop_nothing(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    hostile = [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"pid": 1e999}', b"\x00" * 1000, b"x" * 1_000_000]
    js = client.jetstream(timeout=5)
    for payload in hostile:
        await js.publish(SUBJECT, payload)
    await js.publish(SUBJECT, status_event(1), headers={"ce-id": "\x1b[2J", "ce-type": "\x07" * 500, "x": "y" * 10_000})
    await js.publish(SUBJECT, status_event(2), headers={"ce-type": "agentgym.field.status.v9"})
    await js.publish(SUBJECT, status_event(3), headers={"ce-time": "\N{SNOWMAN}", "Status": "100", "Description": "Idle"})
    async with subscribe_to(server) as watcher:
        await watcher.wait_for_messages(len(hostile) + 3)
        rows = [message.decoded for message in watcher.messages]
        assert [isinstance(row, RawRow) for row in rows] == [True] * len(hostile) + [False, True, False]
        assert isinstance(rows[-2], RawRow)
        assert rows[-2].reason == "unknown version"
        await publish_events(client, 4)
        await watcher.wait_for_messages(len(hostile) + 4)
        assert [message.sequence for message in watcher.messages] == list(range(1, len(hostile) + 5))
        assert watcher.notices == []


async def test_hostile_header_bytes_stop_nothing(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    async with subscribe_to(server, patterns=[SUBJECT, "other"]) as watcher:
        await watcher.wait_for_notice("no_history")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await reader.readline()
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
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
            await reader.readline()
        writer.close()
        await publish_events(client, 1)
        await watcher.wait_until(lambda: any(not isinstance(seen.decoded, RawRow) for seen in watcher.messages), 3.0)


async def test_episodes_of_other_runners_are_shown(server: NatsServer, client: Client) -> None:
    await add_stream(client, subjects=["agentgym.>"])
    payload = b'{"env":"Maze","success":true,"score":1.0,"rounds":3,"duration_sec":2.5,"model":"m","gpu":"x"}'
    for _ in range(2):
        await client.jetstream().publish(subjects.EPISODE_COMPLETED, payload)
    async with subscribe_to(server, patterns=["agentgym.>"]) as watcher:
        await watcher.wait_for_messages(2)
        assert all(isinstance(message.decoded, ForeignRow) for message in watcher.messages)


async def test_clocks_that_are_off_change_no_order_and_are_seen(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    js = client.jetstream()
    for number, hours in enumerate((0, 1, -1, 0)):
        sent = datetime.now(UTC) + timedelta(hours=hours)
        await js.publish(SUBJECT, status_event(number), headers=status_headers(number, sent))
    async with subscribe_to(server) as watcher:
        await watcher.wait_for_messages(4)
        assert watcher.numbers == [0, 1, 2, 3]
        ahead = [message.ahead_s for message in watcher.messages]
        assert [round((seconds or 0) / 3600) for seconds in ahead] == [0, 1, -1, 0]


@pytest.mark.long
async def test_a_stream_made_at_once_is_not_called_missing(
    server: NatsServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "FIRST_LOOKUP_INTERVAL_S", 3.0)
    made = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with subscribe_to(server) as watcher:
        while not watcher.numbers:
            await client.publish(SUBJECT, status_event(1), headers=status_headers(1))
            await asyncio.sleep(0.02)
        await add_stream(client)
        while 2 not in watcher.numbers:
            await publish_events(client, 2)
            await asyncio.sleep(0.02)
        await made.next_msg(timeout=10)
        assert watcher.notices == []


@pytest.mark.long
async def test_what_was_heard_before_its_stream_was_found_is_shown_once(server: NatsServer, client: Client) -> None:
    made = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.>")
    async with (
        await NatsConnection.open(BusAddress(server.url), name="watcher") as connection,
        Subscription(connection, patterns=["orders.>"], since="all") as follow,
        asyncio.timeout(20),
    ):
        assert isinstance(await anext(follow), Notice)
        await add_stream(client, subjects=["orders.>"])
        for payload in (b"one", b"same", b"same"):
            await client.publish("orders.new", payload)
        heard = [await anext(follow) for _ in range(3)]
        await made.next_msg(timeout=10)
        for payload in (b"same", b"last"):
            await client.publish("orders.new", payload)
        kept = [await anext(follow) for _ in range(2)]
    assert [each.sequence for each in heard if isinstance(each, BusMessage)] == [None, None, None]
    assert [each.sequence for each in kept if isinstance(each, BusMessage)] == [4, 5]


async def test_without_streams_there_is_no_history(server: NatsServer, tmp_path: Path) -> None:
    with NatsServer(tmp_path / "plain", jetstream=False) as plain:
        async with (
            subscribe_to(plain, patterns=["agentgym.>", "agentgym.field.*"]) as watcher,
            await NatsConnection.open(BusAddress(plain.url), name="publisher") as publisher,
        ):
            assert "showing only new messages" in (await watcher.wait_for_notice("no_history")).text
            await publisher.client.publish(SUBJECT, status_event(1))
            await watcher.wait_for_messages(1)
            assert watcher.messages[0].sequence is None
            plain.restart()
            assert "may have been missed" in (await watcher.wait_for_notice("reconnected")).text
            await retry_until_success(lambda: publisher.client.publish(SUBJECT, status_event(2)))
            await watcher.wait_for_messages(2)
            assert watcher.numbers == [1, 2]


async def test_one_who_listens_to_everything_is_not_taken_for_streams(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "plain", jetstream=False) as plain:
        async with await NatsConnection.open(BusAddress(plain.url), name="publisher") as publisher:
            await publisher.client.subscribe(">")
            await publisher.client.flush()
            async with subscribe_to(plain) as watcher:
                assert "this bus has no streams" in (await watcher.wait_for_notice("no_history")).text
                await publisher.client.publish(SUBJECT, status_event(1))
                await watcher.wait_for_messages(1)


async def test_a_pattern_that_streams_keep_in_part(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await add_stream(client, "T", subjects=["agentgym.live.>"], storage=StorageType.MEMORY)
    await publish_events(client, 1)
    async with subscribe_to(server, patterns=["agentgym.>", "agentgym.*.status.*"]) as watcher:
        assert "all of it" in (await watcher.wait_for_notice("no_history")).text
        await client.publish("agentgym.live.health.v1.n", b"live")
        await client.publish("agentgym.control.n", b"control")
        await publish_events(client, 2)
        await watcher.wait_for_messages(4)
        await asyncio.sleep(0.2)  # nothing comes twice
        assert sorted((m.stream or "-", m.subject) for m in watcher.messages) == [
            ("-", "agentgym.control.n"),
            ("S", SUBJECT),
            ("S", SUBJECT),
            ("T", "agentgym.live.health.v1.n"),
        ]


async def test_everything_means_messages_not_the_machinery(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    async with subscribe_to(server, patterns=[">"]) as watcher:
        await watcher.wait_for_notice("no_history")
        await publish_events(client, 1)
        await client.publish("word", b"x")
        await watcher.wait_for_messages(2)
        await asyncio.sleep(0.6)
        assert {message.subject for message in watcher.messages} == {SUBJECT, "word"}


async def test_only_what_is_wanted_of_a_stream(server: NatsServer, client: Client) -> None:
    await add_stream(client, subjects=["agentgym.>"])
    js = client.jetstream()
    for number in range(30):
        await publish_events(client, number)
        await js.publish("agentgym.other.x.y", b"{}")
        await js.publish("agentgym.a.b", b"{}")
    async with subscribe_to(server, patterns=[SUBJECT, "agentgym.*.b", "agentgym.a.*"]) as watcher:
        await watcher.wait_for_messages(60)
        assert {message.subject for message in watcher.messages} == {SUBJECT, "agentgym.a.b"}
        assert watcher.notices == []


async def test_a_work_queue_is_not_emptied_by_looking(server: NatsServer, client: Client) -> None:
    await add_stream(client, retention=RetentionPolicy.WORK_QUEUE)
    await publish_events(client, 1)
    async with subscribe_to(server) as watcher:
        assert "stream S is a work queue" in (await watcher.wait_for_notice("no_history")).text
        await publish_events(client, 2)
        await watcher.wait_for_messages(1)
    assert (await client.jetstream().stream_info("S")).state.messages == 2


async def test_a_work_queue_is_told_of_once_and_by_no_other_reason(
    server: NatsServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "FIRST_LOOKUP_INTERVAL_S", 0.05)
    monkeypatch.setattr(consumer, "LOOKUP_INTERVAL_S", 0.05)
    await add_stream(client, "JOBS", subjects=["jobs.>"], retention=RetentionPolicy.WORK_QUEUE)
    await add_stream(client)
    await publish_events(client, 1)
    asked = await client.subscribe("$JS.API.STREAM.INFO.JOBS")
    async with subscribe_to(server, patterns=["jobs.new", SUBJECT]) as watcher:
        for _ in range(4):
            await asked.next_msg(timeout=10)
        await client.publish("jobs.new", b"last")
        await watcher.wait_for_messages(2)
        assert [notice.kind for notice in watcher.notices] == ["no_history"]
        assert "stream JOBS is a work queue" in watcher.notices[0].text
    async with subscribe_to(server, patterns=[">"]) as watcher:
        await watcher.wait_until(lambda: len(watcher.notices) == 2)
        assert "stream JOBS is a work queue" in watcher.notices[0].text
        assert "all of it" in watcher.notices[1].text


async def test_what_left_the_stream_unread_is_counted(server: NatsServer, client: Client) -> None:
    await add_stream(client, max_msgs=100, discard=DiscardPolicy.OLD, subjects=[SUBJECT, "other"])
    await publish_events(client, *range(50))
    async with subscribe_to(server, patterns=[SUBJECT, "other"], capacity=20) as watcher:
        await watcher.wait_for_messages(50)
        await client.jetstream().purge_stream("S")
        await publish_events(client, *range(50, 60))
        await client.jetstream().delete_msg("S", 55)
        await watcher.wait_until(lambda: 59 in watcher.numbers)
        assert watcher.numbers == list(range(60))
        assert watcher.notices == []
    async with subscribe_to(server, patterns=[SUBJECT, "other"], since=41) as watcher:
        await watcher.wait_until(lambda: 59 in watcher.numbers)
        gaps = [notice.count for notice in watcher.notices if notice.kind == "gap"]
        assert gaps == [10, 1]
        assert watcher.numbers == [50, 51, 52, 53, 55, 56, 57, 58, 59]


async def test_a_slow_reader_of_a_stream_that_drops_its_oldest_learns_how_many(
    server: NatsServer, client: Client
) -> None:
    await add_stream(client, max_msgs=200, discard=DiscardPolicy.OLD, storage=StorageType.MEMORY)
    async with (
        await NatsConnection.open(BusAddress(server.url), name="slow") as connection,
        _follow(connection, capacity=20) as follow,
    ):
        await publish_events(client, *range(20))
        await anext(follow)
        await publish_events(client, *range(20, 2000))
        seen = [await anext(follow) for _ in range(10)]
        async with asyncio.timeout(15):
            while not (isinstance(seen[-1], BusMessage) and seen[-1].sequence == 2000):
                seen.append(await anext(follow))
        missing = sum(item.count for item in seen if isinstance(item, Notice))
        assert [item.kind for item in seen if isinstance(item, Notice)] == ["gap"] * _count(seen, Notice)
        assert _count(seen, BusMessage) + missing == 1999
        assert missing > 0


def _follow(connection: NatsConnection, *, capacity: int) -> Subscription:
    return Subscription(connection, patterns=[SUBJECT], since="all", capacity=capacity)


def _count(seen: list[SubscriptionItem], kind: type[SubscriptionItem]) -> int:
    return sum(isinstance(item, kind) for item in seen)


async def test_a_slow_reader_without_a_stream_gets_the_exact_number(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "plain", jetstream=False) as plain:
        async with (
            await NatsConnection.open(BusAddress(plain.url), name="slow") as connection,
            await NatsConnection.open(BusAddress(plain.url), name="publisher") as publisher,
            _follow(connection, capacity=100) as follow,
        ):
            assert isinstance(await anext(follow), Notice)
            for number in range(5000):
                await publisher.client.publish(SUBJECT, status_event(number))
            seen: list[SubscriptionItem] = []
            async with asyncio.timeout(15):
                while _count(seen, BusMessage) + _skipped(seen) < 5000:
                    seen.append(await anext(follow))
            assert _count(seen, BusMessage) + _skipped(seen) == 5000
            assert _skipped(seen) > 1000
            assert {item.kind for item in seen if isinstance(item, Notice)} == {"skipped"}


def _skipped(seen: list[SubscriptionItem]) -> int:
    return sum(item.count for item in seen if isinstance(item, Notice))


def _users(**permissions: object) -> dict[str, object]:
    users = [{"user": "all", "password": PASSWORD}, {"user": "few", "password": PASSWORD, "permissions": permissions}]
    return {"authorization": {"users": users}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("denied", "said"),
    [
        (["$JS.API.STREAM.NAMES"], "STREAM.NAMES"),
        (["$JS.API.STREAM.INFO.>"], "STREAM.INFO"),
        (["$JS.API.CONSUMER.CREATE.>"], "CONSUMER.CREATE"),
        (["$JS.API.CONSUMER.MSG.NEXT.>"], "MSG.NEXT"),
        (["$JS.>"], "STREAM.NAMES"),
    ],
)
async def test_without_the_right_to_read_streams_it_follows_live(tmp_path: Path, denied: list[str], said: str) -> None:
    with NatsServer(tmp_path / "nats", config=_users(publish={"deny": denied})) as server:
        everybody = BusAddress(server.url, user="all", password=PASSWORD)
        few = BusAddress(server.url, user="few", password=PASSWORD)
        async with await NatsConnection.open(everybody, name="publisher") as connection:
            await add_stream(connection.client)
            await publish_events(connection.client, 1)
            async with subscribe_to(server, address=few) as watcher:
                assert said.lower() in (await watcher.wait_for_notice("permission", 5.0)).text.lower()
                await watcher.wait_for_notice("no_history")
                await publish_events(connection.client, 2)
                await watcher.wait_for_messages(1)
                assert watcher.numbers == [2]
                assert PASSWORD not in str(watcher.notices)


async def test_what_streams_hand_to_others_is_not_said_again(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config=_users(publish={"deny": ["$JS.>"]})) as server:
        everybody = BusAddress(server.url, user="all", password=PASSWORD)
        few = BusAddress(server.url, user="few", password=PASSWORD)
        async with await NatsConnection.open(everybody, name="publisher") as connection:
            await add_stream(connection.client)
            async with subscribe_to(server, address=few, patterns=[">"]) as listener:
                await listener.wait_for_notice("no_history")
                await publish_events(connection.client, 1)
                async with subscribe_to(server, address=everybody) as reader:
                    await reader.wait_for_messages(1)
                await connection.client.publish("last", b"")
                await listener.wait_until(lambda: any(message.subject == "last" for message in listener.messages))
                assert [message.subject for message in listener.messages] == [SUBJECT, "last"]


async def test_a_stream_that_is_taken_away_is_told(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await publish_events(client, 1)
    async with subscribe_to(server) as watcher:
        await watcher.wait_for_messages(1)
        await client.jetstream().delete_stream("S")
        assert (await watcher.wait_for_notice("removed")).text == "stream S was deleted"
        await watcher.wait_for_notice("no_history")


async def test_without_the_right_to_listen_that_is_said(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", jetstream=False, config=_users(subscribe={"deny": ["secret.>"]})) as server:
        few = BusAddress(server.url, user="few", password=PASSWORD)
        async with subscribe_to(server, patterns=["secret.>", "open"], address=few) as watcher:
            assert "secret.>" in (await watcher.wait_for_notice("permission", 5.0)).text


async def test_a_follower_leaves_nothing_behind(server: NatsServer, client: Client) -> None:
    await add_stream(client)
    await publish_events(client, 1)
    for _ in range(3):
        async with subscribe_to(server) as watcher:
            await watcher.wait_for_messages(1)
    await client.flush()
    assert (await client.jetstream().stream_info("S")).state.consumer_count == 0
