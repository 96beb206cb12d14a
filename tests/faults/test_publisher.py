"""Delivery by a publisher: order, headers, streams, dead letters and permissions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from runner.errors import StoreError
from runner.events import subjects
from runner.publish.delivery import DeliveryOptions, StreamRoutes
from runner.publish.outbox import Ack, Outbox, SinkCounts
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.publishing import (
    RUNNER_PASSWORD,
    add_external_stream,
    egress_key,
    event_ids,
    nats_client,
    open_outbox,
    outbox_event,
    run_publisher,
    runner_users,
    sink_to,
    stored_messages,
)
from tests.support.subscriptions import collect_messages

pytestmark = pytest.mark.long

SHORT_TIMEOUTS = DeliveryOptions(ack_timeout_s=1, unknown_route_timeout_s=0.5, lookup_timeout_s=0.5)


def _ids_of_all_kinds() -> list[str]:
    return [f"event:{number}" for number in range(len(subjects.DURABLE))]


async def test_events_arrive_in_order_with_their_headers(bus: NatsAccount, outbox: Outbox) -> None:
    outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
    async with run_publisher(outbox, sink_to(bus, "local")) as running:
        await running.wait_until_drained()
        outbox.add(*map(outbox_event, range(len(subjects.DURABLE), 1000)))
        await running.wait_until_drained()
    messages = await stored_messages(bus)
    assert event_ids(messages) == [f"event:{number}" for number in range(1000)]
    assert [message.subject for message in messages[: len(subjects.DURABLE)]] == list(subjects.DURABLE)
    assert messages[1].data == b'{"number": 1}'
    assert messages[1].headers == {
        "ce-specversion": "1.0",
        "ce-type": subjects.BATCH_COMPLETED,
        "ce-id": "event:1",
        "ce-source": "node1",
        "ce-time": "2026-03-04T05:06:07+00:00",
        "content-type": "application/json",
        "Nats-Msg-Id": "event:1",
    }
    assert outbox.counts() == {"local": SinkCounts(acked=1000)}


async def test_no_event_waits_for_the_next_poll(bus: NatsAccount, outbox: Outbox) -> None:
    options = DeliveryOptions(poll_s=600, batch_size=10, max_in_flight=10)
    async with run_publisher(outbox, sink_to(bus, "local"), options=options) as running:
        await running.wait_for_state("up")
        for first in range(0, 100, 20):
            outbox.add(*map(outbox_event, range(first, first + 19)))
            outbox.add(outbox_event(first + 19))
            await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(bus))) == sorted(f"event:{number}" for number in range(100))


async def test_an_idle_publisher_reads_the_outbox_only_after_another_process_has_written(
    bus: NatsAccount, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> object:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(outbox, "pending", recorded("read", outbox.pending))
    monkeypatch.setattr(outbox, "file_state", recorded("check", outbox.file_state))
    options = DeliveryOptions(poll_s=0.01)
    async with run_publisher(outbox, sink_to(bus, "local"), options=options) as running, asyncio.timeout(60):
        outbox.add(outbox_event(0))
        await running.wait_until_drained()
        while calls[-20:] != ["check"] * 20:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
        with open_outbox(outbox.data_dir) as other:
            other.add(outbox_event(1))
            await running.wait_until_drained()
    assert event_ids(await stored_messages(bus)) == ["event:0", "event:1"]


async def test_a_publisher_ends_although_the_client_swallows_the_cancellation(
    bus: NatsAccount, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup_started = asyncio.Event()

    async def swallow(*args: object) -> None:
        lookup_started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(StreamRoutes, "learn", swallow)
    async with run_publisher(outbox, sink_to(bus, "local")), asyncio.timeout(20):
        await lookup_started.wait()


async def test_an_event_is_not_sent_again_while_its_mark_cannot_be_written(
    bus: NatsAccount, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    ack, failures = outbox.ack, [StoreError("the index is locked")] * 2

    def fail_twice(sink: str, acks: Iterable[Ack]) -> None:
        if failures:
            raise failures.pop()
        ack(sink, acks)

    monkeypatch.setattr(outbox, "ack", fail_twice)
    async with nats_client(bus) as client:
        subscription = await client.subscribe("agentgym.>")  # no stream drops a repeated event here
        await client.flush()
        outbox.add(*map(outbox_event, range(3)))
        async with run_publisher(outbox, sink_to(bus)) as running:
            await running.wait_for_state("stalled", "locked")
            await running.wait_until_drained()
        outbox.add(outbox_event(3))
        async with run_publisher(outbox, sink_to(bus)) as running:
            await running.wait_until_drained()
        received = [await subscription.next_msg(timeout=5) for _ in range(4)]
        assert event_ids(received) == [f"event:{number}" for number in range(4)]
        assert subscription.pending_msgs == 0


async def test_an_external_stream_is_used_and_no_other_is_created(bus: NatsAccount, outbox: Outbox) -> None:
    await add_external_stream(bus)
    outbox.add(*map(outbox_event, range(5)))
    async with run_publisher(outbox, sink_to(bus)) as running:
        await running.wait_until_drained()
    assert event_ids(await stored_messages(bus, "THEIRS")) == [f"event:{number}" for number in range(5)]
    async with nats_client(bus) as client:
        assert [info.config.name for info in await client.jetstream().streams_info()] == ["THEIRS"]


async def test_events_wait_until_a_full_stream_has_room(bus: NatsAccount, outbox: Outbox) -> None:
    await add_external_stream(bus, max_msgs=5, discard=DiscardPolicy.NEW)
    outbox.add(*map(outbox_event, range(20)))
    async with run_publisher(outbox, sink_to(bus)) as running:
        await running.wait_for_state("stalled", "full")
        assert outbox.counts()[egress_key(bus)] == SinkCounts(pending=15, acked=5)
        async with nats_client(bus) as client:
            await client.jetstream().update_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"], max_msgs=100))
        await running.wait_until_drained()
        assert running.publisher.states[0].status == "up"
    assert sorted(event_ids(await stored_messages(bus, "THEIRS"))) == sorted(f"event:{number}" for number in range(20))


async def test_too_large_events_become_dead_letters_and_the_others_arrive(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config={"max_payload": 4096}) as server:
        await add_external_stream(server, max_msg_size=2048)
        too_large = outbox_event(1, payload=b"x" * 5000)
        too_large_with_headers = outbox_event(2, payload=b"x" * 4000)
        too_large_for_the_stream = outbox_event(3, payload=b"x" * 2500)
        outbox.add(outbox_event(0), too_large, too_large_with_headers, too_large_for_the_stream, outbox_event(4))
        async with run_publisher(outbox, sink_to(server)) as running:
            await running.wait_until_drained()
            outbox.add(outbox_event(5))
            await running.wait_until_drained()
            assert [state.status for state in running.states if state.status != "connecting"] == ["up"]
        assert event_ids(await stored_messages(server, "THEIRS")) == ["event:0", "event:4", "event:5"]
    letters = [letter for letter in outbox.dead_letters() if letter.sink == egress_key(server)]
    assert [letter.id for letter in letters] == ["event:1", "event:2", "event:3"]
    assert "the broker's limit is 4096" in letters[0].reason
    assert "the broker's limit is 4096" in letters[1].reason
    assert "size exceeds maximum" in letters[2].reason


@pytest.mark.parametrize("jetstream", [True, False])
async def test_events_of_a_denied_subject_become_dead_letters(jetstream: bool, tmp_path: Path, outbox: Outbox) -> None:
    denied, allowed = subjects.EPISODE_COMPLETED, subjects.BATCH_COMPLETED
    config = runner_users({"allow": [">"], "deny": [denied]})
    with NatsServer(tmp_path / "server", jetstream=jetstream, config=config) as server:
        if jetstream:
            async with nats_client(server, user="admin", password="admin") as client:
                await client.jetstream().add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"]))
        outbox.add(outbox_event(0, denied), outbox_event(1, allowed), outbox_event(2, denied))
        async with run_publisher(
            outbox, sink_to(server, user="runner", password=RUNNER_PASSWORD), options=SHORT_TIMEOUTS
        ) as running:
            await running.wait_until_drained()
            letters = [letter for letter in outbox.dead_letters() if letter.sink == egress_key(server)]
            assert [letter.id for letter in letters] == ["event:0", "event:2"]
            assert all(f"not allowed to publish to {denied}" in letter.reason for letter in letters)
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=1, dead=2)
            server.config = runner_users({"allow": [">"]})
            running.states.clear()
            await asyncio.to_thread(server.restart)
            await running.wait_for_state("up")
            outbox.add(outbox_event(3, denied))
            await running.wait_until_drained()
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=4)
    assert RUNNER_PASSWORD not in repr(running.states)


async def test_a_broker_that_refuses_every_event_gets_each_again_at_the_next_connection(
    tmp_path: Path, outbox: Outbox
) -> None:
    with NatsServer(tmp_path / "server", config={"max_payload": 1024}) as server:
        outbox.add(outbox_event(0, payload=b"x" * 2000), outbox_event(1, payload=b"x" * 3000))
        async with run_publisher(outbox, sink_to(server)) as running:
            await running.wait_for_state("stalled", "it refuses events:")
            assert outbox.counts()[egress_key(server)] == SinkCounts(dead=2)
            server.config = {"max_payload": 2500}
            running.states.clear()
            await asyncio.to_thread(server.restart)
            await running.wait_for_state("up")
            outbox.add(outbox_event(2))
            await running.wait_until_drained()
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=2, dead=1)
        (letter,) = outbox.dead_letters()
        async with run_publisher(outbox, sink_to(server)) as running:
            outbox.add(outbox_event(3))
            await running.wait_until_drained()
        assert outbox.dead_letters() == [letter]
    assert letter.id == "event:1" and "the broker's limit is 2500" in letter.reason


@pytest.mark.parametrize("jetstream", [True, False])
async def test_events_arrive_without_permission_to_look_up_streams(
    jetstream: bool, tmp_path: Path, outbox: Outbox
) -> None:
    config = runner_users({"allow": ["agentgym.>"]})
    with NatsServer(tmp_path / "server", jetstream=jetstream, config=config) as server:
        async with nats_client(server, user="admin", password="admin") as client:
            if jetstream:
                await client.jetstream().add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"]))
            received = await collect_messages(client)
            outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
            async with run_publisher(
                outbox, sink_to(server, user="runner", password=RUNNER_PASSWORD), options=SHORT_TIMEOUTS
            ) as running:
                await running.wait_until_drained()
            await client.flush()
            assert event_ids(received) == _ids_of_all_kinds()
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=len(subjects.DURABLE))
        if jetstream:
            assert (
                event_ids(await stored_messages(server, "THEIRS", user="admin", password="admin"))
                == _ids_of_all_kinds()
            )


async def test_a_core_subscriber_receives_all_three_subjects_and_is_not_mistaken_for_jetstream(
    core_nats_server: NatsServer, outbox: Outbox
) -> None:
    async with nats_client(core_nats_server) as client:
        received = await collect_messages(client, ">")
        outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
        async with run_publisher(outbox, sink_to(core_nats_server)) as running:
            await running.wait_until_drained()
            assert "stalled" not in [state.status for state in running.states]
        await client.flush()
    events = [message for message in received if message.subject in subjects.DURABLE]
    assert event_ids(events) == _ids_of_all_kinds()
    assert [message.subject for message in events] == list(subjects.DURABLE)


async def test_an_event_sent_again_is_stored_once_per_duplicate_window(bus: NatsAccount, outbox: Outbox) -> None:
    await add_external_stream(bus, duplicate_window=2)
    for attempt in range(3):
        if attempt == 2:
            await asyncio.sleep(2.5)  # until the duplicate window of the stream has passed
        (folder := outbox.data_dir / f"copy-{attempt}").mkdir()
        with open_outbox(folder) as copy:
            copy.add(outbox_event(0))
            async with run_publisher(copy, sink_to(bus)) as running:
                await running.wait_until_drained()
        assert event_ids(await stored_messages(bus, "THEIRS")) == ["event:0"] * (1 if attempt < 2 else 2)


async def test_the_outbox_contains_no_password(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config=runner_users({"allow": ["agentgym.eval.>", "$JS.API.>"]})) as server:
        outbox.add(outbox_event(0))
        async with run_publisher(outbox, sink_to(server, user="runner", password=RUNNER_PASSWORD)) as running:
            await running.wait_until_drained()
    assert outbox.counts()[egress_key(server)].dead == 1
    assert all(RUNNER_PASSWORD not in sink for sink in outbox.counts())
    files = await asyncio.to_thread(lambda: [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()])
    assert len(files) >= 4  # the index with its log and their lock, and the lock of the sink
    assert not any(RUNNER_PASSWORD.encode() in content for content in files)
