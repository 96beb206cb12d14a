"""Batches over real worker processes: the same trajectories as in this process, and workers that are killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.result import BatchResult
from runner.batch.spec import MAX_STORING, ResolvedBatch
from runner.batch.workspace import Workspace
from runner.envs.http.server import ServerAddress
from runner.envs.placement import Placement
from runner.events.live import EpisodeStarted
from runner.pool.choose import open_pool
from runner.store import EpisodeRecord
from runner.types import BatchProgress, Outcome, WorkerState
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.command import REPOSITORY
from tests.support.episodes import new_id, stored_files
from tests.support.slot_server import run_slot_server
from tests.support.waiting_batch import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "data", node="test", profile="p1")
    yield workspace
    workspace.close()


@pytest.fixture
def fakes(install: Install) -> None:
    install(envs={"Killing": "tests.support.rude_environments:Killing"}, agents={"up": "tests.support.fakes:UpAgent"})


class WorkerBatch:
    """A batch with its published items and reported episodes."""

    def __init__(self, workspace: Workspace, planned: ResolvedBatch, workers: int) -> None:
        self.workspace = workspace
        self.items: list[BatchItem] = []
        self.reported: list[EpisodeRecord] = []
        self.log: list[str] = []
        pool = open_pool(workers, planned.spec, planned.setup, None, workspace.store.runs, self.log.append)
        self.batch = Batch(planned, workspace, observers=[self.on_item], on_record=self.reported.append, pool=pool)

    def on_item(self, item: BatchItem) -> None:
        self.items.append(item)

    def records(self, result: BatchResult) -> dict[tuple[int, int], EpisodeRecord]:
        loaded = [self.workspace.store.load(episode.episode_id) for episode in result.episodes]
        return {(record.task_index, record.attempt): record for record in loaded}


def played(record: EpisodeRecord) -> bytes:
    """Return everything of an episode that does not depend on times and ids."""
    steps = [
        msgspec.structs.replace(step, model_s=0.0, env_s=0.0, ttft_s=None, tokens_per_s=None, phases=None)
        for step in record.timesteps
    ]
    fields = (record.outcome, record.success, record.reward, record.evaluation, record.error)
    return msgspec.json.encode((fields, record.reset_observation, steps, record.tool_schemas))


@pytest.mark.parametrize("env", ["Maze", "BabyAI"])
def test_worker_processes_play_the_same_trajectories(workspace: Workspace, env: str) -> None:
    planned = resolved_batch(env=env, agent="oracle", repeat=8, attempts=2, concurrency=4)
    here, there = (WorkerBatch(workspace, planned, workers) for workers in (0, 2))
    expected, result = here.batch.run(), there.batch.run()
    assert (result.status, result.outcomes, result.problems) == ("completed", expected.outcomes, [])
    first, second = here.records(expected), there.records(result)
    assert {key: played(record) for key, record in first.items()} == {
        key: played(record) for key, record in second.items()
    }
    names = [[span.name for span in records[3, 1].spans] for records in (first, second)]
    assert names[0] == names[1]
    workers = Counter(record.worker.id for record in second.values() if record.worker)
    assert sorted(workers) == ["worker 0", "worker 1"]
    assert there.log == []


class KillingBatch(WorkerBatch):
    """Kills workers as soon as they play two episodes, 6 times."""

    def __init__(self, workspace: Workspace, planned: ResolvedBatch, workers: int) -> None:
        super().__init__(workspace, planned, workers)
        self._pids: dict[str, int] = {}
        self._playing: dict[str, set[str]] = {}
        self.n_killed = 0

    def on_item(self, item: BatchItem) -> None:
        super().on_item(item)
        match item:
            case WorkerState(pid=int(pid)) if item.state != "lost":
                self._pids[item.id] = pid
            case EpisodeStarted() if item.worker is not None:
                worker = item.worker.id
                self._playing.setdefault(worker, set()).add(item.episode_id)
                if len(self._playing[worker]) > 1 and self.n_killed < 6:
                    del self._playing[worker]
                    os.kill(self._pids.pop(worker), signal.SIGKILL)
                    self.n_killed += 1
            case EpisodeStored():
                for episodes in self._playing.values():
                    episodes.discard(item.end.episode_id)


def test_killed_workers_cost_no_planned_episode(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    planned = resolved_batch(env="Maze", agent="oracle", repeat=200, concurrency=8)
    batch = KillingBatch(workspace, planned, 2)
    result = batch.batch.run()
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": 200}, [])
    assert batch.n_killed == 6
    assert result.workers is not None
    assert result.workers.lost == batch.n_killed
    stored = [workspace.store.load(file.episode_id) for file in stored_files(workspace.store)]
    finished = [record for record in stored if record.outcome is Outcome.SUCCESS]
    lost = [record for record in stored if record.outcome is not Outcome.SUCCESS]
    assert sorted(record.task_index for record in finished) == list(range(200))
    assert {(record.outcome, record.error.type) for record in lost if record.error} <= {
        (Outcome.INTERRUPTED, "worker_lost")
    }
    assert all("SIGKILL" in record.error.message for record in lost if record.error)
    assert Counter(record.episode_id for record in batch.reported) == Counter(record.episode_id for record in stored)
    ends = Counter(item.end.episode_id for item in batch.items if isinstance(item, EpisodeStored))
    assert ends == Counter(record.episode_id for record in stored)
    assert max(item.n_done for item in batch.items if isinstance(item, BatchProgress)) == 200
    assert list(workspace.store.runs.rglob("*.journal.jsonl*")) == []


DRIVER = """
import sys
from pathlib import Path
from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.workspace import Workspace
from runner.pool.choose import open_pool
from runner.types import WorkerState
from tests.support.batches import resolved_batch

def report(kind, number):  # one write, because two threads report
    sys.stdout.write(f"{kind} {number}\\n")
    sys.stdout.flush()

def show(item):
    if isinstance(item, WorkerState) and item.pid is not None:
        report("worker", item.pid)

planned = resolved_batch(env="Maze", agent="oracle", repeat=2000, concurrency=8)
workspace = Workspace(Path(sys.argv[1]), node="test", profile="p1")
pool = open_pool(2, planned.spec, planned.setup, None, workspace.store.runs, print)
Batch(planned, workspace, observers=[show], batch_id=sys.argv[2], pool=pool,
      on_record=lambda record: report("episode", record.task_index)).run()
"""


def test_a_killed_driver_leaves_no_worker_and_can_be_resumed(tmp_path: Path) -> None:
    batch_id, folder = new_id(), tmp_path / "data"
    pids: set[int] = set()
    reported: list[int] = []
    arguments = [sys.executable, "-c", DRIVER, str(folder), batch_id]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environ) as driver:
        assert driver.stdout is not None
        while len(reported) < 20 or len(pids) < 2:
            kind, number = driver.stdout.readline().split()
            if kind == "worker":
                pids.add(int(number))
            else:
                reported.append(int(number))
        driver.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))
    workspace = Workspace(folder, node="test", profile="p1")
    try:
        earlier = [workspace.store.load(file.episode_id) for file in stored_files(workspace.store)]
        assert set(reported) <= {record.task_index for record in earlier if record.outcome is Outcome.SUCCESS}
        assert len(workspace.recovered) <= 8 + MAX_STORING  # that were played, and that were stored meanwhile
        n_repeat = max(reported) + 10
        planned = resolved_batch(env="Maze", agent="oracle", repeat=n_repeat, concurrency=4)
        first = [record for record in earlier if record.task_index < n_repeat]
        pool = open_pool(2, planned.spec, planned.setup, None, workspace.store.runs, print)
        result = Batch(planned, workspace, batch_id=batch_id, earlier_episodes=first, pool=pool).run()
        assert (result.status, result.outcomes) == ("completed", {"success": n_repeat})
    finally:
        workspace.close()


@pytest.mark.usefixtures("fakes")
def test_workers_that_are_killed_all_the_time_interrupt_no_episode(workspace: Workspace) -> None:
    planned = resolved_batch(env="Killing", agent="up", task_index=2, repeat=16, concurrency=8)
    batch = KillingBatch(workspace, planned, 2)
    result = batch.batch.run()
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": 16}, [])
    assert batch.n_killed == 6


def test_worker_processes_never_share_an_instance_of_a_server(workspace: Workspace) -> None:
    with run_slot_server(8) as (server, handler):
        placement = Placement(transport="http", address=ServerAddress(f"{server.url}/maze", n_tasks=64))
        planned = resolved_batch(placement, env="Maze", agent="random", repeat=64, concurrency=16)
        pool = open_pool(4, planned.spec, planned.setup, None, workspace.store.runs, print)
        result = Batch(planned, workspace, pool=pool).run()
    assert (result.status, result.problems, handler.n_created >= 64) == ("completed", [], True)
    records = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert {record.task_index: record.reward for record in records} == {task: float(task) for task in range(64)}
    assert len({record.worker.id for record in records if record.worker}) == 4
