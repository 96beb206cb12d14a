"""Brokers whose JetStream is not there for us, does not answer, or is somebody else in its place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.bus.streams import STREAM_NAMES_SUBJECT
from runner.events.subjects import EPISODE_COMPLETED
from runner.publish import delivery
from runner.publish import stream_routes as routes
from runner.publish.outbox import LOCAL, Outbox, SinkCounts
from tests.support.nats_server import NatsServer
from tests.support.publishing import (
    event_ids,
    nats_client,
    open_outbox,
    outbox_event,
    run_publisher,
    sink_to,
    stored_messages,
)
from tests.support.subscriptions import add_stream

WITHOUT_QUORUM = {
    "server_name": "alone",
    "cluster": {"name": "three", "listen": "127.0.0.1:-1", "routes": ["nats://127.0.0.1:1", "nats://127.0.0.1:2"]},
}
"""A server of a cluster whose others are away: it has JetStream, which answers nothing."""

QUESTIONS = 4


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with open_outbox(tmp_path) as outbox:
        yield outbox


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "ACK_TIMEOUT_S", 1)
    monkeypatch.setattr(routes, "LOOKUP_TIMEOUT_S", 0.2)


def counts(outbox: Outbox) -> SinkCounts:
    """Those of the one egress there is."""
    (found,) = (counts for place, counts in outbox.counts().items() if place != LOCAL)
    return found


class Heard:
    """What passes on some subjects; ``until`` waits for so many messages."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self._came = asyncio.Event()

    async def take(self, message: Msg) -> None:
        self.messages.append(message)
        self._came.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def hearing(server: NatsServer, subject: str, **login: str) -> AsyncIterator[Heard]:
    heard = Heard()
    async with nats_client(server, **login) as client:
        await client.subscribe(subject, cb=heard.take)
        await client.flush()
        yield heard


@pytest.mark.usefixtures("impatient")
async def test_events_wait_for_a_jetstream_that_does_not_answer(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config=WITHOUT_QUORUM) as server:
        outbox.add(outbox_event(0))
        async with run_publisher(outbox, sink_to(server)) as running:
            async with (
                hearing(server, STREAM_NAMES_SUBJECT) as questions,
                hearing(server, EPISODE_COMPLETED) as passed,
            ):
                await running.wait_for_state("stalled", "JetStream does not answer")
                await questions.until(QUESTIONS)
                assert counts(outbox) == SinkCounts(pending=1)
                assert passed.messages == []
            server.kill()
            server.config = {}
            server.start()
            async with nats_client(server) as client:
                await add_stream(client, subjects=[EPISODE_COMPLETED])
            await running.wait_until_drained()
            await running.wait_for_state("up")
        assert event_ids(await stored_messages(server, "S")) == ["event:0"]
        assert counts(outbox) == SinkCounts(acked=1)


async def test_an_account_without_jetstream_is_a_definite_answer(tmp_path: Path, outbox: Outbox) -> None:
    accounts = {
        "OURS": {"users": [{"user": "u", "password": "p"}]},
        "OTHERS": {"jetstream": "enabled", "users": [{"user": "o", "password": "p"}]},
    }
    login = {"user": "u", "password": "p"}
    with NatsServer(tmp_path / "server", config={"accounts": accounts}) as server:
        async with hearing(server, EPISODE_COMPLETED, **login) as passed:
            outbox.add(outbox_event(0))
            async with run_publisher(outbox, sink_to(server, **login)) as running:
                await running.wait_until_drained()
                assert "stalled" not in [state.status for state in running.states]
            await passed.until(1)
            assert event_ids(passed.messages) == ["event:0"]
    assert counts(outbox) == SinkCounts(acked=1)


@pytest.mark.usefixtures("impatient")
async def test_a_server_without_jetstream_gets_events_at_once(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", jetstream=False) as server:
        async with hearing(server, EPISODE_COMPLETED) as passed:
            outbox.add(outbox_event(0))
            async with run_publisher(outbox, sink_to(server)) as running:
                await running.wait_until_drained()
                assert "stalled" not in [state.status for state in running.states]
            await passed.until(1)
            assert event_ids(passed.messages) == ["event:0"]


@pytest.mark.parametrize("timeout_s", [routes.MISSING_JETSTREAM_TIMEOUT_S, 0.0])
async def test_a_jetstream_that_was_there_is_waited_for(
    tmp_path: Path, outbox: Outbox, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MISSING_JETSTREAM_TIMEOUT_S", timeout_s)
    with NatsServer(tmp_path / "server") as server:
        async with nats_client(server) as client:
            await add_stream(client, subjects=[EPISODE_COMPLETED])
        outbox.add(outbox_event(0))
        async with run_publisher(outbox, sink_to(server)) as running:
            await running.wait_until_drained()
        server.kill()
        outbox.add(outbox_event(1))
        with NatsServer(tmp_path / "without", jetstream=False, port=server.port):
            async with run_publisher(outbox, sink_to(server)) as running:
                if timeout_s:
                    await running.wait_for_state("stalled", "its JetStream is missing")
                    assert counts(outbox) == SinkCounts(pending=1, acked=1)
                else:
                    await running.wait_until_drained()
        server.start()
        async with run_publisher(outbox, sink_to(server)) as running:
            await running.wait_until_drained()
        assert event_ids(await stored_messages(server, "S")) == (["event:0", "event:1"] if timeout_s else ["event:0"])


ANSWERS: list[tuple[object, str]] = [
    ([], "answer is invalid"),
    ({"streams": [3]}, "answer is invalid"),
    ({"streams": ["S"]}, "no stream keeps it"),
    ({"streams": "\x1b[2J\u202e"}, "no stream keeps it"),
    ({"error": 1}, "answer is invalid"),
    ({"error": {"code": 503, "err_code": 10008, "description": "temporarily \x1b unavailable"}}, "temporarily ␛"),
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("answer", "cause"), ANSWERS)
async def test_no_answer_in_its_place_ends_anything(tmp_path: Path, outbox: Outbox, answer: object, cause: str) -> None:
    with NatsServer(tmp_path / "server", jetstream=False) as server:
        outbox.add(outbox_event(0))
        async with nats_client(server) as rude:
            await rude.subscribe("$JS.API.>", cb=_answering(rude, answer))
            await rude.flush()
            async with run_publisher(outbox, sink_to(server)) as running:
                state = await running.wait_for_state("stalled", cause)
                assert (state.cause or "").isprintable()
                assert counts(outbox) == SinkCounts(pending=1)
                await rude.close()
                await running.wait_until_drained()
    assert counts(outbox) == SinkCounts(acked=1)


def _answering(client: Client, answer: object) -> Callable[[Msg], Awaitable[None]]:
    async def take(message: Msg) -> None:
        await client.publish(message.reply, json.dumps(answer).encode())

    return take
