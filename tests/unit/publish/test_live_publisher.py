"""Live items of a node: batched, bounded, and tokens published while something receives them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from runner.batch.observers import Encoded, LiveItems, ObserverHub
from runner.batch.workspace import Workspace
from runner.bus.connection import BusAddress, NatsConnection
from runner.config import LiveTokens
from runner.episode.live_items import started_item, timestep_item, token_item
from runner.events.codec import LiveRow
from runner.events.live import Heartbeat, LiveBatch, TokenText
from runner.events.subjects import LIVE_STREAM, LIVE_SUBJECTS
from runner.publish import live_publisher
from runner.publish.live_publisher import MAX_MESSAGE_BYTES, LivePublisher
from runner.publish.outbox import LOCAL, Outbox
from runner.publish.publisher import Sink
from runner.subscribe.messages import BusMessage
from runner.subscribe.subscription import Subscription
from runner.types import StreamDelta, TimestepPlayed, TokensStreamed
from tests.conftest import Install
from tests.support.episodes import episode_header, make_step
from tests.support.nats_server import Bus, NatsAccount, NatsServer
from tests.support.node_events import wait_until
from tests.support.publishing import NOW, add_external_stream, nats_client, run_publisher, sink_to, stored_messages
from tests.support.schemas import validate
from tests.support.streaming_batch import AGENTS, ENVS, StreamingBatch

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


SUBJECT = "agentgym.live.token.v1.node1"
ITEMS: dict[Encoded, StreamDelta] = {"request": StreamDelta(endpoint="model"), "token": StreamDelta(text="a")}


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_publisher, "CHECK_INTERVAL_S", 0.2)


@asynccontextmanager
async def run_live(
    outbox: Outbox, *sinks: Sink, tokens: LiveTokens = "watched", capacity: int = 1 << 20
) -> AsyncIterator[LivePublisher]:
    async with run_publisher(outbox, *sinks) as running:
        if any(sink.read_address() for sink in sinks):
            await running.wait_for_state("up")
        live = LivePublisher(
            running.publisher.sink_connections, node="node1", boot="boot1", tokens=tokens, capacity=capacity
        )
        task = asyncio.create_task(live.run())
        try:
            yield live
        finally:
            task.cancel()
            await asyncio.wait([task])


def run_live_publisher(
    outbox: Outbox, *buses: Bus, capacity: int = 1 << 20
) -> AbstractAsyncContextManager[LivePublisher]:
    sinks = [sink_to(bus, f"sink{number}") for number, bus in enumerate(buses)]
    return run_live(outbox, *sinks, capacity=capacity)


def put_token(live: LivePublisher, seq: int = 0) -> None:
    live.put(TokenText(at=NOW, episode_id="01", seq=seq, step=0, text="word"))


async def wait_until_unwatched(live: LivePublisher) -> None:
    """Publish tokens until the broker has reported that nothing receives them."""

    def is_unwatched() -> bool:
        put_token(live)
        return not live.wants("token")

    await wait_until(is_unwatched)


async def test_tokens_are_wanted_while_a_broker_has_a_subscriber(bus: NatsAccount, outbox: Outbox) -> None:
    received: list[LiveBatch] = []

    async def record(message: object) -> None:
        received.append(msgspec.json.decode(getattr(message, "data", b""), type=LiveBatch))

    async with run_live(outbox, sink_to(bus)) as live, nats_client(bus) as viewer:
        assert live.wants("token")  # until the broker has reported otherwise
        await wait_until_unwatched(live)
        assert live.wants("timestep")
        subscription = await viewer.subscribe(SUBJECT, cb=record)
        await viewer.flush()
        await wait_until(lambda: live.wants("token"))
        put_token(live, 7)
        await wait_until(
            lambda: 7 in {item.seq for batch in received for item in batch.items if isinstance(item, TokenText)}
        )
        await subscription.unsubscribe()
        await viewer.flush()
        await wait_until_unwatched(live)


async def test_a_stream_of_another_broker_receives_tokens(bus: NatsAccount, outbox: Outbox) -> None:
    async with run_live(outbox, sink_to(bus)) as live:
        await wait_until_unwatched(live)
        await add_external_stream(bus)
        await wait_until(lambda: live.wants("token"))


async def test_texts_are_wanted_while_the_stream_of_the_own_broker_is_read_and_it_keeps_requests_from_before(
    nats_server: NatsServer, outbox: Outbox
) -> None:
    async with run_live(outbox, sink_to(nats_server, LOCAL)) as live:
        await wait_until(lambda: not live.wants("token"))
        assert live.wants("request")
        hub = ObserverHub([live.observer])
        for kind, delta in ITEMS.items():
            hub.emit(
                LiveItems(kind, (token_item(TokensStreamed(at=NOW, episode_id="01", seq=0, step=0, delta=delta)),))
            )
        connection = await NatsConnection.open(BusAddress(nats_server.url), name="viewer", on_state=lambda _: None)
        async with connection, Subscription(connection, patterns=[LIVE_SUBJECTS], since="all") as reader:
            message = await anext(reader)
            assert isinstance(message, BusMessage) and isinstance(message.decoded, LiveRow)
            items = message.decoded.batch.items
            assert [item.endpoint for item in items if isinstance(item, TokenText)] == ["model"]
            await wait_until(lambda: live.wants("token"))
        await wait_until(lambda: not live.wants("token"))


async def test_the_readers_of_the_own_stream_are_counted_only_while_there_may_be_tokens(
    nats_server: NatsServer, outbox: Outbox
) -> None:
    requests: list[str] = []

    async def record(message: Msg) -> None:
        requests.append(message.subject)

    subject = f"$JS.API.STREAM.INFO.{LIVE_STREAM}"
    async with run_live(outbox, sink_to(nats_server, LOCAL)) as live, nats_client(nats_server) as viewer:
        await viewer.subscribe(subject, cb=record)
        await viewer.flush()
        watch = live._queues[0].tokens
        for n_seconds in range(4):
            if n_seconds == 2:
                requests.clear()  # the first one has looked up the stream
            watch.is_watched = False
            await wait_until(lambda: watch.is_watched)  # as before the first check
        assert requests == []
        assert live.wants("token")
        await wait_until(lambda: subject in requests and not watch.is_watched)


async def test_without_a_connection_no_tokens_are_wanted(nats_server: NatsServer, outbox: Outbox) -> None:
    async with run_live(outbox, sink_to(nats_server)) as live:
        nats_server.kill()
        await wait_until(lambda: not live.wants("token"))
        assert live.wants("timestep")


async def test_without_any_broker_no_items_are_wanted(outbox: Outbox) -> None:
    async with run_live(outbox, Sink("egress", lambda: None)) as live:
        await wait_until(lambda: not live.wants("timestep"))
        assert not live.wants("token")


@pytest.mark.parametrize(("tokens", "wanted"), [("always", True), ("never", False)])
async def test_a_profile_can_switch_tokens_on_and_off(
    bus: NatsAccount, outbox: Outbox, tokens: LiveTokens, wanted: bool
) -> None:
    async with run_live(outbox, sink_to(bus), tokens=tokens) as live:
        assert live.wants("token") is wanted  # asked, it finds out whether they are watched
        await wait_until(lambda: not live._queues[0].tokens.is_watched)
        assert live.wants("token") is live.wants("request") is wanted


async def test_workers_send_tokens_while_a_subscriber_watches(
    bus: Bus, outbox: Outbox, tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(envs=ENVS, agents=AGENTS, name="streaming")
    received: list[bytes] = []

    async def record(message: object) -> None:
        received.append(getattr(message, "data", b""))

    async with run_live(outbox, sink_to(bus)) as live, nats_client(bus) as viewer:
        await wait_until_unwatched(live)
        workspace = Workspace(tmp_path / "data", node="node1", profile="p1")
        batch = StreamingBatch(workspace, 2, monkeypatch, [live.observer])
        with batch.running():
            await asyncio.to_thread(batch.wait_for_latest, 6, wanted="timestep")
            assert "token" not in batch.emitted
            subscription = await viewer.subscribe(SUBJECT, cb=record)
            await asyncio.to_thread(batch.wait_for_latest, 6, wanted="token")
            await wait_until(lambda: any(b'"text":"word"' in data for data in received))
            await subscription.unsubscribe()
            await asyncio.to_thread(batch.wait_for_latest, 6, wanted="timestep", absent="token")
        workspace.close()
