"""A foreground run that is killed after storing all its episodes and before recording the end of its batch."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.events.durable import BatchCompleted
from runner.events.subjects import DurableNames
from runner.node.batch_queue import BatchQueue, QueuedBatch, queued_ids
from runner.publish.outbox import LOCAL, EventRecorder
from runner.types import ErrorInfo, Outcome
from tests.support.command import run_agentgym
from tests.support.episodes import record_episodes
from tests.support.node_process import NodeProcess

ROOT = Path(__file__).parents[2]
RUN = """
import os, sys
from pathlib import Path
from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from tests.support.batches import resolved_batch

folder, batch_id, n_played = sys.argv[1:]
played = []

def end(record):
    played.append(record)
    if len(played) == int(n_played):
        os.kill(os.getpid(), 9)

workspace = Workspace(Path(folder), node="n", profile="p")
Batch(resolved_batch(env="Maze", agent="oracle", repeat=3), workspace, on_record=end, batch_id=batch_id).run()
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(60)]


def run_until_killed(n_played: int, data_dir: Path) -> str:
    """Play a batch of 3 episodes in a process that is killed after ``n_played`` of them; return the batch id."""
    command = [sys.executable, "-c", RUN, str(data_dir), batch_id := str(ULID()), str(n_played)]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    return batch_id


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """State directory and batch id of a run that was killed after its last episode."""
    data_dir = tmp_path_factory.mktemp("killed_run")
    return data_dir, run_until_killed(3, data_dir)


@pytest.fixture
def data_dir(tmp_path: Path, killed_run: tuple[Path, str]) -> Path:
    """Copy of the killed run's state directory."""
    return shutil.copytree(killed_run[0], tmp_path / "data")


@pytest.fixture
def batch_id(killed_run: tuple[Path, str]) -> str:
    return killed_run[1]


def publish_missed_batches(data_dir: Path) -> list[BatchCompleted]:
    """Record missed batches as at a start; return all recorded batch events, including those of earlier starts."""
    workspace = Workspace(data_dir, node="n", profile="p")
    with closing(workspace):
        recorder = EventRecorder(workspace, DurableNames(), role="run")
        recorder.record_missed_batches(lambda: queued_ids(data_dir))
        events = [event for event in recorder.outbox.pending(LOCAL, 100) if event.id.startswith("batch:")]
    return [msgspec.json.decode(event.payload, type=BatchCompleted) for event in events]


def test_a_missed_batch_is_published_once_at_the_next_start(data_dir: Path, batch_id: str) -> None:
    for _ in range(2):
        (event,) = publish_missed_batches(data_dir)
        assert (event.batch_id, event.status, event.env, event.agent) == (batch_id, "completed", "Maze", "oracle")
        assert (event.n_episodes, event.mean_reward, event.success_rate) == (3, 1.0, 1.0)


def test_an_incomplete_batch_is_not_published(tmp_path: Path) -> None:
    run_until_killed(2, tmp_path)
    assert publish_missed_batches(tmp_path) == []


def test_a_batch_that_ran_out_of_resources_is_not_published(tmp_path: Path) -> None:
    batch_id, error = str(ULID()), ErrorInfo("resources", "too many open files", "")
    record_episodes(tmp_path, 1, batch_id=batch_id, n_planned=2)
    record_episodes(tmp_path, 1, batch_id=batch_id, n_planned=2, end={"outcome": Outcome.ERROR, "error_info": error})
    assert publish_missed_batches(tmp_path) == []
    record_episodes(tmp_path, 1, batch_id=batch_id, n_planned=2)
    (event,) = publish_missed_batches(tmp_path)
    assert (event.batch_id, event.n_episodes) == (batch_id, 2)


def test_a_batch_in_the_queue_of_a_node_is_not_published(data_dir: Path, batch_id: str) -> None:
    queue = BatchQueue(data_dir)
    queue.add(QueuedBatch(batch_id=batch_id, battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=3)))
    assert publish_missed_batches(data_dir) == []


def test_nothing_is_published_while_the_queue_is_unreadable(data_dir: Path) -> None:
    (data_dir / "batches.jsonl").write_bytes(b"no record of a batch" * 100)
    assert publish_missed_batches(data_dir) == []


def start_node(data_dir: Path) -> None:
    async def wait_until_read() -> None:
        async with await node.connect():
            pass

    with NodeProcess(data_dir) as node:
        asyncio.run(wait_until_read())
        node.terminate()


def start_run(data_dir: Path) -> None:
    assert run_agentgym(data_dir.parent, "--run", "Wordle", "--agent", "oracle").returncode == 0


@pytest.mark.parametrize("start", [start_node, start_run])
def test_nodes_and_foreground_runs_publish_missed_batches(
    data_dir: Path, batch_id: str, start: Callable[[Path], None]
) -> None:
    start(data_dir)
    workspace = Workspace(data_dir, node="n", profile="p")
    with closing(workspace):
        assert batch_id in EventRecorder(workspace, DurableNames(), role="run").ended_batches()
