"""Outages during publishing: killed, paused, absent and emptied servers, and killed publishers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from runner.errors import StoreError
from runner.publish import publisher
from runner.publish.delivery import DeliveryResult, deliver
from runner.publish.outbox import Ack, Outbox, OutboxEvent, SinkCounts
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.publishing import (
    RUNNER_PASSWORD,
    egress_key,
    event_ids,
    outbox_event,
    run_publisher,
    runner_users,
    sink_to,
    stored_messages,
)

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
N_EVENTS, N_KILLS = (2000, 10) if os.environ.get("AGENTGYM_FAULTS") == "full" else (600, 3)
PAUSES_S = (2, 12, 60) if os.environ.get("AGENTGYM_FAULTS") == "full" else (2,)


async def test_killed_servers_neither_lose_nor_repeat_events(nats_server: NatsServer, outbox: Outbox) -> None:
    async with run_publisher(outbox, sink_to(nats_server, "local")) as running:
        adding = asyncio.create_task(asyncio.to_thread(_add_slowly, outbox, N_EVENTS))
        for number in range(1, N_KILLS + 1):
            await _wait_for_acks(outbox, N_EVENTS * number // (N_KILLS + 1))
            await asyncio.to_thread(nats_server.restart)
        await adding
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(nats_server))) == sorted(
        f"event:{number}" for number in range(N_EVENTS)
    )


async def test_events_whose_marks_wait_for_room_are_not_sent_again_over_a_new_connection(
    nats_server: NatsServer, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    is_full, failed = True, asyncio.Event()
    loop, ack = asyncio.get_running_loop(), outbox.ack

    async def record_delivery(client: Client, event: OutboxEvent, *args: Any) -> DeliveryResult:  # noqa: ANN401
        sent.append(event.id)
        return await deliver(client, event, *args)

    def ack_if_room(sink: str, acks: Iterable[Ack]) -> None:
        if is_full:
            loop.call_soon_threadsafe(failed.set)
            raise StoreError("the disk is full")
        ack(sink, acks)

    monkeypatch.setattr(publisher, "deliver", record_delivery)
    monkeypatch.setattr(outbox, "ack", ack_if_room)
    async with run_publisher(outbox, sink_to(nats_server, "local")) as running:
        outbox.add(outbox_event(1))
        await asyncio.wait_for(failed.wait(), 30)
        await asyncio.to_thread(nats_server.restart)
        is_full = False
        await running.wait_until_drained()
    assert sent == ["event:1"]


def _add_slowly(outbox: Outbox, n: int) -> None:
    for number in range(n):
        outbox.add(outbox_event(number))
        time.sleep(0.001)


async def _wait_for_acks(outbox: Outbox, n: int) -> None:
    async with asyncio.timeout(30):
        while outbox.counts()["local"].acked < n:  # noqa: ASYNC110 - another task or process sends
            await asyncio.sleep(0.005)


PUBLISHER = """
import asyncio, sys
from pathlib import Path
from runner.bus.connection import BusAddress
from runner.publish.outbox import Outbox
from runner.publish.publisher import Publisher, Sink
from runner.store import EpisodeStore, open_index

sink = Sink("local", lambda: BusAddress(sys.argv[2]), owned=True)
asyncio.run(Publisher(Outbox(open_index(EpisodeStore(Path(sys.argv[1])))), [sink]).run())
"""


async def test_killed_publishers_neither_lose_nor_repeat_events(bus: NatsAccount, outbox: Outbox) -> None:
    outbox.add(*map(outbox_event, range(6000)))
    for number in (1, 2):
        command = [sys.executable, "-c", PUBLISHER, str(outbox.data_dir), bus.url]
        publisher = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        await _wait_for_acks(outbox, 1500 * number)
        publisher.kill()
        await publisher.wait()
    assert outbox.n_pending(["local"])
    async with run_publisher(outbox, sink_to(bus, "local")) as running:
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(bus))) == sorted(f"event:{number}" for number in range(6000))


async def test_a_server_that_lost_its_store_gets_all_events_again(nats_server: NatsServer, outbox: Outbox) -> None:
    outbox.add(*map(outbox_event, range(5)))
    async with run_publisher(outbox, sink_to(nats_server, "local")) as running:
        await running.wait_until_drained()
        nats_server.kill()
        nats_server.empty_store()
        await running.wait_for_state("down")
        outbox.add(outbox_event(5))
        nats_server.start()
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(nats_server))) == [f"event:{number}" for number in range(6)]


async def test_events_wait_for_an_absent_server(nats_server: NatsServer, outbox: Outbox) -> None:
    nats_server.kill()
    outbox.add(outbox_event(0))
    async with run_publisher(outbox, sink_to(nats_server, "local")) as running:
        await running.wait_for_state("down", "cannot be reached")
        started = time.monotonic()
        outbox.add(outbox_event(1))
        assert await running.publisher.wait_until_drained(5)  # no sink is reachable
        assert time.monotonic() - started < 1
        nats_server.start()
        await running.wait_for_state("up")
        await running.wait_until_drained()
    assert event_ids(await stored_messages(nats_server)) == ["event:0", "event:1"]


@pytest.mark.parametrize("paused_s", PAUSES_S)
async def test_a_paused_server_receives_each_event_once(
    nats_server: NatsServer, outbox: Outbox, paused_s: float
) -> None:
    async with run_publisher(outbox, sink_to(nats_server, "local")) as running:
        outbox.add(outbox_event(0))
        await running.wait_until_drained()
        nats_server.pause()
        paused_at = time.monotonic()
        outbox.add(*map(outbox_event, range(1, 400)))
        assert time.monotonic() - paused_at < 1
        await running.wait_for_state("stalled", "does not answer")
        assert time.monotonic() - paused_at < 6
        await asyncio.sleep(max(0.0, paused_at + paused_s - time.monotonic()))
        nats_server.resume()
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(nats_server))) == sorted(f"event:{number}" for number in range(400))


async def test_events_wait_while_the_password_is_rejected(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config=runner_users(">", "another")) as server:
        outbox.add(outbox_event(0))
        started = time.monotonic()
        async with run_publisher(outbox, sink_to(server, user="runner", password=RUNNER_PASSWORD)) as running:
            state = await running.wait_for_state("down", "credentials")
            assert time.monotonic() - started < 4
            assert RUNNER_PASSWORD not in str(state)
            server.config = runner_users(">")
            await asyncio.to_thread(server.restart)
            await running.wait_for_state("up")
            await running.wait_until_drained()
            server.reload(runner_users(">", "rotated"))
            await running.wait_for_state("down")
            outbox.add(outbox_event(1))
            server.reload(runner_users(">"))
            async with asyncio.timeout(15):
                while outbox.counts()[egress_key(server)].pending:
                    await running.publisher.wait_until_drained(1)
        assert outbox.counts()[egress_key(server)] == SinkCounts(acked=2)


RECORDER = """
import os, sys
from pathlib import Path
from typing import Any
from runner.store import EpisodeStore, open_index
from tests.support.episodes import RecordedEpisode

store = EpisodeStore(Path(sys.argv[1]))
index = open_index(store)
for _ in range(3):
    print(RecordedEpisode(store, index).record_episode().episode_id, flush=True)
os.kill(os.getpid(), 9)
"""


async def test_a_process_killed_before_publishing_loses_no_episode(bus: NatsAccount, outbox: Outbox) -> None:
    command = [sys.executable, "-c", RECORDER, str(outbox.data_dir)]
    killed = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    episode_ids = killed.stdout.split()
    assert len(episode_ids) == 3, killed.stderr
    for _ in range(2):
        outbox.index.reconcile()
        async with run_publisher(outbox, sink_to(bus, "local")) as running:
            await running.wait_until_drained()
        assert sorted(event_ids(await stored_messages(bus))) == sorted(
            f"episode:{episode_id}" for episode_id in episode_ids
        )
