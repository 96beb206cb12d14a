"""A foreground run that is killed when all its episodes are stored, and before it could say that the batch is over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.events.durable import BatchCompleted
from runner.events.subjects import DurableNames
from runner.node.batch_queue import BatchQueue, QueuedBatch, queued_ids
from runner.publish.event_recorder import EventRecorder
from runner.publish.outbox import LOCAL
from runner.publish.recovery import record_missed_batches
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

ROOT = Path(__file__).parents[2]
RUN = """
import os, sys
from pathlib import Path
from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace

folder, batch_id, n_played = sys.argv[1:]
played = []

def end(record):
    played.append(record)
    if len(played) == int(n_played):
        os.kill(os.getpid(), 9)

workspace = Workspace(Path(folder), node="n", profile="p")
Batch(BatchSpec(env="Maze", agent="oracle", repeat=3).validated(), workspace, on_record=end, batch_id=batch_id).run()
"""

pytestmark = pytest.mark.timeout(60)


def _killed_after(n_played: int, data_dir: Path) -> str:
    command = [sys.executable, "-c", RUN, str(data_dir), batch_id := str(ULID()), str(n_played)]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    return batch_id


def _announced(data_dir: Path) -> list[BatchCompleted]:
    """What a start announces of batches, and what all starts before it did."""
    workspace = Workspace(data_dir, node="n", profile="p")
    with closing(workspace), closing(EventRecorder(workspace, DurableNames(), role="run")) as recorder:
        record_missed_batches(workspace, recorder, lambda: queued_ids(data_dir / "queue.sqlite"))
        recorder.flush()
        events = [event for event in recorder.outbox.pending(LOCAL, 100) if event.id.startswith("batch:")]
    return [msgspec.json.decode(event.payload, type=BatchCompleted) for event in events]


def test_it_is_announced_at_the_next_start_and_never_again(tmp_path: Path) -> None:
    batch_id = _killed_after(3, tmp_path)
    for _ in range(2):
        (event,) = _announced(tmp_path)
        assert (event.batch_id, event.status, event.env, event.agent) == (batch_id, "completed", "Maze", "oracle")
        assert (event.n_episodes, event.mean_reward, event.success_rate) == (3, 1.0, 1.0)


def test_a_batch_that_is_not_complete_is_not_announced(tmp_path: Path) -> None:
    _killed_after(2, tmp_path)
    assert _announced(tmp_path) == []


def test_what_a_node_answers_for_is_left_to_it(tmp_path: Path) -> None:
    batch_id = _killed_after(3, tmp_path)
    queue = BatchQueue(tmp_path / "queue.sqlite")
    queue.add(QueuedBatch(batch_id=batch_id, battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=3)))
    assert _announced(tmp_path) == []
    queue.close()


def test_a_queue_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    _killed_after(3, tmp_path)
    (tmp_path / "queue.sqlite").write_bytes(b"nothing that SQLite knows" * 100)
    assert _announced(tmp_path) == []


def _by_a_node(data_dir: Path) -> None:
    with NodeProcess(data_dir) as node:
        node.terminate()


def _by_a_run(data_dir: Path) -> None:
    command = [COMMAND, "--run", "Wordle", "--agent", "oracle", "--data-dir", str(data_dir)]
    subprocess.run(command, env=clean_environ(), capture_output=True, timeout=60, check=True)


@pytest.mark.long
@pytest.mark.parametrize("start", [_by_a_node, _by_a_run])
def test_nodes_and_runs_announce_it(tmp_path: Path, start: Callable[[Path], None]) -> None:
    batch_id = _killed_after(3, tmp_path)
    start(tmp_path)
    workspace = Workspace(tmp_path, node="n", profile="p")
    with closing(workspace), closing(EventRecorder(workspace, DurableNames(), role="run")) as recorder:
        assert f"batch:{batch_id}" in recorder.outbox.known_ids()
