"""A broker without room: events wait, the cause is reported, and they arrive once there is room again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.node_events import episode_event_ids, wait_until
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

pytestmark = pytest.mark.long

SMALL_STORE_BYTES = 1 << 20
PAYLOAD = b'"%s"' % (b"x" * 20_000)
N_EVENTS = 120
N_STUCK = 400
"""More than the maximum number of sent events without an acknowledgement."""
LOGIN = {"user": "u", "password": "p"}


def server_limits(**limits: int) -> dict[str, Any]:
    return {"jetstream": limits, "authorization": LOGIN}


def account_limits(**limits: int) -> dict[str, Any]:
    return {"jetstream": {}, "accounts": {"A": {"users": [LOGIN], "jetstream": limits}}}


@pytest.mark.parametrize(
    ("small", "large", "storage", "cause"),
    [
        (server_limits(max_file_store=SMALL_STORE_BYTES), server_limits(), StorageType.FILE, "store is full"),
        (server_limits(max_memory_store=SMALL_STORE_BYTES), server_limits(), StorageType.MEMORY, "store is full"),
        (
            account_limits(max_file=SMALL_STORE_BYTES),
            account_limits(max_file=64 * SMALL_STORE_BYTES),
            StorageType.FILE,
            "resource limits exceeded",
        ),
    ],
    ids=["disk of the server", "memory of the server", "disk of the account"],
)
async def test_events_wait_until_a_full_store_has_room(
    tmp_path: Path, outbox: Outbox, small: Mapping[str, Any], large: dict[str, Any], storage: StorageType, cause: str
) -> None:
    with NatsServer(tmp_path / "server", config=small) as nats_server:
        await add_stream(nats_server, storage, **LOGIN)
        outbox.add(*(outbox_event(number, payload=PAYLOAD) for number in range(N_EVENTS)))
        async with run_publisher(outbox, sink_to(nats_server, **LOGIN)) as running:
            await running.wait_for_state("stalled", cause)
            counts = egress_counts(outbox)
            assert counts.dead == 0
            assert counts.pending > 0
            assert outbox.add(outbox_event(N_EVENTS)) == 1  # an episode can still add its event
            nats_server.kill()
            nats_server.config = large
            nats_server.start()
            if storage is StorageType.MEMORY:  # the stream's definition is in memory, too
                await add_stream(nats_server, storage, **LOGIN)
            await running.wait_until_drained()
            assert running.publisher.states[0].status == "up"
        assert egress_counts(outbox) == SinkCounts(acked=N_EVENTS + 1)
        delivered_ids = event_ids(await stored_messages(nats_server, "THEIRS", **LOGIN))
        assert sorted(delivered_ids) == sorted(f"event:{number}" for number in range(N_EVENTS + 1))


async def test_a_full_stream_delays_only_its_own_subjects(bus: NatsAccount, outbox: Outbox) -> None:
    async with nats_client(bus) as client:
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.episode.>"]))
        full = StreamConfig(name="REST", subjects=["agentgym.eval.>"], max_msgs=1, discard=DiscardPolicy.NEW)
        await js.add_stream(full)
        outbox.add(*(outbox_event(number, subjects.BATCH_COMPLETED) for number in range(N_STUCK)))
        outbox.add(*(outbox_event(number) for number in range(N_STUCK, N_STUCK + 10)))
        async with run_publisher(outbox, sink_to(bus)) as running:
            await running.wait_for_state("stalled", "the stream is full")
            await wait_until(lambda: egress_counts(outbox).acked == 11)
            outbox.add(outbox_event(-1))
            await wait_until(lambda: egress_counts(outbox).acked == 12)
            await js.update_stream(replace(full, max_msgs=-1))
            await running.wait_until_drained()
    assert egress_counts(outbox) == SinkCounts(acked=N_STUCK + 11)
    assert len(await stored_messages(bus, "REST")) == N_STUCK


def egress_counts(outbox: Outbox) -> SinkCounts:
    (counts,) = (counts for name, counts in outbox.counts().items() if name != LOCAL)
    return counts


async def add_stream(nats_server: NatsServer, storage: StorageType = StorageType.FILE, **login: str) -> None:
    async with nats_client(nats_server, **login) as client:
        config = StreamConfig(name="THEIRS", subjects=[*subjects.DURABLE], storage=storage)
        await client.jetstream().add_stream(config)


async def test_events_wait_until_the_full_disk_of_a_server_has_room(tmp_path: Path, outbox: Outbox) -> None:
    with mount_small_disk(tmp_path / "disk", 4) as disk:
        nats_server = NatsServer(tmp_path / "server", config={"jetstream": {"max_file_store": 1 << 30}})
        nats_server.store = disk.folder / "store"
        with nats_server:
            await add_stream(nats_server)
            disk.fill()
            outbox.add(*(outbox_event(number, payload=PAYLOAD) for number in range(N_EVENTS)))
            async with run_publisher(outbox, sink_to(nats_server), options=DeliveryOptions(ack_timeout_s=1)) as running:
                await running.wait_for_state("stalled")
                assert egress_counts(outbox).dead == 0
                disk.free_space()
                nats_server.restart()  # until then it stores nothing
                await running.wait_until_drained()
            assert sorted(event_ids(await stored_messages(nats_server, "THEIRS"))) == sorted(
                f"event:{number}" for number in range(N_EVENTS)
            )


async def test_a_full_egress_store_does_not_affect_a_batch(tmp_path: Path) -> None:
    data_dir, batch_id, repeat = tmp_path / "data", str(ULID()), 80
    config = {"jetstream": {"max_file_store": 24 << 10}}
    with NatsServer(tmp_path / "server", config=config) as nats_server:
        await add_stream(nats_server)
        with NodeProcess(data_dir, env=clean_environ(NATS_URL=nats_server.url)) as node:
            async with await node.connect() as connection:
                await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=repeat)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=repeat)
            with open_outbox(data_dir) as outbox:
                assert egress_counts(outbox).pending > 0
            log = data_dir / "logs" / "runner.log"
            await wait_until(lambda: log.exists() and "the broker's store is full" in log.read_text())
            nats_server.kill()
            nats_server.config = {}
            nats_server.start()
            with open_outbox(data_dir) as outbox:
                await wait_until(lambda: not any(count.pending for count in outbox.counts().values()))
            status, errors = await asyncio.to_thread(node.terminate)
        delivered_ids = event_ids(await stored_messages(nats_server, "THEIRS"))
    assert (status, "the broker's store is full" in errors) == (0, True), errors
    episode_ids = episode_event_ids(data_dir, batch_id)
    assert len(episode_ids) == repeat
    assert episode_ids | {f"batch:{batch_id}"} <= set(delivered_ids)
    assert len(delivered_ids) == len(set(delivered_ids))
