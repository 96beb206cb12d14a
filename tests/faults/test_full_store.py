"""A broker without room: events wait, that is said, and they arrive once there is room again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from ulid import ULID

from runner.events import subjects
from runner.publish.delivery import DeliveryOptions
from runner.publish.outbox import LOCAL, Outbox, SinkCounts
from tests.support.full_disk import mount_small_disk
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import (
    event_ids,
    nats_client,
    open_outbox,
    outbox_event,
    run_publisher,
    sink_to,
    stored_messages,
)

ROOM = 1 << 20
PAYLOAD = b'"%s"' % (b"x" * 20_000)
N_EVENTS = 120
N_STUCK = 400
"""More than are sent and not yet acknowledged at any time."""
LOGIN = {"user": "u", "password": "p"}


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with open_outbox(tmp_path) as outbox:
        yield outbox


def _of_server(**limits: int) -> dict[str, Any]:
    return {"jetstream": limits, "authorization": LOGIN}


def _of_account(**limits: int) -> dict[str, Any]:
    return {"jetstream": {}, "accounts": {"A": {"users": [LOGIN], "jetstream": limits}}}


@pytest.mark.parametrize(
    ("small", "large", "storage", "said"),
    [
        (_of_server(max_file_store=ROOM), _of_server(), StorageType.FILE, "store is full"),
        (_of_server(max_memory_store=ROOM), _of_server(), StorageType.MEMORY, "store is full"),
        (_of_account(max_file=ROOM), _of_account(max_file=64 * ROOM), StorageType.FILE, "resource limits exceeded"),
    ],
    ids=["disk of the server", "memory of the server", "disk of the account"],
)
async def test_a_full_store_is_waited_out(
    tmp_path: Path, outbox: Outbox, small: Mapping[str, Any], large: dict[str, Any], storage: StorageType, said: str
) -> None:
    with NatsServer(tmp_path / "server", config=small) as server:
        await _stream(server, storage, **LOGIN)
        outbox.add(*(outbox_event(number, payload=PAYLOAD) for number in range(N_EVENTS)))
        async with run_publisher(outbox, sink_to(server, **LOGIN)) as running:
            await running.wait_for_state("stalled", said)
            counts = _elsewhere(outbox)
            assert counts.dead == 0
            assert counts.pending > 0
            assert outbox.add(outbox_event(N_EVENTS)) == 1  # whoever plays goes on
            server.kill()
            server.config = large
            server.start()
            if storage is StorageType.MEMORY:  # the stream's definition is in memory, too
                await _stream(server, storage, **LOGIN)
            await running.wait_until_drained()
            assert running.publisher.states[0].status == "up"
        assert _elsewhere(outbox) == SinkCounts(acked=N_EVENTS + 1)
        arrived = event_ids(await stored_messages(server, "THEIRS", **LOGIN))
        assert sorted(arrived) == sorted(f"event:{number}" for number in range(N_EVENTS + 1))


async def test_a_full_stream_delays_its_own_subjects_alone(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server") as server:
        async with nats_client(server) as client:
            js = client.jetstream()
            await js.add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.episode.>"]))
            full = StreamConfig(name="REST", subjects=["agentgym.eval.>"], max_msgs=1, discard=DiscardPolicy.NEW)
            await js.add_stream(full)
            outbox.add(*(outbox_event(number, subjects.BATCH_COMPLETED) for number in range(N_STUCK)))
            outbox.add(*(outbox_event(number) for number in range(N_STUCK, N_STUCK + 10)))
            async with run_publisher(outbox, sink_to(server)) as running:
                await running.wait_for_state("stalled", "the stream is full")
                await _arrived(outbox, 11)
                outbox.add(outbox_event(-1))
                await _arrived(outbox, 12)
                await js.update_stream(replace(full, max_msgs=-1))
                await running.wait_until_drained()
        assert _elsewhere(outbox) == SinkCounts(acked=N_STUCK + 11)
        assert len(await stored_messages(server, "REST")) == N_STUCK


async def _arrived(outbox: Outbox, count: int) -> None:
    async with asyncio.timeout(30):
        while _elsewhere(outbox).acked != count:  # noqa: ASYNC110 - by another task
            await asyncio.sleep(0.02)


def _elsewhere(outbox: Outbox) -> SinkCounts:
    """The counts of the sink that is not the own broker, whatever it is called."""
    (counts,) = (counts for name, counts in outbox.counts().items() if name != LOCAL)
    return counts


async def _stream(server: NatsServer, storage: StorageType = StorageType.FILE, **login: str) -> None:
    async with nats_client(server, **login) as client:
        config = StreamConfig(name="THEIRS", subjects=[*subjects.DURABLE], storage=storage)
        await client.jetstream().add_stream(config)


async def test_a_disk_that_is_full_under_a_server_is_waited_out(tmp_path: Path, outbox: Outbox) -> None:
    with mount_small_disk(tmp_path / "disk", 4) as disk:
        server = NatsServer(tmp_path / "server", config={"jetstream": {"max_file_store": 1 << 30}})
        server.store = disk.folder / "store"
        with server:
            await _stream(server)
            disk.fill()
            outbox.add(*(outbox_event(number, payload=PAYLOAD) for number in range(N_EVENTS)))
            async with run_publisher(outbox, sink_to(server), options=DeliveryOptions(ack_timeout_s=1)) as running:
                await running.wait_for_state("stalled")
                assert _elsewhere(outbox).dead == 0
                disk.free_space()
                server.restart()  # until then it takes nothing more
                await running.wait_until_drained()
            assert sorted(event_ids(await stored_messages(server, "THEIRS"))) == sorted(
                f"event:{number}" for number in range(N_EVENTS)
            )


@pytest.mark.long
async def test_a_full_store_elsewhere_does_not_touch_what_is_played(tmp_path: Path) -> None:
    data_dir, batch_id, repeat = tmp_path / "data", str(ULID()), 80
    config = {"jetstream": {"max_file_store": 24 << 10}}
    with NatsServer(tmp_path / "server", config=config) as server:
        await _stream(server)
        with NodeProcess(data_dir, env=clean_environ(NATS_URL=server.url)) as node:
            async with await node.connect() as connection:
                await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=repeat)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=repeat)
            with open_outbox(data_dir) as outbox:
                assert _elsewhere(outbox).pending > 0
            await _until_logged(data_dir, "the broker's store is full")
            server.kill()
            server.config = {}
            server.start()
            await _until_empty(data_dir)
            status, said = await asyncio.to_thread(node.terminate)
        arrived = event_ids(await stored_messages(server, "THEIRS"))
    assert (status, "the broker's store is full" in said) == (0, True), said
    played = {f"episode:{path.stem}" for path in (data_dir / "runs" / batch_id).glob("*.json")}
    assert len(played) == repeat
    assert played | {f"batch:{batch_id}"} <= set(arrived)
    assert len(arrived) == len(set(arrived))


async def _until_logged(data_dir: Path, text: str) -> None:
    log = data_dir / "logs" / "runner.log"
    async with asyncio.timeout(30):
        while not (log.exists() and text in log.read_text()):  # noqa: ASYNC110 - it is written by another process
            await asyncio.sleep(0.02)


async def _until_empty(data_dir: Path) -> None:
    with open_outbox(data_dir) as outbox:
        async with asyncio.timeout(30):
            while any(count.pending for count in outbox.counts().values()):  # noqa: ASYNC110 - it is emptied by another process
                await asyncio.sleep(0.02)
