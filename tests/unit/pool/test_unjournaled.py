"""Journals that cannot be written where their episodes are played: in this process and in real worker processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runner.batch.batch import Batch
from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.pool.choose import open_pool
from runner.store import EpisodeRecord
from runner.types import Action, StepResult
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.fakes import Counter

N_EPISODES = 4


def use_up_files() -> None:
    """Let this process open no further file."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class NoFiles(Counter):
    """After the first episode, its process has no file left for the journal of the second one, which then frees some.

    In the process of the test, the test does that, because the first episode is stored there after its cleanup.
    """

    limit: ClassVar = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __init__(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limit)
        super().__init__()

    def cleanup(self) -> None:
        super().cleanup()
        if str(os.getpid()) != os.environ["PID_OF_TEST"]:
            use_up_files()


class FullDisk(Counter):
    """From its first step on, its process can write no file."""

    def step(self, action: Action) -> StepResult:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return super().step(action)


@pytest.fixture
def workspace(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("PID_OF_TEST", str(os.getpid()))
    envs = {name: f"{__name__}:{name}" for name in ("NoFiles", "FullDisk")}
    install(envs=envs, agents={"up": "tests.support.fakes:UpAgent"}, name="unjournaled")
    workspace = Workspace(tmp_path / "data", node="test", profile="p1")
    yield workspace
    resource.setrlimit(resource.RLIMIT_NOFILE, NoFiles.limit)
    workspace.close()


def play(workspace: Workspace, env: str, workers: int, **rest: Any) -> BatchResult:  # noqa: ANN401
    spec = resolved_batch(env=env, agent="up", repeat=N_EPISODES, concurrency=1)
    pool = open_pool(workers, spec.spec, spec.setup, None, workspace.store.runs)
    return Batch(spec, workspace, pool=pool, **rest).run()


@pytest.mark.parametrize("workers", [0, 1], ids=["in this process", "a worker process"])
def test_a_journal_without_a_file_stops_the_batch_after_its_episode(workspace: Workspace, workers: int) -> None:
    def on_record(record: EpisodeRecord) -> None:
        if not workers and record.task_index == 0:
            use_up_files()

    result = play(workspace, "NoFiles", workers, on_record=on_record)
    assert (result.status, result.interrupted_by) == ("interrupted", "resources")
    assert (result.interruption or "").startswith("no more open files (the limit is ")
    assert (result.outcomes, result.problems) == ({"success": 2}, [])
    records = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert [(record.rounds, record.error) for record in records] == [(3, None)] * 2


def test_a_full_disk_of_a_worker_costs_its_journals_and_no_episode(workspace: Workspace) -> None:
    result = play(workspace, "FullDisk", 1)
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": N_EPISODES}, [])
    records = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert [(record.rounds, record.error) for record in records] == [(3, None)] * N_EPISODES
    assert [path.name for path in workspace.store.runs.rglob("*.journal.jsonl*")] == []
