"""The events screen on a real bus, most of which says nothing of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from textual.pilot import Pilot

from agentgym_tui.app.console import Console
from agentgym_tui.screens.events.screen import EventsScreen
from agentgym_tui.sessions import event_source
from agentgym_tui.sessions.bus_session import BusSession
from agentgym_tui.sessions.event_source import BusEventSource, EventFeed
from agentgym_tui.sessions.node_launcher import LaunchOptions
from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.buffer import RawMessage
from tests.support.console.pilot import wait_for_widget_text, wait_until, widget_text
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import add_stream, retry_until_success


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@asynccontextmanager
async def publisher(server: NatsServer) -> AsyncIterator[Client]:
    client = Client()
    await client.connect(server.url)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def watching(server: NatsServer, data_dir: Path) -> AsyncIterator[Pilot[None]]:
    app = Console(BusSession(LaunchOptions(data_dir=str(data_dir)), url=server.url))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("3")
        await wait_until(pilot, lambda: isinstance(app.screen, EventsScreen))
        await wait_for_widget_text(pilot, "#summary", "● connected")
        yield pilot


async def orders(client: Client, *numbers: int) -> None:
    js = client.jetstream(timeout=5)
    for n in numbers:
        await js.publish(f"orders.{('eu', 'us')[n % 2]}", b'{"order": %d}' % n)


async def typed(pilot: Pilot[None], text: str) -> None:
    await pilot.press(*text, "enter")


async def test_what_is_none_of_ours_live_paused_and_from_its_history(server: NatsServer, tmp_path: Path) -> None:
    async with publisher(server) as client:
        await add_stream(client, "ORDERS", subjects=["orders.*"])
        await orders(client, *range(1, 8))
        async with watching(server, tmp_path) as pilot:
            await wait_for_widget_text(pilot, "#messages", '{"order": 7}')
            await client.publish("kept.by.nobody", b"\xff\x00\x1b[2J")
            await client.publish("agentgym.episode.completed.v1", b'{"episode_id": 3}')
            await wait_for_widget_text(pilot, "#messages", "kept.by.nobody", "6 bytes, not text", "✗ malformed")
            await wait_for_widget_text(pilot, "#summary", "1 malformed")
            await wait_for_widget_text(pilot, "#subjects", "▾ orders", "eu", "▾ kept")
            await pilot.press("space")
            await wait_for_widget_text(pilot, "#summary", "‖ paused")
            await orders(client, *range(8, 40))
            await wait_for_widget_text(pilot, "#summary", "32 waiting")
            assert '{"order": 8}' not in widget_text(pilot, "#messages")
            await pilot.press("space")
            await wait_for_widget_text(pilot, "#messages", '{"order": 39}', '{"order": 30}')
            await wait_for_widget_text(pilot, "#summary", "41 messages", "0 in gaps", "0 skipped")
            await pilot.press("s")
            await typed(pilot, "orders.us")
            await wait_for_widget_text(pilot, "#messages", '{"order": 1}', '{"order": 3}')
            assert '{"order": 2}' not in widget_text(pilot, "#messages")
            await pilot.press("escape", "J")
            await typed(pilot, "12")
            await wait_for_widget_text(pilot, "#summary", "◂ history", "from #12")
            await wait_for_widget_text(pilot, "#payload", '"order": 12')
            assert '{"order": 11}' not in widget_text(pilot, "#messages")


async def test_a_jump_shows_all_streams_as_one_history(server: NatsServer, tmp_path: Path) -> None:
    async with publisher(server) as client:
        await add_stream(client, "LONG", subjects=["mixed.long"])
        await add_stream(client, "ANEW", subjects=["mixed.anew"])
        js = client.jetstream(timeout=5)
        for n in range(60):
            await js.publish("mixed.long", b'{"n": %d, "filler": "%s"}' % (n, b"x" * 50_000))
        await js.publish("mixed.anew", b'{"n": 60}')
        async with watching(server, tmp_path) as pilot:
            await pilot.press("s")
            await typed(pilot, "mixed.>")
            await wait_for_widget_text(pilot, "#payload", '"n": 60')
            for start in ("all", "1", "10m"):
                await pilot.press("J")
                await typed(pilot, start)
                await wait_for_widget_text(pilot, "#summary", "◂ history")
                await wait_for_widget_text(pilot, "#payload", '"n": 0')
                await wait_for_widget_text(pilot, "#messages", '{"n": 1,')
                assert '{"n": 60' not in widget_text(pilot, "#messages")


async def test_all_of_an_episode_from_every_stream(server: NatsServer, tmp_path: Path) -> None:
    async with publisher(server) as client:
        await add_stream(client, "THEIRS", subjects=["theirs.>"])
        js = client.jetstream(timeout=5)
        for n in range(6):
            await js.publish("theirs.steps", b'{"episode_id": "e%d", "step": %d}' % (n % 2, n))
        async with watching(server, tmp_path) as pilot:
            await pilot.press("s")
            await typed(pilot, "theirs.>")
            await wait_for_widget_text(pilot, "#payload", '"step": 5')
            await pilot.press("a")
            await wait_for_widget_text(pilot, "#summary", "episode e1")
            for step in (5, 3, 1):
                await wait_for_widget_text(pilot, "#payload", f'"step": {step}')
                await pilot.press("k")
            assert "e0" not in widget_text(pilot, "#messages")


async def test_what_waits_of_streams_that_began_later_is_counted_too(server: NatsServer) -> None:
    async with (
        publisher(server) as client,
        await NatsConnection.open(BusAddress(server.url), name="test") as connection,
    ):
        js, bus = client.jetstream(timeout=5), BusEventSource()
        for name in ("first", "second", "silent"):
            await add_stream(client, name.upper(), subjects=[name])
        for n in range(9):
            await js.publish("first" if n < 5 else "second", b"%d" % n)
        bus.set_connection(connection)
        async with bus.open(["first", "second", "silent"], "all") as feed, asyncio.timeout(10):
            (came,) = await feed.read(1)
            assert isinstance(came, RawMessage) and came.payload == b"0"
            assert await feed.n_pending() == 8


async def test_what_is_not_read_is_counted_kept_or_not(server: NatsServer) -> None:
    async with (
        publisher(server) as client,
        await NatsConnection.open(BusAddress(server.url), name="test") as connection,
    ):
        await add_stream(client, "SHORT", subjects=["short"])
        js, bus = client.jetstream(timeout=5), BusEventSource()
        bus.set_connection(connection)
        await js.publish("short", b"0")
        async with bus.open(["short", "unkept"], "all") as feed, asyncio.timeout(10):
            while not any(isinstance(each, RawMessage) and each.pending == 0 for each in await feed.read(500)):
                pass
            await js.publish("short", b"1")
            await client.publish("unkept", b"2")
            await client.flush()
            while await feed.n_pending() != 2:  # noqa: ASYNC110 - it is on its way from the server
                await asyncio.sleep(0.02)
            read = 0
            while read < 2:
                read += sum(isinstance(each, RawMessage) for each in await feed.read(500))
            assert await feed.n_pending() == 0
            await connection.close()
            assert await feed.n_pending() is None


@asynccontextmanager
async def fed(server: NatsServer, *patterns: str) -> AsyncIterator[EventFeed]:
    bus = BusEventSource()
    async with await NatsConnection.open(BusAddress(server.url), name="test") as connection, asyncio.timeout(20):
        bus.set_connection(connection)
        async with bus.open(patterns, "all") as feed:
            yield feed


async def say(client: Client, subject: str, *numbers: int) -> None:
    js = client.jetstream(timeout=1)
    for number in numbers:
        await js.publish(subject, b"%d" % number)


async def read(feed: EventFeed, count: int) -> list[int]:
    came: list[int] = []
    while len(came) < count:
        more = await feed.read(count - len(came))
        came += [int(each.payload) for each in more if isinstance(each, RawMessage)]
    return came


async def until_behind(feed: EventFeed, count: int) -> None:
    while await feed.n_pending() != count:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.02)


async def test_what_waits_is_known_after_a_server_has_lost_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "MAX_WAITING", 40)  # of which 20 are for what streams keep
    with NatsServer(tmp_path / "own") as server:
        async with publisher(server) as client:
            await add_stream(client, "LOST", subjects=["lost"])
            await say(client, "lost", *range(100))
            async with fed(server, "lost") as feed:
                assert await read(feed, 1) == [0]
                await until_behind(feed, 99)
                server.stop()
                server.empty_store()
                server.start()
                await retry_until_success(lambda: add_stream(client, "LOST", subjects=["lost"]))
                await say(client, "lost", *range(100, 130))
                await until_behind(feed, 19 + 30)
                assert await read(feed, 19 + 30) == [*range(1, 20), *range(100, 130)]
                assert await feed.n_pending() == 0


async def test_what_was_purged_waits_no_more(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "MAX_WAITING", 40)
    async with publisher(server) as client:
        await add_stream(client, "PURGED", subjects=["purged"])
        await say(client, "purged", *range(100))
        async with fed(server, "purged") as feed:
            assert await read(feed, 1) == [0]
            await until_behind(feed, 99)
            await client.jetstream().purge_stream("PURGED", keep=10)
            await until_behind(feed, 19 + 10)
            assert await read(feed, 19 + 10) == [*range(1, 20), *range(90, 100)]
            assert await feed.n_pending() == 0


async def test_what_waits_of_a_stream_is_known_without_it_and_when_it_is_made_again(server: NatsServer) -> None:
    async with publisher(server) as client:
        await add_stream(client, "AGAIN", subjects=["again"])
        await say(client, "again", *range(50))
        async with fed(server, "again") as feed:
            assert await read(feed, 1) == [0]
            await until_behind(feed, 49)
            await client.jetstream().delete_stream("AGAIN")
            await until_behind(feed, 49)
            await add_stream(client, "AGAIN", subjects=["again"])
            await say(client, "again", *range(50, 80))
            await until_behind(feed, 79)
            assert await read(feed, 79) == list(range(1, 80))
            assert await feed.n_pending() == 0


async def test_streams_of_which_nothing_was_read_count_but_not_for_what_is_not_wanted(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_source, "MAX_WAITING", 40)
    async with publisher(server) as client:
        await add_stream(client, "OTHER", subjects=["some.*"])
        await add_stream(client, "EMPTY", subjects=["empty"])
        await say(client, "some.unwanted", *range(30))
        begun = [await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.CREATED.{name}.*") for name in ("OTHER", "EMPTY")]
        async with fed(server, "some.wanted", "empty") as feed:
            for each in begun:
                await each.next_msg(timeout=10)
            await until_behind(feed, 0)
            await say(client, "empty", *range(100))
            await until_behind(feed, 100)
            assert await read(feed, 100) == list(range(100))
