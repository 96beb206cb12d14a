"""The events screen and its source on a real bus that mostly carries foreign messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from textual.pilot import Pilot

from agentgym_tui.app import Console
from agentgym_tui.screens.line_browser import EventsScreen
from agentgym_tui.sessions import event_reader
from agentgym_tui.sessions.bus_session import BusSession
from agentgym_tui.sessions.event_reader import MAX_WAITING, EventSource
from runner.bus.connection import BusAddress, NatsConnection
from runner.bus.streams import BUS_ERRORS
from runner.client.node_folder import LaunchOptions
from runner.subscribe.buffer import RawMessage
from runner.subscribe.subscription import Subscription
from tests.support.console.pilot import type_text, wait_for_widget_text, wait_until, widget_text
from tests.support.nats_server import Bus, NatsAccount, NatsServer
from tests.support.publishing import nats_client
from tests.support.subscriptions import add_stream, retry_until_success

SMALL_BUFFER = 40
"""Messages that wait in a small source; half of them are for stored messages."""


@asynccontextmanager
async def events_pilot(bus: Bus, data_dir: Path) -> AsyncIterator[Pilot[None]]:
    app = Console(BusSession(LaunchOptions(data_dir=str(data_dir)), url=bus.url))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("3")
        await wait_until(pilot, lambda: isinstance(app.screen, EventsScreen))
        await wait_for_widget_text(pilot, "#summary", "● connected")
        yield pilot


async def publish_orders(client: Client, *numbers: int) -> None:
    js = client.jetstream(timeout=5)
    for n in numbers:
        await js.publish(f"orders.{('eu', 'us')[n % 2]}", b'{"order": %d}' % n)


@pytest.mark.long
async def test_foreign_messages_live_paused_and_from_history(bus: NatsAccount, tmp_path: Path) -> None:
    async with nats_client(bus) as client:
        await add_stream(client, "ORDERS", subjects=["orders.*"])
        await publish_orders(client, *range(1, 8))
        async with events_pilot(bus, tmp_path) as pilot:
            await wait_for_widget_text(pilot, "#messages", '{"order": 7}')
            await client.publish("not.in.a.stream", b"\xff\x00\x1b[2J")
            await client.publish("agentgym.episode.completed.v1", b'{"episode_id": 3}')
            await wait_for_widget_text(pilot, "#messages", "not.in.a.stream", "6 bytes, not text", "✗ malformed")
            await wait_for_widget_text(pilot, "#summary", "1 malformed")
            await wait_for_widget_text(pilot, "#subjects", "▾ orders", "eu", "▾ not")
            await pilot.press("space")
            await wait_for_widget_text(pilot, "#summary", "‖ paused")
            await publish_orders(client, *range(8, 40))
            await wait_for_widget_text(pilot, "#summary", "32 waiting")
            assert '{"order": 8}' not in widget_text(pilot, "#messages")
            await pilot.press("space")
            await wait_for_widget_text(pilot, "#messages", '{"order": 39}', '{"order": 30}')
            await wait_for_widget_text(pilot, "#summary", "41 messages", "0 in gaps", "0 skipped")
            await pilot.press("u")
            await type_text(pilot, "orders.us", "enter")
            await wait_for_widget_text(pilot, "#messages", '{"order": 1}', '{"order": 3}')
            assert '{"order": 2}' not in widget_text(pilot, "#messages")
            await pilot.press("escape", "J")
            await type_text(pilot, "12", "enter")
            await wait_for_widget_text(pilot, "#summary", "◂ history", "from #12")
            await wait_for_widget_text(pilot, "#payload", '"order": 12')
            assert '{"order": 11}' not in widget_text(pilot, "#messages")


@pytest.mark.long
async def test_a_jump_merges_all_streams_into_one_history(bus: NatsAccount, tmp_path: Path) -> None:
    async with nats_client(bus) as client:
        await add_stream(client, "LONG", subjects=["mixed.long"])
        await add_stream(client, "NEW", subjects=["mixed.new"])
        js = client.jetstream(timeout=5)
        for n in range(60):
            await js.publish("mixed.long", b'{"n": %d, "filler": "%s"}' % (n, b"x" * 50_000))
        await js.publish("mixed.new", b'{"n": 60}')
        async with events_pilot(bus, tmp_path) as pilot:
            await pilot.press("u")
            await type_text(pilot, "mixed.>", "enter")
            await wait_for_widget_text(pilot, "#payload", '"n": 60')
            for start in ("all", "1", "10m"):
                await pilot.press("J")
                await type_text(pilot, start, "enter")
                await wait_for_widget_text(pilot, "#summary", "◂ history")
                await wait_for_widget_text(pilot, "#payload", '"n": 0')
                await wait_for_widget_text(pilot, "#messages", '{"n": 1,')
                assert '{"n": 60' not in widget_text(pilot, "#messages")


async def test_all_messages_of_an_episode_are_shown(bus: NatsAccount, tmp_path: Path) -> None:
    async with nats_client(bus) as client:
        await add_stream(client, "FOREIGN", subjects=["foreign.>"])
        js = client.jetstream(timeout=5)
        for n in range(6):
            await js.publish("foreign.steps", b'{"episode_id": "e%d", "step": %d}' % (n % 2, n))
        async with events_pilot(bus, tmp_path) as pilot:
            await pilot.press("u")
            await type_text(pilot, "foreign.>", "enter")
            await wait_for_widget_text(pilot, "#payload", '"step": 5')
            await pilot.press("B")
            await wait_for_widget_text(pilot, "#summary", "episode e1")
            for step in (5, 3, 1):
                await wait_for_widget_text(pilot, "#payload", f'"step": {step}')
                await pilot.press("k")
            assert "e0" not in widget_text(pilot, "#messages")


async def test_pending_messages_of_all_streams_are_counted(bus: NatsAccount) -> None:
    async with nats_client(bus) as client, await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        js, source = client.jetstream(timeout=5), EventSource()
        for name in ("first", "second", "silent"):
            await add_stream(client, name.upper(), subjects=[name])
        for n in range(9):
            await js.publish("first" if n < 5 else "second", b"%d" % n)
        source.set_connection(connection)
        async with source.open(["first", "second", "silent"], "all") as feed, asyncio.timeout(10):
            (message,) = await feed.next_raw(1)
            assert isinstance(message, RawMessage) and message.payload == b"0"
            assert await feed.count_waiting() == 8


async def test_pending_messages_are_counted_with_and_without_a_stream(bus: NatsAccount) -> None:
    async with nats_client(bus) as client, await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        await add_stream(client, "SHORT", subjects=["short"])
        js, source = client.jetstream(timeout=5), EventSource()
        source.set_connection(connection)
        await js.publish("short", b"0")
        async with source.open(["short", "streamless"], "all") as feed, asyncio.timeout(10):
            while not any(isinstance(item, RawMessage) and item.pending == 0 for item in await feed.next_raw(500)):
                pass
            await js.publish("short", b"1")
            await client.publish("streamless", b"2")
            await client.flush()
            while await feed.count_waiting() != 2:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.02)
            n_read = 0
            while n_read < 2:
                n_read += sum(isinstance(item, RawMessage) for item in await feed.next_raw(500))
            assert await feed.count_waiting() == 0
            await connection.close()
            with pytest.raises(BUS_ERRORS):
                await feed.count_waiting()


@asynccontextmanager
async def open_feed(bus: Bus, *patterns: str, max_waiting: int = MAX_WAITING) -> AsyncIterator[Subscription]:
    source = EventSource()
    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection, asyncio.timeout(20):
        source.set_connection(connection)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(event_reader, "MAX_WAITING", max_waiting)
            async with source.open(patterns, "all") as feed:
                yield feed


async def publish_numbers(client: Client, subject: str, *numbers: int) -> None:
    js = client.jetstream(timeout=1)
    for number in numbers:
        await js.publish(subject, b"%d" % number)


async def read_numbers(feed: Subscription, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        items = await feed.next_raw(count - len(numbers))
        numbers += [int(item.payload) for item in items if isinstance(item, RawMessage)]
    return numbers


async def wait_until_pending(feed: Subscription, count: int) -> None:
    while await feed.count_waiting() != count:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.02)


@pytest.mark.long
async def test_pending_messages_are_counted_after_the_server_lost_its_store(nats_server: NatsServer) -> None:
    async with nats_client(nats_server) as client:
        await add_stream(client, "LOST", subjects=["lost"])
        await publish_numbers(client, "lost", *range(100))
        async with open_feed(nats_server, "lost", max_waiting=SMALL_BUFFER) as feed:
            assert await read_numbers(feed, 1) == [0]
            await wait_until_pending(feed, 99)
            nats_server.stop()
            nats_server.empty_store()
            nats_server.start()
            await retry_until_success(lambda: add_stream(client, "LOST", subjects=["lost"]))
            await publish_numbers(client, "lost", *range(100, 130))
            await wait_until_pending(feed, 19 + 30)
            assert await read_numbers(feed, 19 + 30) == [*range(1, 20), *range(100, 130)]
            assert await feed.count_waiting() == 0


async def test_purged_messages_are_not_pending(bus: NatsAccount) -> None:
    async with nats_client(bus) as client:
        await add_stream(client, "PURGED", subjects=["purged"])
        await publish_numbers(client, "purged", *range(100))
        async with open_feed(bus, "purged", max_waiting=SMALL_BUFFER) as feed:
            assert await read_numbers(feed, 1) == [0]
            await wait_until_pending(feed, 99)
            await client.jetstream().purge_stream("PURGED", keep=10)
            await wait_until_pending(feed, 19 + 10)
            assert await read_numbers(feed, 19 + 10) == [*range(1, 20), *range(90, 100)]
            assert await feed.count_waiting() == 0


async def test_pending_messages_are_counted_after_a_stream_is_deleted_and_created_again(bus: NatsAccount) -> None:
    async with nats_client(bus) as client:
        await add_stream(client, "AGAIN", subjects=["again"])
        await publish_numbers(client, "again", *range(50))
        async with open_feed(bus, "again") as feed:
            assert await read_numbers(feed, 1) == [0]
            await wait_until_pending(feed, 49)
            await client.jetstream().delete_stream("AGAIN")
            await wait_until_pending(feed, 49)
            await add_stream(client, "AGAIN", subjects=["again"])
            await publish_numbers(client, "again", *range(50, 80))
            await wait_until_pending(feed, 79)
            assert await read_numbers(feed, 79) == list(range(1, 80))
            assert await feed.count_waiting() == 0


async def test_pending_messages_of_unread_streams_are_counted_for_matching_subjects_only(bus: NatsAccount) -> None:
    async with nats_client(bus) as client:
        await add_stream(client, "OTHER", subjects=["some.*"])
        await add_stream(client, "EMPTY", subjects=["empty"])
        await publish_numbers(client, "some.unwanted", *range(30))
        created = [
            await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.CREATED.{name}.*") for name in ("OTHER", "EMPTY")
        ]
        async with open_feed(bus, "some.wanted", "empty", max_waiting=SMALL_BUFFER) as feed:
            for advisories in created:
                await advisories.next_msg(timeout=10)
            await wait_until_pending(feed, 0)
            await publish_numbers(client, "empty", *range(100))
            await wait_until_pending(feed, 100)
            assert await read_numbers(feed, 100) == list(range(100))
