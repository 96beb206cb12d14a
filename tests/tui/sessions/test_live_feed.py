from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from textual import events
from ulid import ULID

from agentgym_tui.app import Console
from agentgym_tui.sessions import bus_session
from agentgym_tui.sessions.bus_session import (
    HISTORY_MARGIN,
    MAX_MESSAGES,
    MAX_READ_BYTES,
    MIN_HISTORY,
    LiveFeed,
    history_age,
    is_behind,
    link_from_state,
)
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.bus.connection import BusAddress, NatsConnection
from runner.bus.errors import BusState
from runner.bus.streams import ensure_streams
from runner.events.codec import encode
from runner.events.live import Heartbeat, LiveBatch, LiveItem
from runner.events.subjects import LIVE_STREAM, LIVE_SUBJECTS, DurableNames, live_subject
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import BusMessage, Notice
from runner.subscribe.subscription import Subscription
from tests.support.console import live_items
from tests.support.console.fake_session import busy_session
from tests.support.console.live_items import token
from tests.support.console.pilot import wait_for_text, wait_for_widget_text, wait_until
from tests.support.episodes import new_id
from tests.support.nats_server import Bus, NatsServer

BOOT = new_id()
SMALL_BYTES = 32 * 1024
"""Size of a stream or a buffer that a burst of messages exceeds."""


@asynccontextmanager
async def feeding(
    connection: NatsConnection, store: RunStore, cpu_time_s: Callable[[], float] = time.thread_time
) -> AsyncIterator[asyncio.Event]:
    """Run a live feed; the event is set at each change of the store."""
    changed = asyncio.Event()
    store.on_change = changed.set
    names = DurableNames()
    patterns = [*names.all(), LIVE_SUBJECTS]
    task = asyncio.create_task(LiveFeed(store, cpu_time_s).run(connection, patterns, timedelta(hours=1), names))
    try:
        yield changed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def holding(bus: Bus, *batches: LiveBatch) -> AsyncIterator[NatsConnection]:
    """Connect to a bus whose stream holds the batches."""
    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        js = connection.client.jetstream()
        await ensure_streams(js, DurableNames().all())
        for batch in batches:
            await js.publish(live_subject("token", "n1"), encode(batch))
        yield connection


def tokens(first: int, n: int, text: str) -> LiveBatch:
    items: list[LiveItem] = [token(seq=seq, text=text) for seq in range(first, first + n)]
    return LiveBatch(node="n1", boot=BOOT, dropped=0, items=items)


def started(episode_id: str) -> LiveBatch:
    items: list[LiveItem] = [live_items.started(0, episode_id=episode_id), Heartbeat(at=datetime.now(UTC))]
    return LiveBatch(node="n1", boot=BOOT, dropped=0, items=items)


async def test_each_message_reaches_the_store_once_across_a_restart(nats_server: NatsServer) -> None:
    store, early, late = RunStore(), new_id(), new_id()
    async with await NatsConnection.open(BusAddress(nats_server.url), name="test") as connection:
        js = connection.client.jetstream()
        await ensure_streams(js, DurableNames().all())
        subject = live_subject("episode", "n1")
        await js.publish(subject, encode(started(early)))
        await js.publish("agentgym.live.episode.v1.n1", b"\x1b[2J nonsense")
        async with feeding(connection, store) as changed, asyncio.timeout(20):
            while early not in store.episodes:
                changed.clear()
                await changed.wait()
            nats_server.restart()
            async with await NatsConnection.open(BusAddress(nats_server.url), name="again") as other:
                js = other.client.jetstream()
                await ensure_streams(js, DurableNames().all())
                await js.publish(subject, encode(started(early)))
                await js.publish(subject, encode(started(late)))
            while late not in store.episodes:
                changed.clear()
                await changed.wait()
    assert list(store.episodes) == [early, late]
    assert store.n_malformed == 1 and list(store.nodes) == ["n1"]
    assert all("made again" not in notice.text for notice in store.notices)  # as each start of a broker does


async def test_large_messages_reach_the_store_completely(bus: Bus) -> None:
    store, n_messages = RunStore(), 6
    batches = (tokens(1_000 * number, 1_000, "so ") for number in range(n_messages))
    async with holding(bus, *batches) as connection, feeding(connection, store) as changed, asyncio.timeout(30):
        while store.n_items < n_messages * 1_000:
            changed.clear()
            await changed.wait()
    (episode,) = store.episodes.values()
    assert episode.streaming is not None and episode.streaming.text == "so " * n_messages * 1_000
    assert episode.n_missing == store.n_malformed == 0


async def test_a_key_acts_between_the_portions_of_a_flood(bus: Bus) -> None:
    session, names, n_items = busy_session(), DurableNames(), 5_000
    app, store, has_acted = Console(session), session.store, list[bool]()
    flood = (tokens(first, n_items, "") for first in range(0, 10 * n_items, n_items))
    async with asyncio.timeout(60), holding(bus, *flood) as connection, app.run_test(size=(80, 24)) as pilot:
        await wait_for_text(pilot, "Environments")
        live, last = app.screen, store.n_items + 10 * n_items

        def after_portion() -> None:
            if has_acted:
                has_acted.append(app.screen is not live)
            elif store.n_items > last - n_items:  # in the last message
                app.post_message(events.Key("2", "2"))
                has_acted.append(False)

        store.on_change = after_portion
        feed = LiveFeed(store).run(connection, [*names.all(), LIVE_SUBJECTS], timedelta(hours=1), names)
        feeding = asyncio.create_task(feed)
        await wait_for_widget_text(pilot, "#summary", "episodes")
        await wait_until(pilot, lambda: store.n_items == last)
        feeding.cancel()
    assert len(has_acted) > 5 and any(has_acted), "the key has waited for all items"


@pytest.mark.parametrize(
    ("n", "n_bytes", "pending", "behind"),
    [(3, 1, 0, False), (3, 1, 3, False), (3, 1, 4, True), (MAX_MESSAGES, 1, 0, True), (2, MAX_READ_BYTES, 0, True)],
)
def test_a_feed_is_behind_after_a_full_read_or_while_its_stream_has_more_than_it_read(
    n: int, n_bytes: int, pending: int, behind: bool
) -> None:
    message = RawMessage("agentgym.live.token.v1.n1", {}, b"x" * n_bytes, pending=pending)
    assert is_behind([message] * n) is behind
    assert not is_behind([Notice(kind="gap", text="lost")])


@pytest.mark.parametrize("has_stream", [True, False])
async def test_every_message_that_a_slow_console_loses_is_counted(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, has_stream: bool
) -> None:
    store, n_sent = RunStore(), 2_000
    monkeypatch.setattr(bus_session, "MAX_WAITING_BYTES", SMALL_BYTES)
    address = BusAddress(bus.url)
    async with (
        await NatsConnection.open(address, name="test") as connection,
        await NatsConnection.open(address, name="node") as node,
        feeding(connection, store) as changed,
        asyncio.timeout(30),
    ):

        async def wait_until(condition: Callable[[], bool]) -> None:
            while not condition():
                changed.clear()
                await changed.wait()

        async def publish(*seqs: int) -> None:
            for seq in seqs:
                batch = LiveBatch(node="n1", boot=BOOT, dropped=0, items=[token(seq=seq, text="x" * 2_000)])
                await node.client.publish(live_subject("token", "n1"), encode(batch))
            await node.client.flush()

        if has_stream:
            stream = StreamConfig(name=LIVE_STREAM, subjects=[LIVE_SUBJECTS], storage=StorageType.MEMORY)
            await node.client.jetstream().add_stream(stream, discard=DiscardPolicy.OLD, max_bytes=SMALL_BYTES)
        else:
            await wait_until(lambda: any(LIVE_SUBJECTS in notice.text for notice in store.notices))
        await publish(0)
        await wait_until(lambda: store.n_items == 1)
        await publish(*range(1, n_sent - 1))
        await wait_until(lambda: store.n_items + store.notice_list.n_lost >= n_sent - 1)
        await publish(n_sent - 1)
        await wait_until(lambda: store.n_items + store.notice_list.n_lost >= n_sent)
    assert store.notice_list.n_lost > 0
    assert store.n_items + store.notice_list.n_lost == n_sent
    assert store.episode_registry.n_missing == store.notice_list.n_lost


async def test_decoding_pauses_for_a_turn_after_a_slice_of_time_of_any_length(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, n_messages, turns = RunStore(), 20, [0]
    decoded_in: list[int] = []
    hours = itertools.count(step=3600.0)
    decode = Subscription.decode

    def record(self: Subscription, message: RawMessage) -> BusMessage | None:
        decoded_in.append(turns[0])
        return decode(self, message)

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Subscription, "decode", record)
    async with holding(bus, *(started(new_id()) for _ in range(n_messages))) as connection:
        counting = asyncio.create_task(count_turns())
        async with feeding(connection, store, lambda: next(hours)) as changed, asyncio.timeout(20):
            while len(store.episodes) < n_messages:
                changed.clear()
                await changed.wait()
        counting.cancel()
    assert len(set(decoded_in)) == n_messages


def test_each_connection_state_maps_to_a_link_state_but_a_closed_one() -> None:
    for status in ("connecting", "connected", "stalled", "disconnected"):
        link = link_from_state(BusState(status, reason="why"), "nats://x:1")
        assert link == BusLink(status, "why", "nats://x:1")
    assert link_from_state(BusState("closed", reason="why"), "nats://x:1") is None


def test_live_items_are_read_from_the_start_of_the_oldest_running_batch() -> None:
    now = datetime.now(UTC)
    ids = [str(ULID.from_datetime(now - timedelta(minutes=minutes))) for minutes in (3, 7, 5)]
    assert abs(history_age(ids, now) - HISTORY_MARGIN - timedelta(minutes=7)) < timedelta(milliseconds=5)
    assert history_age([str(ULID.from_datetime(now + timedelta(days=1)))], now) == HISTORY_MARGIN
    assert history_age(["\x1b[2J", ""], now) == history_age([], now) == MIN_HISTORY
