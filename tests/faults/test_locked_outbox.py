"""An outbox that somebody else keeps locked: what is played does not wait for it, and nothing is missing later."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from ulid import ULID

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.events.subjects import DurableNames
from runner.publish.event_recorder import EventRecorder
from tests.faults.test_node_faults import shown, viewing
from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.timeout(60)


@contextmanager
def locked(data_dir: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(data_dir / "outbox.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def _ids(connection: sqlite3.Connection) -> list[str]:
    return [event_id for (event_id,) in connection.execute("SELECT id FROM events ORDER BY n")]


def test_a_batch_is_over_before_its_events_can_be_added(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p")
    recorder = EventRecorder(workspace, DurableNames(), role="run")
    played: list[str] = []
    with locked(tmp_path) as other:
        recorder.record_status("running")
        batch = Batch(
            BatchSpec(env="Maze", agent="oracle", repeat=3).validated(), workspace, on_record=recorder.record_episode
        )
        result = batch.run()
        recorder.record_batch(result)
        recorder.record_status("stopped")
        played += [f"episode:{episode.episode_id}" for episode in result.episodes]
        assert _ids(other) == []
    recorder.close()
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite")) as after:
        boot = f"status:{workspace.boot}"
        assert _ids(after) == [f"{boot}:0", *played, f"batch:{batch.batch_id}", f"{boot}:1"]
    workspace.close()


@pytest.mark.long
async def test_a_node_plays_and_answers_meanwhile(tmp_path: Path) -> None:
    batch_id = str(ULID())
    with NodeProcess(tmp_path) as node:
        async with await node.connect() as connection:
            with locked(tmp_path) as other:
                before = _ids(other)
                await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=3)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=3)
                assert _ids(other) == before
        wanted = {f"batch:{batch_id}"} | {f"episode:{path.stem}" for path in (tmp_path / "runs").glob("*/*.json")}
        async with viewing(node) as viewer:
            await viewer.wait_until(lambda: shown(viewer).keys() == wanted)
            assert set(shown(viewer).values()) == {1}
