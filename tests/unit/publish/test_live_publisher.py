from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from nats.aio.msg import Msg

from runner.batch.observers import LiveItems
from runner.episode.live_items import started_item, timestep_item
from runner.events.live import Heartbeat, LiveBatch, TokenText
from runner.events.subjects import LIVE_STREAM
from runner.publish import live_publisher
from runner.publish.live_publisher import MAX_MESSAGE_BYTES, LivePublisher
from runner.publish.outbox import Outbox
from runner.types import TimestepPlayed
from tests.support.episodes import episode_header, make_step
from tests.support.nats_server import Bus, NatsAccount, NatsServer
from tests.support.node_events import wait_until
from tests.support.publishing import NOW, nats_client, run_publisher, sink_to, stored_messages
from tests.support.schemas import validate

WAIT_S = 20.0
PREFIX = "agentgym.live."


def token(seq: int, text: str = "word") -> TokenText:
    return TokenText(at=NOW, episode_id="01", seq=seq, step=0, text=text)


class LiveMessages:
    """Records live messages; ``wait_for_items`` waits for their items."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self._changed = asyncio.Event()

    async def record(self, message: Msg) -> None:
        self.messages.append(message)
        self._changed.set()

    def batches(self, channel: str) -> list[LiveBatch]:
        subject = f"{PREFIX}{channel}.v1.node1"
        return [msgspec.json.decode(m.data, type=LiveBatch) for m in self.messages if m.subject == subject]

    def seqs(self, channel: str) -> list[int]:
        return [item.seq for batch in self.batches(channel) for item in batch.items if hasattr(item, "seq")]

    async def wait_for_items(self, n_items: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while sum(len(msgspec.json.decode(message.data)["items"]) for message in self.messages) < n_items:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def run_live_publisher(outbox: Outbox, *buses: Bus, capacity: int = 1 << 20) -> AsyncIterator[LivePublisher]:
    sinks = [sink_to(bus, f"sink{number}") for number, bus in enumerate(buses)]
    async with run_publisher(outbox, *sinks) as running:
        await running.wait_for_state("up")
        publisher = LivePublisher(running.publisher.sink_connections, node="node1", boot="boot1", capacity=capacity)
        task = asyncio.create_task(publisher.run())
        yield publisher
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def record_messages(bus: Bus) -> AsyncIterator[LiveMessages]:
    recorded = LiveMessages()
    async with nats_client(bus) as client:
        await client.subscribe(f"{PREFIX}>", cb=recorded.record)
        await client.flush()
        yield recorded


async def test_items_are_batched_on_the_subject_of_their_channel(bus: NatsAccount, outbox: Outbox) -> None:
    episode = episode_header()
    started = started_item(NOW, 0, episode)
    played = TimestepPlayed(at=NOW, episode_id=episode.episode_id, seq=1, step=make_step(0), reset_observation=[])
    async with record_messages(bus) as recorded, run_live_publisher(outbox, bus) as publisher:
        publisher(started)
        publisher(LiveItems("timestep", (timestep_item(played),)))
        publisher.put(Heartbeat(at=NOW))
        for seq in range(2, 50):
            publisher.put(token(seq))
        await recorded.wait_for_items(51)
        await publisher.flush()
    assert [message.subject for message in recorded.messages] == [
        f"{PREFIX}{channel}.v1.node1" for channel in ("episode", "timestep", "health", "token")
    ]
    assert recorded.seqs("token") == list(range(2, 50))
    for message in recorded.messages:
        validate(message.subject, message.data)
    (batch,) = recorded.batches("timestep")
    assert (batch.node, batch.boot, batch.dropped) == ("node1", "boot1", 0)


async def test_a_sleeping_publisher_is_woken_by_an_item_of_any_thread_and_by_nothing_else(
    bus: NatsAccount, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_publisher, "RETRY_S", 600.0)
    async with record_messages(bus) as recorded, run_live_publisher(outbox, bus) as publisher:
        for seq in range(3):
            await asyncio.to_thread(publisher.put, token(seq))
            await recorded.wait_for_items(seq + 1)
        n_flushes = 0

        async def flush() -> None:
            nonlocal n_flushes
            n_flushes += 1

        monkeypatch.setattr(publisher, "flush", flush)
        publisher.put(token(3))
        await wait_until(lambda: n_flushes > 0)
        before = n_flushes
        await asyncio.sleep(5 * live_publisher.INTERVAL_S)
        assert n_flushes <= before + 1
    assert recorded.seqs("token") == [0, 1, 2]


async def test_the_message_size_is_limited_and_an_unencodable_item_is_dropped(bus: NatsAccount, outbox: Outbox) -> None:
    async with record_messages(bus) as recorded, run_live_publisher(outbox, bus, capacity=1 << 24) as publisher:
        for seq in range(300):
            publisher.put(token(seq, "x" * 10_000))
        publisher.put(token(300, "x" * MAX_MESSAGE_BYTES))
        publisher.put(token(301))
        publisher.put(token(302, "\ud800"))
        publisher.put(token(303))
        await recorded.wait_for_items(302)
        assert publisher.dropped == [2]
    assert recorded.seqs("token") == [*range(300), 301, 303]
    assert recorded.batches("token")[-1].dropped == 2
    assert all(len(message.data) <= MAX_MESSAGE_BYTES for message in recorded.messages)
    assert 6 <= len(recorded.messages) <= 10


async def test_the_oldest_items_are_dropped_and_counted_without_a_server(
    nats_server: NatsServer, outbox: Outbox
) -> None:
    async with run_live_publisher(outbox, nats_server, capacity=20_000) as publisher:
        nats_server.kill()
        await wait_until(lambda: publisher._queues[0]._sink_connection.client is None)
        threads = [threading.Thread(target=_put_all, args=(publisher, 1000)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        (dropped,) = publisher.dropped
        n_queued = len(publisher._queues[0].queue._items)
        assert dropped + n_queued == 4000
        assert 0 < n_queued < 400
        nats_server.start()
        async with record_messages(nats_server) as recorded:
            publisher.put(token(1000))
            await wait_until(lambda: recorded.seqs("token")[-1:] == [1000])
            assert recorded.batches("token")[-1].dropped == publisher.dropped[0] >= dropped


async def test_items_sent_right_after_a_broker_restart_are_stored(nats_server: NatsServer, outbox: Outbox) -> None:
    async with run_publisher(outbox, sink_to(nats_server, "local")) as running:
        (sink_connection,) = running.publisher.sink_connections
        publisher = LivePublisher([sink_connection], node="node1", boot="boot1")
        await running.wait_for_state("up")
        for seq in range(2):
            await wait_until(lambda: sink_connection.client is not None)
            publisher.put(token(seq))
            while publisher._queues[0].queue._items:
                await publisher.flush()
                await asyncio.sleep(0)  # a flush without a connection never suspends
            (stored,) = await stored_messages(nats_server, LIVE_STREAM)
            assert msgspec.json.decode(stored.data, type=LiveBatch).items == [token(seq)]
            nats_server.restart()
            async with asyncio.timeout(WAIT_S):
                await sink_connection.wait_changed()  # the sink may be up again immediately


def _put_all(publisher: LivePublisher, n: int) -> None:
    for seq in range(n):
        publisher.put(token(seq))


async def test_a_paused_server_blocks_neither_the_sender_nor_another_sink(
    nats_server: NatsServer, bus: NatsAccount, outbox: Outbox
) -> None:
    async with (
        record_messages(bus) as recorded,
        run_live_publisher(outbox, bus, nats_server, capacity=100_000) as publisher,
    ):
        await wait_until(lambda: all(sink._sink_connection.client is not None for sink in publisher._queues))
        nats_server.pause()
        for seq in range(50):
            publisher.put(token(seq, "x" * 1000))
        await recorded.wait_for_items(50)
        nats_server.resume()
    assert recorded.seqs("token") == list(range(50))
