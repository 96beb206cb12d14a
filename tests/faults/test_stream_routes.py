"""Delivery to brokers whose JetStream is missing, does not answer, or is imitated by another client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.bus.streams import STREAM_NAMES_SUBJECT
from runner.events.subjects import EPISODE_COMPLETED
from runner.publish.delivery import DeliveryOptions
from runner.publish.outbox import LOCAL, Outbox, SinkCounts
from tests.support.nats_server import NatsServer
from tests.support.publishing import event_ids, nats_client, outbox_event, run_publisher, sink_to, stored_messages
from tests.support.subscriptions import add_stream

pytestmark = pytest.mark.long

WITHOUT_QUORUM = {
    "server_name": "alone",
    "cluster": {"name": "three", "listen": "127.0.0.1:-1", "routes": ["nats://127.0.0.1:1", "nats://127.0.0.1:2"]},
}
"""A server of a cluster whose other servers are missing: its JetStream answers nothing."""

SHORT_TIMEOUTS = DeliveryOptions(ack_timeout_s=1, lookup_timeout_s=0.2)


def egress_counts(outbox: Outbox) -> SinkCounts:
    (counts,) = (counts for sink, counts in outbox.counts().items() if sink != LOCAL)
    return counts


class ReceivedMessages:
    """Records the messages of a subject; ``wait_for`` waits for a number of them."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self._changed = asyncio.Event()

    async def append(self, message: Msg) -> None:
        self.messages.append(message)
        self._changed.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def receive(server: NatsServer, subject: str, **login: str) -> AsyncIterator[ReceivedMessages]:
    received = ReceivedMessages()
    async with nats_client(server, **login) as client:
        await client.subscribe(subject, cb=received.append)
        await client.flush()
        yield received


async def test_events_wait_for_a_jetstream_that_does_not_answer(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config=WITHOUT_QUORUM) as server:
        outbox.add(outbox_event(0))
        async with run_publisher(outbox, sink_to(server), options=SHORT_TIMEOUTS) as running:
            async with receive(server, STREAM_NAMES_SUBJECT) as lookups, receive(server, EPISODE_COMPLETED) as events:
                await running.wait_for_state("stalled", "JetStream does not answer")
                await lookups.wait_for(4)
                assert egress_counts(outbox) == SinkCounts(pending=1)
                assert events.messages == []
            server.kill()
            server.config = {}
            server.start()
            async with nats_client(server) as client:
                await add_stream(client, subjects=[EPISODE_COMPLETED])
            await running.wait_until_drained()
            await running.wait_for_state("up")
        assert event_ids(await stored_messages(server, "S")) == ["event:0"]
        assert egress_counts(outbox) == SinkCounts(acked=1)


async def test_an_account_without_jetstream_receives_events_without_a_stream(tmp_path: Path, outbox: Outbox) -> None:
    accounts = {
        "OURS": {"users": [{"user": "u", "password": "p"}]},
        "OTHERS": {"jetstream": "enabled", "users": [{"user": "o", "password": "p"}]},
    }
    login = {"user": "u", "password": "p"}
    with NatsServer(tmp_path / "server", config={"accounts": accounts}) as server:
        async with receive(server, EPISODE_COMPLETED, **login) as events:
            outbox.add(outbox_event(0))
            async with run_publisher(outbox, sink_to(server, **login)) as running:
                await running.wait_until_drained()
                assert "stalled" not in [state.status for state in running.states]
            await events.wait_for(1)
            assert event_ids(events.messages) == ["event:0"]
    assert egress_counts(outbox) == SinkCounts(acked=1)


@pytest.mark.parametrize("timeout_s", [DeliveryOptions().missing_jetstream_timeout_s, 0.0])
async def test_events_wait_for_the_missing_jetstream_of_a_known_stream(
    tmp_path: Path, outbox: Outbox, timeout_s: float
) -> None:
    options = DeliveryOptions(missing_jetstream_timeout_s=timeout_s)
    with NatsServer(tmp_path / "server") as server:
        async with nats_client(server) as client:
            await add_stream(client, subjects=[EPISODE_COMPLETED])
        outbox.add(outbox_event(0))
        async with run_publisher(outbox, sink_to(server), options=options) as running:
            await running.wait_until_drained()
        server.kill()
        outbox.add(outbox_event(1))
        with NatsServer(tmp_path / "without", jetstream=False, port=server.port):
            async with run_publisher(outbox, sink_to(server), options=options) as running:
                if timeout_s:
                    await running.wait_for_state("stalled", "its JetStream is missing")
                    assert egress_counts(outbox) == SinkCounts(pending=1, acked=1)
                else:
                    await running.wait_until_drained()
        server.start()
        async with run_publisher(outbox, sink_to(server), options=options) as running:
            await running.wait_until_drained()
        assert event_ids(await stored_messages(server, "S")) == (["event:0", "event:1"] if timeout_s else ["event:0"])


EMPTY_STATE = dict.fromkeys(("messages", "bytes", "first_seq", "last_seq", "consumer_count"), 0)
ANSWERS: dict[str, tuple[object, str]] = {
    "list": ([], "answer is invalid"),
    "number": ({"streams": [3]}, "answer is invalid"),
    "unknown stream": ({"streams": ["S"]}, "no stream keeps it"),
    "control characters": ({"streams": "\x1b[2J\u202e"}, "no stream keeps it"),
    "error number": ({"error": 1}, "answer is invalid"),
    "unavailable": (
        {"error": {"code": 503, "err_code": 10008, "description": "temporarily \x1b unavailable"}},
        "temporarily ␛",
    ),
    "a stream without a leader": (
        {"streams": ["S"], "config": {"name": "S"}, "state": EMPTY_STATE, "cluster": {"name": "C", "replicas": []}},
        "its stream S has no leader",
    ),
}


@pytest.mark.parametrize(("answer", "cause"), ANSWERS.values(), ids=ANSWERS)
async def test_false_answers_stall_the_sink_until_they_end(
    core_nats_server: NatsServer, outbox: Outbox, answer: object, cause: str
) -> None:
    outbox.add(outbox_event(0))
    async with nats_client(core_nats_server) as rude:
        await rude.subscribe("$JS.API.>", cb=_answer_with(rude, answer))
        await rude.flush()
        async with run_publisher(outbox, sink_to(core_nats_server), options=SHORT_TIMEOUTS) as running:
            state = await running.wait_for_state("stalled", cause)
            assert (state.cause or "").isprintable()
            assert egress_counts(outbox) == SinkCounts(pending=1)
            await rude.close()
            await running.wait_until_drained()
    assert egress_counts(outbox) == SinkCounts(acked=1)


async def test_the_acknowledgement_of_another_stream_is_none(nats_server: NatsServer, outbox: Outbox) -> None:
    outbox.add(outbox_event(0))
    async with nats_client(nats_server) as client, nats_client(nats_server) as rude:
        await add_stream(client, subjects=[EPISODE_COMPLETED], no_ack=True)
        await rude.subscribe(EPISODE_COMPLETED, cb=_answer_with(rude, {"stream": "\x1b[2JT", "seq": 1}))
        await rude.flush()
        async with run_publisher(outbox, sink_to(nats_server), options=SHORT_TIMEOUTS) as running:
            state = await running.wait_for_state("stalled", "has answered in place of S")
            assert (state.cause or "").isprintable()
            assert egress_counts(outbox) == SinkCounts(pending=1)


def _answer_with(client: Client, answer: object) -> Callable[[Msg], Awaitable[None]]:
    async def answer_request(message: Msg) -> None:
        await client.publish(message.reply, json.dumps(answer).encode())

    return answer_request
