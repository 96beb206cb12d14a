"""Batches from spec to result: episodes, commands, deadlines and observers."""

import gc
import itertools
import json
import os
import queue
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.result import BatchResult
from runner.batch.spec import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.errors import ConfigError
from runner.events.live import EpisodeEnded, EpisodeStarted, LiveItem, SpanClosed, Timestep
from runner.results.statistics import wilson_interval
from runner.store import EpisodeRecord
from runner.types import BatchProgress, Chat, EpisodePaused, Limits, Outcome, Tokens
from tests.conftest import Install
from tests.support.batch_items import live_items
from tests.support.batches import resolved_batch
from tests.support.fakes import AsyncHanging, Counter, Gated
from tests.support.perfetto import all_slices

FAKES = {
    name: f"tests.support.fakes:{name}" for name in ("Counter", "FailingStep", "Gated", "AsyncHanging", "Evaluated")
}
FAKES |= {name: f"tests.support.fakes:{name}" for name in ("Panicking", "Interrupting", "StrayExit", "FailingOddTasks")}
FAKES["Forking"] = f"{__name__}:Forking"
FAKES["FailingHangingCleanup"] = "tests.support.fakes:FailingHangingCleanup"


class Forking(Counter):
    """Forks in its reset; its cleanup waits for that process, and notes how it has ended."""

    statuses: ClassVar[list[int]] = []

    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        self.child = os.fork()
        return super().reset(**kwargs)

    def cleanup(self) -> None:
        killer = threading.Timer(20, os.kill, (self.child, signal.SIGKILL))
        killer.start()
        self.statuses.append(os.waitpid(self.child, 0)[1])
        killer.cancel()


@pytest.fixture
def workspace(workspace: Workspace, install: Install) -> Iterator[Workspace]:
    install(envs=FAKES, agents={"up": "tests.support.fakes:UpAgent"})
    Gated.reset_gate()
    yield workspace
    Gated.reset_gate()


class BatchThread:
    """A batch running on a thread of its own, as in a node."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.results: list[BatchResult] = []
        self._thread = threading.Thread(target=lambda: self.results.append(batch.run()), daemon=True)
        self._thread.start()

    def result(self) -> BatchResult:
        self._thread.join(30)
        assert self.results, "the batch did not end"
        return self.results[0]


def load_episodes(workspace: Workspace, result: BatchResult) -> list[EpisodeRecord]:
    return [workspace.store.load(episode.episode_id) for episode in result.episodes]


def spec(env: str = "Counter", **rest: Any) -> ResolvedBatch:  # noqa: ANN401
    return resolved_batch(env=env, agent="up", **rest)


def test_a_process_that_an_environment_forks_does_not_go_on_with_the_episode(workspace: Workspace) -> None:
    result = Batch(spec("Forking"), workspace).run()
    assert (result.outcomes, Forking.statuses) == ({"success": 1}, [0])


def test_each_of_repeat_tasks_is_played_attempts_times(workspace: Workspace) -> None:
    result = Batch(spec(repeat=3, attempts=2, task_index=5, seed=40), workspace).run()
    records = load_episodes(workspace, result)
    episodes = [(record.task_index, record.attempt, record.seed) for record in records]
    assert episodes == [(5, 0, 40), (5, 1, 41), (6, 0, 40), (6, 1, 41), (7, 0, 40), (7, 1, 41)]
    assert result.status == "completed"
    assert (result.n_episodes, result.n_planned, result.success_rate, result.mean_reward) == (6, 6, 1.0, 1.0)
    assert result.success_interval is not None
    assert 0.5 < result.success_interval[0] < result.success_interval[1] <= 1.0
    with closing(sqlite3.connect(workspace.data_dir / "index.sqlite")) as of_another_process:
        assert of_another_process.execute("SELECT count(*) FROM episodes").fetchone() == (6,)


def test_episode_files_record_the_episode_and_its_origin(workspace: Workspace) -> None:
    result = Batch(spec(), workspace, battery_id="01JZZZZZZZZZZZZZZZZZZZZZZZ").run()
    (record,) = load_episodes(workspace, result)
    assert (record.env, record.agent, record.node, record.profile, record.transport) == (
        "Counter",
        "up",
        "test",
        "p1",
        "embedded",
    )
    assert record.battery_id == "01JZZZZZZZZZZZZZZZZZZZZZZZ"
    assert record.env_episode_id == "../counter\x1b[2J/0"
    assert [step.observation[0]["content"] for step in record.timesteps] == ["at 1", "at 2", "at 3"]
    assert {span.name for span in record.spans} >= {"episode", "timestep", "agent.act", "env.step", "cleanup"}
    path = workspace.data_dir / "runs" / result.batch_id / f"{record.episode_id}.json"
    assert json.loads(path.read_bytes())["schema"] == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    slices = all_slices(workspace.data_dir / "traces" / f"{result.batch_id}.pftrace")
    assert sorted(each.name for each in slices) == sorted(span.name for span in record.spans)


def test_frozen_objects_are_counted_once_in_a_batch(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Mock(wraps=gc.get_freeze_count)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    assert Batch(spec(repeat=3), workspace).run().outcomes == {"success": 3}
    count.assert_called_once_with()


@pytest.mark.parametrize("was_frozen", [False, True])
def test_a_batch_exempts_objects_from_garbage_collections_until_its_end(workspace: Workspace, was_frozen: bool) -> None:
    gc.unfreeze()  # the tests have exempted all objects
    if was_frozen:
        gc.freeze()
    counts: list[int] = []
    try:
        Batch(spec(repeat=2), workspace, on_record=lambda record: counts.append(gc.get_freeze_count())).run()
        assert min(counts) > 0
        assert (gc.get_freeze_count() > 0) == was_frozen
    finally:
        gc.freeze()


def test_errors_are_counted_apart_and_not_played_again(workspace: Workspace) -> None:
    items: list[BatchItem] = []
    result = Batch(spec("FailingOddTasks", repeat=12), workspace, observers=[items.append]).run()
    assert result.outcomes == {"success": 6, "error": 6}
    assert (result.n_episodes, result.n_rated, result.n_success, result.n_errors) == (12, 6, 6, 6)
    assert (result.success_rate, result.mean_reward, result.mean_rounds) == (1.0, 1.0, 3.0)
    assert result.success_interval == wilson_interval(6, 6)
    last = [item for item in items if isinstance(item, BatchProgress)][-1]
    assert (last.n_done, last.n_rated, last.n_success, last.errors, last.mean_reward) == (12, 6, 6, 6, 1.0)
    earlier = load_episodes(workspace, result)
    resumed = Batch(spec("FailingOddTasks", repeat=13), workspace, earlier_episodes=earlier).run()
    assert [episode.task_index for episode in resumed.episodes[12:]] == [12]
    assert (resumed.n_rated, resumed.n_errors, resumed.success_rate) == (7, 6, 1.0)


def test_episodes_run_concurrently_on_separate_workers(workspace: Workspace) -> None:
    batch_thread = BatchThread(Batch(spec("Gated", repeat=4, concurrency=3), workspace))
    for _ in range(3):
        assert Gated.entered.acquire(timeout=10)
    assert not Gated.entered.acquire(timeout=0.1)  # no worker is free for the fourth
    Gated.gate.release(12)
    result = batch_thread.result()
    assert result.outcomes == {"success": 4}
    tracks = {span.track for record in load_episodes(workspace, result) for span in record.spans}
    assert tracks == {"slot 0", "slot 1", "slot 2"}


def test_an_unresponsive_episode_is_stored_as_timeout_from_its_journal(workspace: Workspace) -> None:
    stuck = spec("Gated", repeat=2, limits=Limits(max_duration_s=0.3))
    batch_thread = BatchThread(Batch(stuck, workspace, grace_s=0.2))
    assert Gated.entered.acquire(timeout=10)
    Gated.gate.release()  # one step of the first episode
    result = batch_thread.result()
    first, second = load_episodes(workspace, result)
    assert (first.outcome, first.rounds) == (Outcome.TIMEOUT, 1)
    assert (second.outcome, second.rounds) == (Outcome.TIMEOUT, 0)
    assert first.error is not None
    assert first.error.type == "slot_abandoned"
    before = (workspace.data_dir / "runs" / result.batch_id / f"{first.episode_id}.json").read_bytes()
    Gated.gate.release(10)  # the abandoned threads resume and must not write anything
    assert workspace.store.load(first.episode_id).rounds == 1
    assert (workspace.data_dir / "runs" / result.batch_id / f"{first.episode_id}.json").read_bytes() == before


def test_an_error_is_kept_if_the_episode_is_abandoned_during_its_cleanup(workspace: Workspace) -> None:
    failing = spec("FailingHangingCleanup", limits=Limits(max_duration_s=0.3))
    batch_thread = BatchThread(Batch(failing, workspace, grace_s=0.2))
    assert batch_thread.result().outcomes == {"error": 1}
    (record,) = load_episodes(workspace, batch_thread.results[0])
    assert record.error is not None
    assert record.error.message == "broke at one"


def test_cancelled_episodes_are_stored_but_not_counted_in_rates(workspace: Workspace) -> None:
    batch_thread = BatchThread(Batch(spec("Gated", repeat=5), workspace))
    for _ in range(3):
        assert Gated.entered.acquire(timeout=10)
        Gated.gate.release()
    assert Gated.entered.acquire(timeout=10)  # the second episode's first step
    batch_thread.batch.command("cancel")
    (episode,) = batch_thread.batch._running.values()
    while episode.control.cancel_outcome is None:
        time.sleep(0.001)
    Gated.gate.release()
    result = batch_thread.result()
    assert result.status == "cancelled"
    assert result.outcomes == {"success": 1, "cancelled": 1}
    assert (result.success_rate, result.n_episodes, result.n_planned) == (1.0, 2, 5)


def test_cancel_ends_an_await_that_never_returns(workspace: Workspace) -> None:
    while AsyncHanging.entered.acquire(blocking=False):
        pass  # other tests have entered it
    batch_thread = BatchThread(Batch(spec("AsyncHanging"), workspace, step_grace_s=0.05))
    assert AsyncHanging.entered.acquire(timeout=10)
    Counter.closed.clear()
    batch_thread.batch.command("cancel")
    assert batch_thread.result().outcomes == {"cancelled": 1}
    assert Counter.closed == ["AsyncHanging"]


def test_abort_abandons_a_blocked_step_immediately(workspace: Workspace) -> None:
    batch_thread = BatchThread(Batch(spec("Gated", repeat=3), workspace))
    assert Gated.entered.acquire(timeout=10)
    batch_thread.batch.command("abort")
    result = batch_thread.result()
    assert (result.status, result.outcomes) == ("cancelled", {"cancelled": 1})
    assert result.episodes[0].error == "slot_abandoned: The episode was abandoned immediately, in the middle of a step"
    Gated.gate.release(3)


def test_cancel_abandons_a_blocked_step_after_the_grace_period(workspace: Workspace) -> None:
    batch_thread = BatchThread(Batch(spec("Gated"), workspace, grace_s=0.05, step_grace_s=0.05))
    assert Gated.entered.acquire(timeout=10)
    batch_thread.batch.command("cancel")
    (episode,) = batch_thread.result().episodes
    assert episode.error is not None
    assert "was cancelled and did not end within 0." in episode.error
    Gated.gate.release()


def test_pause_and_resume_apply_to_all_running_episodes(workspace: Workspace) -> None:
    paused: queue.Queue[BatchItem] = queue.Queue()
    timesteps: list[LiveItem] = []
    reported: list[bool | None] = []

    def observe(item: BatchItem) -> None:
        if isinstance(item, BatchProgress):
            reported.append(item.paused)
        if isinstance(item, EpisodePaused):
            paused.put(item)
        timesteps.extend(each for each in live_items(item) if isinstance(each, Timestep))

    batch = Batch(spec("Gated", repeat=2, concurrency=2), workspace, observers=[observe])
    batch.command("pause")
    batch_thread = BatchThread(batch)
    for _ in range(2):
        paused.get(timeout=10)
    assert timesteps == []
    batch_thread.batch.command("step")
    Gated.gate.release(2)
    for _ in range(2):
        paused.get(timeout=10)
    assert len(timesteps) == 2
    batch_thread.batch.command("resume")
    Gated.gate.release(4)
    assert batch_thread.result().outcomes == {"success": 2}
    assert reported == [True, True, False, False, False]


def test_observers_receive_every_event_and_cannot_fail_the_batch(workspace: Workspace) -> None:
    received: list[BatchItem] = []

    def raising(item: BatchItem) -> None:
        raise RuntimeError("observer")

    result = Batch(spec(repeat=2), workspace, observers=[received.append, raising]).run()
    assert result.outcomes == {"success": 2}
    items = [live for item in received for live in live_items(item)]
    kinds = [kind for kind, _ in itertools.groupby(map(type, items))]
    one_episode = [EpisodeStarted, *[Timestep, SpanClosed] * 3, EpisodeEnded]
    assert kinds == [*one_episode, BatchProgress, *one_episode, BatchProgress]
    end = next(n for n, item in enumerate(items) if isinstance(item, EpisodeEnded))
    first = [
        item for item in items[: end + 1] if isinstance(item, EpisodeStarted | Timestep | SpanClosed | EpisodeEnded)
    ]
    names = [item.span.name for item in first if isinstance(item, SpanClosed)]
    assert names[:3] == ["env.reset", "agent.init_after_reset", "get_tool_schemas"]
    assert names[-2:] == ["cleanup", "episode"]
    assert [item.seq for item in first] == list(range(end + 1))
    last = items[-1]
    assert isinstance(last, BatchProgress)
    assert (last.n_done, last.n_planned, last.n_success, last.mean_reward, last.eta_s) == (2, 2, 2, 1.0, 0.0)
    assert (last.tokens, last.cost) == (Tokens(), None)


def test_an_episode_that_cannot_be_stored_is_reported_as_a_problem(workspace: Workspace) -> None:
    runs = workspace.data_dir / "runs"
    batch = Batch(spec(), workspace)
    runs.mkdir(exist_ok=True)
    (runs / batch.batch_id).write_text("a file where the folder should be")
    result = batch.run()
    assert result.outcomes == {"success": 1}
    assert result.has_errors
    assert batch.batch_id in result.problems[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agent": "scripted"}, "give both or neither"),
        ({"script": ("a",)}, "give both or neither"),
        ({"env": "Contr"}, "Did you mean"),
    ],
)
def test_invalid_specs_are_rejected(workspace: Workspace, fields: dict[str, object], message: str) -> None:
    values: dict[str, Any] = {"env": "Counter", "agent": "up", **fields}
    with pytest.raises(ConfigError, match=message):
        resolved_batch(**values)


def test_script_texts_are_never_interpolated(workspace: Workspace) -> None:
    script = ("${oc.env:HOME}", "{_target_: os.system}", "up", "up", "up")
    result = Batch(resolved_batch(env="Counter", agent="scripted", script=script), workspace).run()
    (record,) = load_episodes(workspace, result)
    assert [step.action.text for step in record.timesteps] == list(script)
    assert [step.action.valid for step in record.timesteps] == [False, False, True, True, True]
    assert record.outcome is Outcome.SUCCESS


@pytest.mark.parametrize(
    ("env", "kind", "message"),
    [
        ("FailingStep", "ValueError", "broke at two [/]"),
        ("Panicking", "ForeignPanic", "index out of bounds"),
        ("Interrupting", "KeyboardInterrupt", ""),
    ],
)
def test_no_exception_of_an_environment_ends_a_worker(workspace: Workspace, env: str, kind: str, message: str) -> None:
    result = Batch(spec(env, repeat=2), workspace).run()
    assert (result.outcomes, result.has_errors, result.n_rated, result.n_errors) == ({"error": 2}, True, 0, 2)
    assert (result.success_rate, result.success_interval, result.mean_reward) == (None, None, None)
    errors = {(record.error.type, record.error.message) for record in load_episodes(workspace, result) if record.error}
    assert errors == {(kind, message)}


def test_an_exit_in_a_background_task_of_an_environment_is_reported_as_a_problem(workspace: Workspace) -> None:
    result = Batch(spec("StrayExit"), workspace).run()
    assert result.outcomes == {"success": 1}
    assert "SystemExit: 5" in result.problems[0]


def test_observers_cannot_modify_stored_episodes(workspace: Workspace) -> None:
    def modify(item: BatchItem) -> None:
        if isinstance(item, EpisodeStarted):
            item.env = "modified"
        elif isinstance(item, EpisodeStored):
            item.end.reward = item.record.reward = 7.0
            item.record.timesteps.clear()

    plain, modified = (
        load_episodes(workspace, Batch(spec(), workspace, observers=observers).run())[0] for observers in ([], [modify])
    )
    assert modified.reset_observation == plain.reset_observation != []
    assert modified.tool_schemas == plain.tool_schemas
    assert (modified.env, modified.reward, modified.rounds) == ("Counter", 1.0, 3)
    for one, other in zip(plain.timesteps, modified.timesteps, strict=True):
        assert (one.chats, one.observation) == (other.chats, other.observation)
