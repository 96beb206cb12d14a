"""A node whose disk is full: it keeps running and reports it; after the disk has room again, no event is missing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from ulid import ULID

from runner.batch.workspace import Workspace
from runner.bus.broker import broker as node_broker
from runner.bus.broker.broker import Broker
from runner.bus.connection import BusError, NatsConnection
from runner.errors import StoreError
from runner.events.subjects import DurableNames, live_subject
from runner.node import storage
from runner.publish.delivery import DeliveryOptions
from runner.publish.outbox import EventRecorder, Outbox
from runner.publish.publisher import Sink
from runner.store import open_index
from tests.support.command import run_agentgym
from tests.support.episodes import RecordedEpisode
from tests.support.full_disk import Disk, FileSizeLimit, mount_small_disk
from tests.support.node_events import episode_event_ids, stored_episodes, subscribe_to_node
from tests.support.node_process import NodeProcess
from tests.support.publishing import outbox_event, run_publisher
from tests.support.subscriptions import SubscriptionRecorder

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
REPEAT = 300
REPORT_S = 5.0
"""Seconds within which the node must report that nothing can be stored."""
OpenNode: TypeAlias = Callable[[Path], AbstractContextManager[tuple[NodeProcess, Disk]]]


@contextmanager
def node_on_small_disk(tmp_path: Path) -> Iterator[tuple[NodeProcess, Disk]]:
    with mount_small_disk(tmp_path / "disk", 24) as disk, NodeProcess(disk.folder / "data") as node:
        yield node, disk


@contextmanager
def node_with_file_size_limit(tmp_path: Path) -> Iterator[tuple[NodeProcess, Disk]]:
    with NodeProcess(tmp_path / "data") as node:
        yield node, FileSizeLimit(node.pid)


async def refuse_start(node: NodeProcess, connection: NatsConnection) -> dict[str, str]:
    """Return the error of the first start for which the record of the batches has no room: a few lines still fit."""
    start = {"envs": ["Maze"], "agent": "oracle"}
    async with asyncio.timeout(20):
        while (reply := await node.request_reply(connection, "start", batch_id=str(ULID()), **start))["ok"]:
            pass
    error: dict[str, str] = reply["error"]
    return error


@pytest.mark.parametrize("open_node", [node_on_small_disk, node_with_file_size_limit] if FULL else [node_on_small_disk])
async def test_a_node_survives_a_full_disk_and_loses_no_episode(tmp_path: Path, open_node: OpenNode) -> None:
    with open_node(tmp_path) as (node, disk):
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "BabyAI", repeat=REPEAT)
            await node.wait_for_batch(connection, batch_id, "running", n_done=5)
            disk.fill()
            listed = await wait_until_storage_is_full(node, connection, batch_id)
            assert "1 batch waits and continues by itself" in listed["storage"]
            heartbeat = await asyncio.wait_for(anext(storage_problems(connection)), REPORT_S)
            assert heartbeat == listed["storage"]
            error = await refuse_start(node, connection)
            assert "check for a full disk" in error["message"]
            # at least one disk check of the broker, and a second one of the node, which does not end the wait
            await asyncio.sleep(1.5 * max(node_broker.DISK_POLL_S, storage.POLL_S))
            await wait_until_storage_is_full(node, connection, batch_id)
            n_before = len(stored_episodes(node.data_dir, batch_id))
            assert 5 <= n_before < REPEAT
            disk.free_space()
        await play_two_episodes(node, second_batch_id := str(ULID()))
        async with await node.connect() as connection:
            batch = await node.wait_for_batch(connection, batch_id, "completed", n_done=REPEAT)
            assert (batch["waiting_for"], (await node.request(connection, "list"))["storage"]) == (None, None)
        stored = stored_episodes(node.data_dir, batch_id)
        records = [json.loads(path.read_bytes()) for path in stored]
        assert all(record["error"] is None for record in records)
        finished = [record["task_index"] for record in records if record["outcome"] != "interrupted"]
        assert sorted(finished) == list(range(REPEAT))
        expected = {f"episode:{path.stem}" for path in stored} | {f"batch:{second_batch_id}"}
        expected |= episode_event_ids(node.data_dir, second_batch_id)
        async with subscribe_to_node(node) as recorder:
            await recorder.wait_until(lambda: expected <= count_all_event_ids(recorder).keys(), 30)
            assert set(count_all_event_ids(recorder).values()) == {1}
        status, errors = await asyncio.to_thread(node.terminate)
    assert status == 0, errors
    assert "could not be stored; no further episodes start" in errors
    assert "Traceback" not in errors


async def test_a_batch_that_waits_for_room_can_be_cancelled(tmp_path: Path) -> None:
    with node_with_file_size_limit(tmp_path) as (node, disk):
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "BabyAI", repeat=REPEAT)
            await node.wait_for_batch(connection, batch_id, "running", n_done=5)
            disk.fill()
            await wait_until_storage_is_full(node, connection, batch_id)
            await node.request(connection, "cancel", batch_id=batch_id)
            disk.free_space()
            await node.wait_for_batch(connection, batch_id, "cancelled")


def test_a_node_does_not_start_on_a_full_disk(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 8) as disk:
        disk.fill()
        data_dir = disk.folder / "data"
        completed = run_agentgym(tmp_path, "node", "--data-dir", str(data_dir))
    assert completed.returncode == 2
    expected = f"nothing can be stored in {data_dir}: its disk is full (0 KiB are free); free disk space there"
    assert expected in completed.stderr
    assert "or choose another folder with --data-dir" in completed.stderr
    assert "Traceback" not in completed.stderr


async def storage_problems(connection: NatsConnection) -> AsyncIterator[str]:
    """Yield the problems in the heartbeats of the node."""
    subscription = await connection.client.subscribe(live_subject("health", "*"))
    async for message in subscription.messages:
        for item in json.loads(message.data)["items"]:
            if item.get("storage"):
                yield item["storage"]


async def play_two_episodes(node: NodeProcess, batch_id: str) -> None:
    """Play two episodes, after those that wait; repeat the request while the broker restarts."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with await node.connect() as connection:
                    await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=2)
                    await node.wait_for_batch(connection, batch_id, "completed", n_done=2)
                    return
            except BusError:
                await asyncio.sleep(0.05)


async def wait_until_storage_is_full(node: NodeProcess, connection: NatsConnection, batch_id: str) -> dict[str, Any]:
    """Return the list of the node once it has the problem, which must be within ``REPORT_S``, and the batch waits."""
    async with asyncio.timeout(REPORT_S):
        while (listed := await node.request(connection, "list"))["storage"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (batch,) = (batch for batch in listed["batches"] if batch["batch_id"] == batch_id)
    assert batch["status"] == "running"
    assert batch["waiting_for"].startswith(f"nothing can be stored in {node.data_dir}: ")
    return dict(listed)


def count_all_event_ids(recorder: SubscriptionRecorder) -> dict[str, int]:
    ids = [message.headers.get("ce-id", "") for message in recorder.messages]
    return {id_: ids.count(id_) for id_ in ids}


async def test_the_own_broker_accepts_events_again_after_its_disk_was_full(tmp_path: Path, outbox: Outbox) -> None:
    with mount_small_disk(tmp_path / "disk", 24) as disk:
        broker = Broker(disk.folder, "node")
        broker.start()
        try:
            async with run_publisher(
                outbox, Sink("local", lambda: broker.address, owned=True), options=DeliveryOptions(ack_timeout_s=1)
            ) as running:
                outbox.add(outbox_event(0))
                await running.wait_until_drained()
                disk.fill()
                outbox.add(*(outbox_event(number, payload=b'"%s"' % (b"x" * 20_000)) for number in range(1, 60)))
                await running.wait_for_state("stalled")
                disk.free_space()
                await running.wait_until_drained()
            assert outbox.counts()["local"].acked == 60
        finally:
            broker.stop()


def test_events_that_could_not_be_stored_are_stored_with_the_next(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 4) as disk:
        workspace = Workspace(disk.folder, node="n", profile="p")
        recorder = EventRecorder(workspace, DurableNames(), role="node")
        recorder.finish_reading()
        (other := open_index(workspace.store)).close()  # so that the episodes are stored without their rows
        first, second = (RecordedEpisode(workspace.store, other).record_episode() for _ in range(2))
        disk.fill()
        for _ in range(20):  # some may still fit into a page
            recorder.record_status("idle")
            recorder.record_status("running")
        with pytest.raises(StoreError, match="full"):
            workspace.index.insert(first)
        assert recorder.outbox.known_ids("episode") == set()
        disk.free_space()
        workspace.index.insert(second)
        ids = [event.id for event in recorder.outbox.pending("local", 1000)]
        assert ids[-2:] == [f"episode:{first.episode_id}", f"episode:{second.episode_id}"]
        assert len([id_ for id_ in ids if id_.startswith("status:")]) == 40
        recorder.close()
        workspace.close()
