"""An index that another process keeps locked: episodes hardly wait for it, and no event is missing later."""

from __future__ import annotations

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
from runner.publish.event_recorder import EventRecorder
from tests.support.batches import resolved_batch
from tests.support.node_events import count_event_ids, episode_event_ids, subscribe_to_node
from tests.support.node_process import NodeProcess

MAX_LOCKED_S = 8.0
"""Maximum seconds for three episodes and their batch, each of which waits for the lock once."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]


@contextmanager
def lock_index(data_dir: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(data_dir / "index.sqlite", isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        yield lock


def event_ids(connection: sqlite3.Connection) -> list[str]:
    return [event_id for (event_id,) in connection.execute("SELECT id FROM events ORDER BY n")]


def test_a_batch_completes_while_its_events_cannot_be_added(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p")
    recorder = EventRecorder(workspace, DurableNames(), role="run")
    episode_ids: list[str] = []
    with lock_index(tmp_path) as lock:
        started = time.monotonic()
        recorder.record_status("running")
        batch = Batch(resolved_batch(env="Maze", agent="oracle", repeat=3), workspace)
        result = batch.run()
        recorder.record_batch(result)
        recorder.record_status("stopped")
        assert time.monotonic() - started < MAX_LOCKED_S
        episode_ids += [f"episode:{episode.episode_id}" for episode in result.episodes]
        assert event_ids(lock) == []
    workspace.close()
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as connection:
        boot = f"status:{workspace.boot}"
        assert event_ids(connection) == [f"{boot}:0", *episode_ids, f"batch:{batch.batch_id}", f"{boot}:1"]


async def test_a_node_plays_and_answers_while_the_outbox_is_locked(tmp_path: Path) -> None:
    batch_id = str(ULID())
    with NodeProcess(tmp_path) as node:
        async with await node.connect() as connection:
            with lock_index(tmp_path) as lock:
                before = event_ids(lock)
                await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=3)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=3)
                assert event_ids(lock) == before
        expected = {f"batch:{batch_id}"} | episode_event_ids(tmp_path)
        async with subscribe_to_node(node) as recorder:
            await recorder.wait_until(lambda: count_event_ids(recorder).keys() == expected)
            assert set(count_event_ids(recorder).values()) == {1}
