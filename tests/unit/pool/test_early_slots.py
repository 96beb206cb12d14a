"""A worker plays its next episode while the ended one is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner.batch.workspace import Workspace
from runner.store import EpisodeRecord, EpisodeStore
from runner.store.parts import Ended
from runner.types import Outcome
from runner.worker.frames import Command, Play
from tests.support.fake_pools import DEADLINE_S, PooledBatch
from tests.support.fake_worker import FakeWorker, episode_frames
from tests.support.waiting_batch import wait_until

SHORT_S = 0.2
"""Seconds in which something that must not happen would have happened."""


class Plays:
    """The episodes that a scripted worker was sent; it ends each with the outcome of its task."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = outcomes
        self._changed = threading.Condition()
        self._tasks: list[int] = []
        self.commands: list[Command] = []
        self.may_end = threading.Event()
        self.may_end.set()

    def run(self, worker: FakeWorker) -> None:
        worker.greet()
        while (frame := worker.read()) is not None:
            if isinstance(frame, Play):
                self._end(worker, frame)
            elif isinstance(frame, Command):
                self.commands.append(frame)

    def wait_for(self, n_tasks: int, timeout_s: float = DEADLINE_S) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self._tasks) == n_tasks, timeout_s)

    def _end(self, worker: FakeWorker, play: Play) -> None:
        with self._changed:
            self._tasks.append(play.header.task_index)
            self._changed.notify_all()
        *opening, ended, free = episode_frames(play.header)
        assert isinstance(ended, Ended)
        outcome = self._outcomes[play.header.task_index]
        end = msgspec.structs.replace(ended, outcome=outcome, success=outcome is Outcome.SUCCESS)
        if play.header.task_index:
            assert self.may_end.wait(DEADLINE_S)
        worker.send(*opening, end, free)


@pytest.fixture
def may_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return the event before which no episode is stored."""
    event, save = threading.Event(), EpisodeStore.save

    def save_later(store: EpisodeStore, record: EpisodeRecord) -> Path:
        assert event.wait(DEADLINE_S)
        return save(store, record)

    monkeypatch.setattr(EpisodeStore, "save", save_later)
    yield event
    event.set()


@pytest.mark.parametrize("first", [Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED])
def test_a_slot_plays_its_next_episode_while_one_is_stored(
    workspace: Workspace, may_store: threading.Event, first: Outcome
) -> None:
    plays = Plays(first, Outcome.SUCCESS, Outcome.SUCCESS)
    batch = PooledBatch(workspace, plays.run, repeat=3, concurrency=1)
    batch.start()
    assert plays.wait_for(2)
    assert not plays.wait_for(3, SHORT_S)
    assert batch.reported == []
    may_store.set()
    result = batch.result()
    assert (result.status, result.n_episodes, result.problems) == ("completed", 3, [])
    assert len(batch.stored()) == len(batch.reported) == 3


@pytest.mark.parametrize("first", [Outcome.ERROR, Outcome.TIMEOUT])
def test_no_episode_starts_before_an_error_is_stored(
    workspace: Workspace, may_store: threading.Event, first: Outcome
) -> None:
    plays = Plays(first, Outcome.SUCCESS)
    batch = PooledBatch(workspace, plays.run, repeat=2, concurrency=1)
    batch.start()
    assert plays.wait_for(1)
    assert not plays.wait_for(2, SHORT_S)
    may_store.set()
    assert batch.result().status == "completed"


def test_a_write_that_hangs_leaves_the_next_episode_of_the_slot_alone(
    workspace: Workspace, may_store: threading.Event
) -> None:
    plays = Plays(Outcome.SUCCESS, Outcome.SUCCESS)
    plays.may_end.clear()
    batch = PooledBatch(workspace, plays.run, repeat=2, concurrency=1, grace_s=0.1)
    batch.start()
    assert plays.wait_for(2)
    batch.batch.command("cancel", min(batch.batch.episode_ids))
    wait_until(lambda: len(batch.batch.episode_ids) == 1)  # the write was given up
    plays.may_end.set()
    may_store.set()
    result = batch.result()
    assert result.outcomes == {"success": 2}
    assert [command.name for command in plays.commands if command.name == "stop"] == []
    assert len(batch.processes.started) == 1
