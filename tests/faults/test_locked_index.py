"""An index that another process keeps locked: episodes hardly wait for it, and no event is missing later."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from ulid import ULID

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.events.subjects import DurableNames
from runner.node.batch_queue import queued_ids
from runner.publish.outbox import EventRecorder
from tests.support.batches import resolved_batch
from tests.support.episodes import record_episodes
from tests.support.node_events import count_event_ids, episode_event_ids, subscribe_to_node
from tests.support.node_process import NodeProcess

MAX_LOCKED_S = 8.0
"""Maximum seconds for three episodes and their batch, each of which waits for the lock once."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]


@contextmanager
def lock_database(data_dir: Path, name: str = "index.sqlite") -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(data_dir / name, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        yield lock


@contextmanager
def lock_unread_index(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """Lock an index that lacks the rows of all episodes."""
    with closing(sqlite3.connect(data_dir / "index.sqlite")) as connection, connection:
        connection.execute("DELETE FROM episodes")
    with lock_database(data_dir) as lock:
        yield lock


def event_ids(data_dir: Path) -> list[str]:
    with closing(sqlite3.connect(data_dir / "outbox.sqlite")) as connection:
        return [event_id for (event_id,) in connection.execute("SELECT id FROM events ORDER BY n")]


@pytest.mark.parametrize("name", ["index.sqlite", "outbox.sqlite"])
def test_a_batch_completes_while_its_events_cannot_be_added(name: str, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p")
    recorder = EventRecorder(workspace, DurableNames(), role="run")
    recorder.finish_reading()
    episode_ids: list[str] = []
    with lock_database(tmp_path, name):
        started = time.monotonic()
        recorder.record_status("running")
        batch = Batch(resolved_batch(env="Maze", agent="oracle", repeat=3), workspace)
        result = batch.run()
        recorder.record_batch(result)
        recorder.record_status("stopped")
        assert time.monotonic() - started < MAX_LOCKED_S
        episode_ids += [f"episode:{episode.episode_id}" for episode in result.episodes]
        assert not {*episode_ids} & {*event_ids(tmp_path)}
    recorder.outbox.collect()
    recorder.close()
    workspace.close()
    boot = f"status:{workspace.boot}"
    assert {*event_ids(tmp_path)} == {f"{boot}:0", *episode_ids, f"batch:{batch.batch_id}", f"{boot}:1"}


async def test_a_node_answers_before_it_has_read_its_episodes(tmp_path: Path) -> None:
    lost, new = str(ULID()), str(ULID())
    (first, *_) = record_episodes(tmp_path, 3, batch_id=lost, n_planned=3)
    (tmp_path / "nats").mkdir()  # an earlier node had the batch, whose queue is lost with its journal
    with lock_unread_index(tmp_path) as lock:
        with NodeProcess(tmp_path) as node:  # killed while it reads: the next node still restores the lost batch
            async with await node.connect(reads=True) as connection:
                assert (await node.request(connection, "health"))["indexing"]
        with NodeProcess(tmp_path) as node:
            async with await node.connect(reads=True) as connection:
                async with asyncio.timeout(30):
                    while (  # noqa: ASYNC110 - another process
                        health := await node.request(connection, "health")
                    )["indexing"] != "indexing 0 of 3":
                        await asyncio.sleep(0.02)
                assert health["status"] == "starting"
                (queued,) = await node.request(connection, "start", batch_id=new, envs=["Maze"], agent="oracle")
                assert (queued["status"], queued["waiting_for"]) == ("queued", "indexing 0 of 3")
                ops = {"cancel": {"batch_id": new}, "episode": {"episode_id": first.episode_id}, "send_history": {}}
                for op, args in ops.items():
                    assert (await node.request_reply(connection, op, **args))["error"]["code"] == "indexing"
                lock.execute("COMMIT")
                await node.wait_for_batch(connection, new, "completed", n_done=1)
                await node.wait_for_batch(connection, lost, "completed", n_done=3)
                assert (await node.request(connection, "health"))["indexing"] is None


async def test_a_node_that_is_stopped_while_it_reads_its_episodes_starts_no_batch(tmp_path: Path) -> None:
    record_episodes(tmp_path, 3)
    with lock_unread_index(tmp_path) as lock, NodeProcess(tmp_path) as node:
        async with await node.connect(reads=True) as connection:
            batch_id = await node.start_batch(connection, "Maze")
            await node.request(connection, "shutdown", drain=False)
            lock.execute("COMMIT")
        assert node.process is not None
        assert await asyncio.to_thread(node.process.wait, 30) == 0
    assert queued_ids(tmp_path, unfinished=True) == {batch_id}


@pytest.mark.parametrize("name", ["index.sqlite", "outbox.sqlite"])
async def test_a_node_plays_and_answers_while_the_outbox_is_locked(name: str, tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        async with await node.connect() as connection:
            with lock_database(tmp_path, name):
                before = event_ids(tmp_path)
                batch_id = await node.start_batch(connection, "Maze", repeat=3)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=3)
                assert not [each for each in event_ids(tmp_path) if each.startswith("episode:") and each not in before]
        expected = {f"batch:{batch_id}"} | episode_event_ids(tmp_path)
        async with subscribe_to_node(node) as recorder:
            await recorder.wait_until(lambda: count_event_ids(recorder).keys() == expected)
            assert set(count_event_ids(recorder).values()) == {1}
