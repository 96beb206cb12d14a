"""A node whose disk is full: it lives on and says so, and once there is room nothing is missing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from ulid import ULID

from runner.batch.state_dir import Workspace
from runner.bus.broker import broker as node_broker
from runner.bus.broker.broker import Broker
from runner.bus.connection import BusError, NatsConnection
from runner.events.subjects import DurableNames
from runner.publish.delivery import DeliveryOptions
from runner.publish.event_recorder import EventRecorder
from runner.publish.publisher import Sink
from tests.faults.test_node_faults import viewing
from tests.support.episodes import RecordedEpisode
from tests.support.full_disk import Disk, FileSizeLimit, mount_small_disk
from tests.support.node_process import NodeProcess
from tests.support.publishing import open_outbox, outbox_event, run_publisher
from tests.support.subscriptions import SubscriptionRecorder

pytestmark = pytest.mark.timeout(120)

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
REPEAT = 300
FEW = 20
DiskOf: TypeAlias = Callable[[Path], AbstractContextManager[tuple[NodeProcess, Disk]]]


@contextmanager
def mounted(tmp_path: Path) -> Iterator[tuple[NodeProcess, Disk]]:
    with mount_small_disk(tmp_path / "disk", 24) as disk, NodeProcess(disk.folder / "data") as node:
        yield node, disk


@contextmanager
def forbidden(tmp_path: Path) -> Iterator[tuple[NodeProcess, Disk]]:
    with NodeProcess(tmp_path / "data") as node:
        yield node, FileSizeLimit(node.pid)


@pytest.mark.long
@pytest.mark.parametrize("disk_of", [mounted, forbidden] if FULL else [mounted])
async def test_a_full_disk_ends_no_node_and_loses_no_episode(tmp_path: Path, disk_of: DiskOf) -> None:
    batch_id = str(ULID())
    with disk_of(tmp_path) as (node, disk):
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=REPEAT)
            await node.wait_for_batch(connection, batch_id, "running", n_done=5)
            disk.fill()
            await _until_idle(node, connection)
            refused = await node.request_reply(connection, "start", batch_id=str(ULID()), envs=["Maze"], agent="oracle")
            assert "check for a full disk" in refused["error"]["message"]
            await asyncio.sleep(1.5 * node_broker.DISK_POLL_S)  # a moment without room is not noticed
            disk.free_space()
        played = _episodes(node, batch_id)
        assert 5 <= len(played) < REPEAT
        assert all(json.loads(path.read_bytes())["error"] is None for path in played)
        await _play_two_more(node, other := str(ULID()))
        wanted = {f"episode:{path.stem}" for path in played + _episodes(node, other)} | {f"batch:{other}"}
        async with viewing(node) as viewer:
            await viewer.wait_until(lambda: wanted <= _ids(viewer).keys(), 30)
            assert set(_ids(viewer).values()) == {1}
        status, said = await asyncio.to_thread(node.terminate)
    assert status == 0, said
    assert "could not be stored; no further episodes start" in said
    assert "Traceback" not in said


@pytest.mark.long
async def test_a_batch_that_a_full_disk_ended_can_be_resumed(tmp_path: Path) -> None:
    batch_id = str(ULID())
    with forbidden(tmp_path) as (node, disk):
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=FEW)
            await node.wait_for_batch(connection, batch_id, "running", n_done=5)
            disk.fill()
            await _until_idle(node, connection)
            disk.free_space()
            await node.wait_for_batch(connection, batch_id, "interrupted")
            await node.request(
                connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=FEW, resume=True
            )
            await node.wait_for_batch(connection, batch_id, "completed", n_done=FEW)


async def _play_two_more(node: NodeProcess, batch_id: str) -> None:
    """Its broker may be about to be started again."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with await node.connect() as connection:
                    await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=2)
                    await node.wait_for_batch(connection, batch_id, "completed", n_done=2)
                    return
            except BusError:
                await asyncio.sleep(0.05)


async def _until_idle(node: NodeProcess, connection: NatsConnection) -> None:
    async with asyncio.timeout(20):
        while (await node.request(connection, "health"))["status"] == "running":  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


def _episodes(node: NodeProcess, batch_id: str) -> list[Path]:
    return list((node.data_dir / "runs" / batch_id).glob("*.json"))


def _ids(viewer: SubscriptionRecorder) -> dict[str, int]:
    ids = [message.headers.get("ce-id", "") for message in viewer.messages]
    return {id_: ids.count(id_) for id_ in ids}


@pytest.mark.long
async def test_the_own_broker_takes_events_again_once_its_disk_has_room(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 24) as disk, open_outbox(tmp_path) as outbox:
        broker = Broker(disk.folder, "node")
        broker.start()
        try:
            async with run_publisher(
                outbox,
                Sink("local", lambda: broker.address, owned=True),
                options=DeliveryOptions(ack_timeout_s=1),
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


def test_what_could_not_be_announced_is_announced_with_the_next(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 4) as disk:
        workspace = Workspace(disk.folder, node="n", profile="p")
        recorder = EventRecorder(workspace, DurableNames(), role="node")
        first, second = (RecordedEpisode(workspace.store, workspace.index).record_episode() for _ in range(2))
        disk.fill()
        for _ in range(20):  # some may still fit into a page
            recorder.record_status("idle")
            recorder.record_status("running")
        recorder.record_episode(first)
        recorder.flush()
        assert f"episode:{first.episode_id}" not in recorder.outbox.known_ids()
        disk.free_space()
        recorder.record_episode(second)
        recorder.flush()
        ids = [event.id for event in recorder.outbox.pending("local", 1000)]
        assert ids[-2:] == [f"episode:{first.episode_id}", f"episode:{second.episode_id}"]
        assert len([id_ for id_ in ids if id_.startswith("status:")]) == 40
        recorder.close()
        workspace.close()
