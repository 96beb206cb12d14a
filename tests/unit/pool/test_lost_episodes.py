"""Which episodes of lost workers are played again, and on which workers."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from runner.batch.result import BatchStats, split_plan
from runner.batch.workspace import Workspace
from runner.pool.worker import Worker
from runner.store.journal import journal_path
from runner.types import Tokens, WorkerCounts
from runner.util.files import file_lock
from tests.support.episodes import episode_header
from tests.support.fake_pools import PooledBatch
from tests.support.fake_worker import FakeWorker, Script, episode_frames, opening_frames, step_frame

KILLER = 1


def end_with_all(n_episodes: int) -> Script:
    """Return a script that starts this number of episodes and ends."""

    def play(worker: FakeWorker) -> None:
        worker.greet()
        for _ in range(n_episodes):
            play = worker.read_play()
            assert play is not None
            worker.send(*opening_frames(play.header))

    return play


def end_in_task_1(worker: FakeWorker) -> None:
    worker.greet()
    while (play := worker.read_play()) is not None:
        if play.header.task_index == KILLER:
            worker.send(*opening_frames(play.header))
            return
        worker.send(*episode_frames(play.header))


def end_after_an_answer(worker: FakeWorker) -> None:
    worker.greet()
    play = worker.read_play()
    assert play is not None
    answer = step_frame(play.header, 0, tokens=Tokens(10, 2), cost=0.5, endpoint="e", model="m")
    worker.send(*opening_frames(play.header), answer)


def close(worker: FakeWorker) -> None:
    pass


def test_an_episode_that_ends_its_workers_costs_its_neighbors_nothing(workspace: Workspace) -> None:
    scripts = end_with_all(4), end_with_all(4), end_in_task_1
    batch = PooledBatch(workspace, *scripts, repeat=4, concurrency=4)
    result = batch.result()
    assert (result.status, result.outcomes) == ("interrupted", {"success": 3, "interrupted": 1})
    assert (result.interruption or "").startswith("1 episode was interrupted with a lost worker")
    starts = Counter(record.task_index for record in batch.stored())
    assert starts == {0: 3, KILLER: 5, 2: 3, 3: 3}
    assert len(batch.processes.started) == 5


def test_at_most_as_many_episodes_as_workers_play_alone(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, *[end_with_all(4)] * 4, FakeWorker.play_all, n_workers=2, repeat=20, concurrency=8)
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"success": 20})
    assert len(batch.processes.started) <= 8


def test_the_answers_of_lost_episodes_count_in_the_totals(workspace: Workspace) -> None:
    batch = PooledBatch(
        workspace, end_after_an_answer, end_after_an_answer, FakeWorker.play_all, repeat=2, concurrency=1
    )
    result = batch.result()
    assert (result.outcomes, result.n_episodes, result.mean_rounds) == ({"success": 2}, 2, 3.0)
    assert (result.tokens, result.cost, result.answers, result.latency_s) == (Tokens(20, 4), 1.0, {"e: m": 2}, 0.5)
    stored, resumed = batch.stored(), BatchStats()
    resumed.add_stored(stored, split_plan(batch.batch.spec, stored)[0])
    again = resumed.result(
        batch.batch.spec, batch_id="b", battery_id=None, status="completed", data_label="", duration_s=1.0
    )
    assert (again.tokens, again.cost, again.answers) == (result.tokens, result.cost, result.answers)
    assert again.n_episodes == 2


def test_a_worker_that_does_not_start_leaves_its_episodes_to_the_others(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    batch = PooledBatch(workspace, FakeWorker.play_all, n_workers=2, repeat=8, concurrency=4)
    batch.processes.named["worker 0"] = close
    result = batch.result()
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": 8}, [])
    assert {record.worker.id for record in batch.stored() if record.worker} == {"worker 1"}
    assert result.workers == WorkerCounts(n=1, lost=1)
    assert len(batch.processes.started) == 5
    (warning,) = [text for text in caplog.messages if "continues" in text]
    assert warning.startswith("worker 0 does not start: its process (pid ")
    assert warning.endswith("; the batch continues with 1 of 2 workers")


def test_the_last_worker_that_lives_is_replaced_after_others_did_not_start(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, FakeWorker.play_all, n_workers=2, repeat=8, concurrency=4)
    batch.processes.named |= {"worker 0": close, "worker 1": end_with_all(4)}
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"success": 8})
    assert {record.worker.id for record in batch.stored() if record.worker} == {"worker 1", "worker 2"}


def test_the_journal_of_an_abandoned_episode_is_not_closed_while_it_may_be_written(tmp_path: Path) -> None:
    """Its descriptor might become that of another file in the middle of a write."""
    header = episode_header()
    worker = Worker("actor", lambda frame: None, None, runs=tmp_path)
    worker.play(header, "slot 0", Mock(), paused=False)
    for frame in opening_frames(header):
        worker.receive(frame)
    journal = journal_path(tmp_path, header.batch_id, header.episode_id)
    assert worker.forget(header.episode_id)
    with file_lock(journal) as is_closed:
        assert not is_closed
    worker.lose("it was restarted")
    with file_lock(journal) as is_closed:
        assert is_closed
