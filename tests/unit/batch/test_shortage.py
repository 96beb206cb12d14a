"""Batches whose episodes run out of files, memory or threads."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.spec import BatchSpec, ResolvedBatch
from runner.batch.workspace import Workspace
from runner.errors import ConfigError
from runner.node import batch_player
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.store import episode_store
from runner.types import BatchProgress, Limits, Outcome
from runner.util.files import replace_file
from tests.conftest import Install
from tests.support.batches import place_spec, resolved_batch
from tests.support.fakes import Counter
from tests.support.waiting_batch import wait_until

REPEAT = 8


class Starving(Counter):
    """Raises ``error`` in each task from index 3 on."""

    error: BaseException | None = None

    def step(self, action: Any) -> Any:  # noqa: ANN401
        if self.task_index >= 3 and self.error is not None:
            raise self.error
        return super().step(action)


class Stuck(Counter):
    """No step ends: the first task blocks its thread, so its slot is lost; the others end with their time limit."""

    let_go = threading.Event()

    async def step(self, action: Any) -> Any:  # type: ignore[override]  # noqa: ANN401
        if self.task_index == 0:
            self.let_go.wait(60)
        await asyncio.Event().wait()


@pytest.fixture
def workspace(workspace: Workspace, install: Install) -> Iterator[Workspace]:
    envs = {name: f"{__name__}:{name}" for name in ("Starving", "Stuck")}
    install(envs=envs, agents={"up": "tests.support.fakes:UpAgent"})
    Stuck.let_go = threading.Event()
    yield workspace
    Starving.error = None
    Stuck.let_go.set()


def make_batch(workspace: Workspace, concurrency: int = 1, **rest: Any) -> Batch:  # noqa: ANN401
    spec = resolved_batch(env="Starving", agent="up", repeat=REPEAT, concurrency=concurrency)
    return Batch(spec, workspace, **rest)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(24, "Too many open files"), "no more open files (the limit is "),
        (MemoryError(), "no more memory; free memory, or lower the concurrency"),
    ],
)
def test_a_shortage_stores_an_error_and_interrupts_the_batch_which_then_plays_the_task_again(
    workspace: Workspace, error: BaseException, text: str
) -> None:
    Starving.error = error
    result = make_batch(workspace).run()
    assert (result.status, result.interrupted_by) == ("interrupted", "resources")
    assert (result.interruption or "").startswith(text)
    assert [episode.outcome for episode in result.episodes] == [Outcome.SUCCESS] * 3 + [Outcome.ERROR]
    stored = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert [record.error.type for record in stored if record.error] == ["resources"]
    Starving.error = None
    resumed = make_batch(workspace, 4, batch_id=result.batch_id, earlier_episodes=stored).run()
    assert (resumed.status, resumed.interruption, resumed.interrupted_by) == ("completed", None, None)
    assert sorted(episode.task_index for episode in resumed.episodes) == list(range(REPEAT))
    assert resumed.outcomes == {"success": REPEAT}


def test_an_episode_that_no_file_was_left_for_is_stored_from_the_spare_files(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Path] = []

    def fail_once(path: Path, data: bytes) -> None:
        if not failures:
            failures.append(path)
            raise OSError(24, "Too many open files")
        replace_file(path, data)

    monkeypatch.setattr(episode_store, "replace_file", fail_once)
    result = make_batch(workspace).run()
    assert (result.status, result.interrupted_by, result.problems) == ("interrupted", "resources", [])
    (episode,) = result.episodes
    assert failures == [workspace.store.path(result.batch_id, episode.episode_id)]
    assert workspace.store.load(episode.episode_id).outcome is Outcome.SUCCESS
    assert [path.suffix for path in failures[0].parent.iterdir()] == [".json"]


def test_an_episode_that_cannot_be_stored_from_the_spare_files_either_is_kept_in_memory(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(episode_store, "replace_file", fail)
    items: list[BatchItem] = []
    batch = make_batch(workspace, observers=[items.append])
    result = batch.run()
    assert (result.status, result.interrupted_by, len(result.problems)) == ("interrupted", "resources", 1)
    (unstored,) = batch.unstored
    assert [unstored.stored.record.episode_id] == [episode.episode_id for episode in result.episodes]
    assert unstored.stored.end.outcome is Outcome.SUCCESS
    assert not any(isinstance(item, EpisodeStored) for item in items), "the end was shown before it was stored"


@pytest.mark.parametrize(("error_number", "n_done"), [(24, 1), (28, REPEAT)])
def test_a_node_stores_what_it_could_not_store_and_continues_only_after_a_full_disk(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error_number: int, n_done: int
) -> None:
    frees = threading.Event()

    def fail_during_the_batch(path: Path, data: bytes) -> None:
        if not frees.is_set():
            raise OSError(error_number, "no room")
        replace_file(path, data)

    ends: dict[str, Outcome] = {}
    n_done_unstored: list[int] = []

    def on_item(item: BatchItem) -> None:
        if isinstance(item, EpisodeStored):
            assert workspace.store.path(queued.batch_id, item.end.episode_id).exists()
            ends[item.end.episode_id] = item.end.outcome
        if isinstance(item, BatchProgress) and item.interrupted and not frees.is_set():
            n_done_unstored.append(item.n_done)
            frees.set()

    monkeypatch.setattr(episode_store, "replace_file", fail_during_the_batch)
    spec = BatchSpec(env="Starving", agent="up", repeat=REPEAT)
    queued = QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=spec)
    batches = BatchQueue(workspace.data_dir)
    batches.add(queued)
    callbacks = BatchCallbacks(on_item=on_item, on_result=lambda _: None, on_busy=lambda _: None)
    runner = BatchPlayer(workspace, batches, callbacks, place=place_spec)
    runner.start()
    status = "completed" if n_done == REPEAT else "interrupted"
    wait_until(lambda: (found := batches.get(queued.batch_id)) is not None and found.status == status)
    runner.stop()
    assert runner.join(10)
    ended = batches.get(queued.batch_id)
    assert ended is not None and ended.n_done == n_done
    workspace.index.reconcile()
    assert workspace.n_finished(queued.batch_id) == n_done
    assert list(ends.values()) == [Outcome.SUCCESS] * n_done
    assert n_done_unstored == [0]


def test_the_reasons_of_interruptions_are_kept_and_reported(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str | None] = []

    def on_item(item: BatchItem) -> None:
        reported.extend([item.interruption] if isinstance(item, BatchProgress) else [])

    def refuse(spec: BatchSpec) -> ResolvedBatch:
        raise ConfigError(f"task {spec.task_index} has no server\x1b")

    specs = [BatchSpec(env="Starving", agent="up", task_index=index) for index in range(3)]
    queued = [QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=spec) for spec in specs]
    batches = BatchQueue(workspace.data_dir)
    batches.add(*queued)
    callbacks = BatchCallbacks(on_item=on_item, on_result=lambda _: None, on_busy=lambda _: None)
    monkeypatch.setattr(batch_player, "RETRY_S", 0.01)
    runner = BatchPlayer(workspace, batches, callbacks, place=refuse)
    runner.start()
    wait_until(lambda: len(reported) == 3)
    runner.stop()
    assert runner.join(10)
    assert reported == [f"task {index} has no server␛" for index in range(3)]
    assert [batch.interruption for batch in BatchQueue(workspace.data_dir).with_status("interrupted")] == reported


def fail_from(n_started: int, error: BaseException) -> Callable[[threading.Thread], None]:
    """Return a replacement of ``Thread.start`` that fails for all threads of episodes but the first ones."""
    start = threading.Thread.start
    numbers = itertools.count()

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "episode" and next(numbers) >= n_started:
            raise error
        return start(thread)

    return start_or_fail


@pytest.mark.parametrize(
    ("n_started", "n_kept", "status"), [(3, 1, "completed"), (1, 1, "completed"), (0, 0, "interrupted")]
)
def test_a_batch_plays_with_a_third_of_the_workers_that_the_system_starts(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    n_started: int,
    n_kept: int,
    status: str,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", fail_from(n_started, RuntimeError("can't start new thread")))
    n_before = len(list(Path("/dev/fd").iterdir()))
    result = make_batch(workspace, 4).run()
    assert (result.status, result.n_episodes) == (status, REPEAT if n_started else 0)
    assert f"concurrency lowered from 4 to {n_kept}: no more threads; raise the limits" in caplog.text
    if not n_started:
        assert (result.interruption or "").startswith("concurrency lowered from 4 to 0: no more threads")
        assert len(list(Path("/dev/fd").iterdir())) == n_before


def test_a_lost_slot_that_cannot_be_replaced_ends_the_batch_while_others_play(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threading.Thread, "start", fail_from(3, RuntimeError("can't start new thread")))
    limits = Limits(max_duration_s=0.3)
    spec = resolved_batch(env="Stuck", agent="up", repeat=200, concurrency=3, limits=limits)
    result = Batch(spec, workspace, grace_s=0.2, step_grace_s=0.05).run()
    assert (result.status, result.interrupted_by) == ("interrupted", "resources")
    text = r"(a lost slot|\d lost slots) could not be replaced: no more threads; raise the limits"
    assert re.match(text, result.interruption or "")
    assert re.search(text, caplog.text)
    assert "concurrency lowered" not in caplog.text
