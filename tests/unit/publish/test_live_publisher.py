from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from runner.events.live import Heartbeat, LiveBatch, TokenText
from runner.events.subjects import LIVE_STREAM
from runner.publish.live_publisher import MAX_MESSAGE_BYTES, LivePublisher
from runner.publish.outbox import Outbox
from runner.types import EpisodeStarted, TimestepPlayed
from tests.support.episodes import episode_header, make_step
from tests.support.nats_server import NatsServer
from tests.support.publishing import NOW, nats_client, open_outbox, run_publisher, sink_to, stored_messages
from tests.support.schemas import validate

WAIT_S = 20.0
PREFIX = "agentgym.live."


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "server", jetstream=False) as server:
        yield server


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with open_outbox(tmp_path) as outbox:
        yield outbox


def token(seq: int, text: str = "word") -> TokenText:
    return TokenText(at=NOW, episode_id="01", seq=seq, step=0, text=text)


class Heard:
    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self._changed = asyncio.Event()

    async def hear(self, message: Msg) -> None:
        self.messages.append(message)
        self._changed.set()

    def batches(self, channel: str) -> list[LiveBatch]:
        subject = f"{PREFIX}{channel}.v1.node1"
        return [msgspec.json.decode(m.data, type=LiveBatch) for m in self.messages if m.subject == subject]

    def seqs(self, channel: str) -> list[int]:
        return [item.seq for batch in self.batches(channel) for item in batch.items if hasattr(item, "seq")]

    async def until(self, n_items: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while sum(len(msgspec.json.decode(message.data)["items"]) for message in self.messages) < n_items:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def live(outbox: Outbox, *servers: NatsServer, capacity: int = 1 << 20) -> AsyncIterator[LivePublisher]:
    sinks = [sink_to(server, f"sink{number}") for number, server in enumerate(servers)]
    async with run_publisher(outbox, *sinks) as running:
        await running.wait_for_state("up")
        publisher = LivePublisher(running.publisher.sink_connections, node="node1", boot="boot1", capacity=capacity)
        task = asyncio.create_task(publisher.run())
        yield publisher
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def listening(server: NatsServer) -> AsyncIterator[Heard]:
    heard = Heard()
    async with nats_client(server) as client:
        await client.subscribe(f"{PREFIX}>", cb=heard.hear)
        await client.flush()
        yield heard


async def test_items_travel_together_on_the_subject_of_their_kind(server: NatsServer, outbox: Outbox) -> None:
    episode = episode_header()
    started = EpisodeStarted(at=NOW, episode_id=episode.episode_id, seq=0, header=episode)
    played = TimestepPlayed(at=NOW, episode_id=episode.episode_id, seq=1, step=make_step(0), reset_observation=[])
    async with listening(server) as heard, live(outbox, server) as publisher:
        publisher(started)
        publisher(played)
        publisher.put(Heartbeat(at=NOW))
        for seq in range(2, 50):
            publisher.put(token(seq))
        await heard.until(51)
        await publisher.flush()
    assert [message.subject for message in heard.messages] == [
        f"{PREFIX}{channel}.v1.node1" for channel in ("episode", "timestep", "health", "token")
    ]
    assert heard.seqs("token") == list(range(2, 50))
    for message in heard.messages:
        validate(message.subject, message.data)
    (batch,) = heard.batches("timestep")
    assert (batch.node, batch.boot, batch.dropped) == ("node1", "boot1", 0)


async def test_a_message_stays_small(server: NatsServer, outbox: Outbox) -> None:
    async with listening(server) as heard, live(outbox, server, capacity=1 << 24) as publisher:
        for seq in range(300):
            publisher.put(token(seq, "x" * 10_000))
        publisher.put(token(300, "x" * MAX_MESSAGE_BYTES))
        publisher.put(token(301))
        await heard.until(301)
        assert publisher.dropped == [1]
    assert heard.seqs("token") == [*range(300), 301]
    assert all(len(message.data) <= MAX_MESSAGE_BYTES for message in heard.messages)
    assert 6 <= len(heard.messages) <= 10


async def test_the_oldest_are_left_out_and_counted_while_nobody_takes_them(server: NatsServer, outbox: Outbox) -> None:
    async with live(outbox, server, capacity=20_000) as publisher:
        server.kill()
        await _until(lambda: publisher._queues[0]._sink_connection.down.is_set())
        threads = [threading.Thread(target=_put_all, args=(publisher, 1000)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        (dropped,) = publisher.dropped
        left = len(publisher._queues[0].queue._items)
        assert dropped + left == 4000
        assert 0 < left < 400
        server.start()
        async with listening(server) as heard:
            publisher.put(token(1000))
            await _until(lambda: heard.seqs("token")[-1:] == [1000])
            assert heard.batches("token")[-1].dropped == publisher.dropped[0] >= dropped


async def test_what_is_told_as_soon_as_the_own_broker_is_back_is_kept_there(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "own") as server:
        async with run_publisher(outbox, sink_to(server, "local")) as running:
            (sink_connection,) = running.publisher.sink_connections
            publisher = LivePublisher([sink_connection], node="node1", boot="boot1")
            await running.wait_for_state("up")
            for seq in range(2):
                await _until(sink_connection.up.is_set)
                publisher.put(token(seq))
                while publisher._queues[0].queue._items:
                    await publisher.flush()
                    await asyncio.sleep(0)  # a flush without a connection never suspends
                (kept,) = await stored_messages(server, LIVE_STREAM)
                assert msgspec.json.decode(kept.data, type=LiveBatch).items == [token(seq)]
                server.restart()
                async with asyncio.timeout(WAIT_S):
                    await sink_connection.down.wait()  # an event, as it may be up again at once


def _put_all(publisher: LivePublisher, n: int) -> None:
    for seq in range(n):
        publisher.put(token(seq))


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_paused_server_holds_up_neither_the_sender_nor_another_sink(
    tmp_path: Path, server: NatsServer, outbox: Outbox
) -> None:
    with NatsServer(tmp_path / "other", jetstream=False) as other:
        async with listening(server) as heard, live(outbox, server, other, capacity=100_000) as publisher:
            await _until(lambda: all(sink._sink_connection.up.is_set() for sink in publisher._queues))
            other.pause()
            for seq in range(50):
                publisher.put(token(seq, "x" * 1000))
            await heard.until(50)
            other.resume()
    assert heard.seqs("token") == list(range(50))


async def test_what_cannot_be_told_is_counted_and_nothing_raises(server: NatsServer, outbox: Outbox) -> None:
    async with listening(server) as heard, live(outbox, server) as publisher:
        publisher.put(token(0, "\ud800"))
        publisher.put(token(1))
        await heard.until(1)
        assert publisher.dropped == [1]
    assert heard.seqs("token") == [1]
    assert heard.batches("token")[0].dropped == 1
