"""Tokens are published while something receives them: subscribers or a stream of a broker, readers of the own one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from runner.batch.observers import Encoded, LiveItems, ObserverHub
from runner.batch.workspace import Workspace
from runner.bus.connection import BusAddress, NatsConnection
from runner.config import LiveTokens
from runner.episode.live_items import token_item
from runner.events.codec import LiveRow
from runner.events.live import LiveBatch, TokenText
from runner.events.subjects import LIVE_STREAM, LIVE_SUBJECTS
from runner.publish import live_publisher
from runner.publish.live_publisher import LivePublisher
from runner.publish.outbox import LOCAL, Outbox
from runner.publish.publisher import Sink
from runner.subscribe.messages import BusMessage
from runner.subscribe.subscription import Subscription
from runner.types import StreamDelta, TokensStreamed
from tests.conftest import Install
from tests.support.nats_server import Bus, NatsAccount, NatsServer
from tests.support.node_events import wait_until
from tests.support.publishing import NOW, add_external_stream, nats_client, run_publisher, sink_to
from tests.support.streaming_batch import AGENTS, ENVS, StreamingBatch

SUBJECT = "agentgym.live.token.v1.node1"
ITEMS: dict[Encoded, StreamDelta] = {"request": StreamDelta(endpoint="model"), "token": StreamDelta(text="a")}


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_publisher, "CHECK_INTERVAL_S", 0.2)


@asynccontextmanager
async def run_live(outbox: Outbox, *sinks: Sink, tokens: LiveTokens = "watched") -> AsyncIterator[LivePublisher]:
    async with run_publisher(outbox, *sinks) as running:
        if any(sink.read_address() for sink in sinks):
            await running.wait_for_state("up")
        live = LivePublisher(running.publisher.sink_connections, node="node1", boot="boot1", tokens=tokens)
        task = asyncio.create_task(live.run())
        try:
            yield live
        finally:
            task.cancel()
            await asyncio.wait([task])


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
