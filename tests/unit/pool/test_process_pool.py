"""Batches over worker processes: play, loss in every way, what is played again, hung episodes and commands."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from runner.batch.observers import EpisodeStored
from runner.batch.result import BatchStats, split_plan
from runner.batch.workspace import Workspace
from runner.events.live import EpisodeStarted
from runner.pool.worker import Worker
from runner.store import EpisodeRecord, EpisodeStore
from runner.store.journal import EpisodeJournal, journal_path
from runner.store.parts import Decided, Ended, Free, Part
from runner.types import BatchProgress, ErrorInfo, Limits, Outcome, Tokens, WorkerCounts
from runner.util.files import TEMPORARY_SUFFIX, file_lock
from runner.worker.frames import Command, Play, Watch, WorkerFrame, encode_frame
from tests.support.episodes import episode_header
from tests.support.fake_pools import DEADLINE_S, TIMINGS, PooledBatch
from tests.support.fake_worker import FakeWorker, Script, episode_frames, opening_frames, step_frame
from tests.support.waiting_batch import wait_until

START_FAST = msgspec.structs.replace(TIMINGS, hello_s=0.2)


play_all = FakeWorker.play_all


def after_one_step(end: Script) -> Script:
    """Return a script that plays one step of its first episode and then ``end``."""
    return once(lambda play: [*opening_frames(play.header), step_frame(play.header, 0)], end)


def each_time(answer: Callable[[Play], Sequence[WorkerFrame]]) -> Script:
    """Return a script that answers each play."""

    def play(worker: FakeWorker) -> None:
        worker.greet()
        while (play := worker.read_play()) is not None:
            worker.send(*answer(play))

    return play


def once(answer: Callable[[Play], Sequence[WorkerFrame]], end: Script = lambda worker: None) -> Script:
    """Return a script that answers its first play and then ``end``."""

    def play(worker: FakeWorker) -> None:
        worker.greet()
        if (first := worker.read_play()) is not None:  # else the batch has ended before
            worker.send(*answer(first))
            end(worker)

    return play


def send_half_a_step(worker: FakeWorker) -> None:
    plays = [frame for frame in worker.received if isinstance(frame, Play)]
    data = encode_frame(step_frame(plays[0].header, 1))
    worker.sock.sendall((len(data).to_bytes(4, "big") + data)[: len(data) // 2])


def send_raw(data: bytes) -> Script:
    def send(worker: FakeWorker) -> None:
        worker.sock.sendall(data)
        worker.read()

    return send


def send_step(**changes: object) -> Script:
    """Return a script that sends a step that differs from a valid one in its encoded part."""

    def send(worker: FakeWorker) -> None:
        plays = [frame for frame in worker.received if isinstance(frame, Play)]
        worker.send(msgspec.structs.replace(step_frame(plays[0].header, 1), **changes))
        worker.read()

    return send


def close(worker: FakeWorker) -> None:
    pass


def hang(worker: FakeWorker) -> None:
    while worker.read() is not None:
        pass


def test_a_batch_plays_over_two_workers(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, play_all, n_workers=2, repeat=10)
    result = batch.result()
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": 10}, [])
    assert (result.mean_reward, result.mean_rounds) == (0.75, 3.0)
    stored = batch.stored()
    assert [record.task_index for record in stored] == list(range(10))
    assert {record.worker.id for record in stored if record.worker} == {"worker 0", "worker 1"}
    assert {record.episode_id for record in batch.reported} == {record.episode_id for record in stored}
    assert stored[0].timesteps[1].observation == [{"role": "user", "content": "observation 2"}]
    assert len(batch.processes.started) == 2


@pytest.mark.parametrize(
    "end",
    [
        close,
        send_half_a_step,
        send_raw(b"\xff\xff\xff\xff"),
        send_raw(b"\0\0\0\x05hello"),
        send_step(data=b'{"index":1}\n{}'),
        send_step(data=b""),
    ],
    ids=["ends", "torn frame", "endless frame", "garbage", "two lines", "no object"],
)
def test_a_lost_worker_costs_its_episodes_which_are_played_again(workspace: Workspace, end: Script) -> None:
    batch = PooledBatch(workspace, after_one_step(end), play_all, repeat=4, concurrency=2)
    result = batch.result()
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": 4}, [])
    assert (result.n_episodes, result.mean_rounds) == (4, 3.0)
    lost, *finished = batch.stored()
    assert (lost.outcome, lost.rounds, lost.task_index) == (Outcome.INTERRUPTED, 1, 0)
    assert lost.error is not None
    assert lost.error.type == "worker_lost"
    assert lost.error.message.startswith("worker 0 was lost: it")
    assert sorted(record.task_index for record in finished) == [0, 1, 2, 3]
    assert Counter(record.episode_id for record in batch.reported) == Counter(
        record.episode_id for record in [lost, *finished]
    )
    ended = [item.end.episode_id for item in batch.items if isinstance(item, EpisodeStored)]
    assert sorted(ended) == sorted(record.episode_id for record in [lost, *finished])
    progress = [item for item in batch.items if isinstance(item, BatchProgress)]
    assert [progress[-1].n_done, max(item.n_done for item in progress)] == [4, 4]
    assert result.workers is not None
    assert result.workers.lost == 1


def test_an_episode_is_played_again_twice_and_then_stays_interrupted(workspace: Workspace) -> None:
    def die_in_task_1(worker: FakeWorker) -> None:
        worker.greet()
        while (play := worker.read_play()) is not None:
            if play.header.task_index == 1:
                worker.send(*opening_frames(play.header))
                return
            worker.send(*episode_frames(play.header))

    batch = PooledBatch(workspace, die_in_task_1, repeat=4, concurrency=1)
    result = batch.result()
    assert (result.status, result.interrupted_by) == ("interrupted", "workers")
    assert result.outcomes == {"success": 3, "interrupted": 1}
    assert (result.interruption or "").startswith(
        "1 episode was interrupted with a lost worker; the last one: worker 2"
    )
    assert Counter((record.task_index, record.outcome.value) for record in batch.stored()) == Counter(
        {(0, "success"): 1, (1, "interrupted"): 3, (2, "success"): 1, (3, "success"): 1}
    )


def test_lost_episodes_stay_interrupted_if_the_batch_says_so(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, after_one_step(close), play_all, repeat=3, concurrency=1, lost_episodes="interrupt")
    result = batch.result()
    assert (result.status, result.outcomes) == ("interrupted", {"success": 2, "interrupted": 1})


def test_an_episode_that_was_decided_before_the_loss_keeps_its_outcome(workspace: Workspace) -> None:
    def decide(play: Play) -> list[WorkerFrame]:
        decided = Decided(episode_id=play.header.episode_id, outcome=Outcome.ERROR, error=error)
        return [*opening_frames(play.header), decided]

    error = ErrorInfo("oops", "it failed", "")
    batch = PooledBatch(workspace, once(decide), play_all, repeat=1)
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"error": 1})
    (record,) = batch.stored()
    assert record.error == error


def test_an_episode_that_ended_before_the_loss_is_not_played_again(workspace: Workspace) -> None:
    without_free = once(lambda play: episode_frames(play.header)[:-1])
    batch = PooledBatch(workspace, without_free, play_all, repeat=2, concurrency=1)
    assert batch.result().outcomes == {"success": 2}
    assert len(batch.stored()) == 2


@pytest.mark.parametrize("first", [hang, close], ids=["silent", "ends at once"])
def test_a_process_that_does_not_start_is_started_again_without_loss(workspace: Workspace, first: Script) -> None:
    batch = PooledBatch(workspace, first, first, play_all, timings=START_FAST)
    assert batch.result().outcomes == {"success": 4}
    assert len(batch.processes.started) == 3
    assert [record.outcome for record in batch.stored()] == [Outcome.SUCCESS] * 4


def test_a_batch_whose_workers_never_start_is_interrupted_with_the_reason(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, close, timings=START_FAST)
    result = batch.result()
    assert (result.status, result.interrupted_by, result.n_episodes) == ("interrupted", "workers", 0)
    assert (result.interruption or "").startswith("worker 0 does not start: its process (pid ")
    assert len(batch.processes.started) == 4
    assert batch.stored() == []


def test_a_worker_that_dies_before_every_episode_is_not_replaced_for_ever(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, once(lambda play: []), repeat=50)
    result = batch.result()
    assert (result.status, result.interrupted_by) == ("interrupted", "workers")
    assert len(batch.processes.started) <= 5


def test_a_worker_that_reads_nothing_is_lost(workspace: Workspace) -> None:
    def greet_only(worker: FakeWorker) -> None:
        worker.greet()
        blocked.set()
        ended.wait(60)

    blocked, ended = threading.Event(), threading.Event()
    timings = msgspec.structs.replace(TIMINGS, stalled_s=0.1)
    batch = PooledBatch(workspace, greet_only, play_all, repeat=2, concurrency=1, timings=timings)
    batch.start()
    assert blocked.wait(60)
    while len(batch.processes.started) == 1:
        for watched in (False, True):
            batch.pool.watch(Watch(steps=True, tokens=watched))
    ended.set()
    assert batch.result().outcomes == {"success": 2}


def test_hung_episodes_are_timeouts_and_their_worker_is_replaced(workspace: Workspace) -> None:
    def hang_in_two(worker: FakeWorker) -> None:
        worker.greet()
        for n_steps in (1, 0):
            play = worker.read_play()
            assert play is not None
            worker.send(*opening_frames(play.header), *(step_frame(play.header, index) for index in range(n_steps)))
        hang(worker)

    limits = Limits(max_duration_s=1.5)
    batch = PooledBatch(workspace, hang_in_two, play_all, repeat=4, limits=limits, grace_s=0.5)
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"timeout": 2, "success": 2})
    assert len(batch.processes.started) == 2
    hung = [record for record in batch.stored() if record.outcome is Outcome.TIMEOUT]
    assert [record.rounds for record in hung] == [1, 0]
    assert {record.error.type for record in hung if record.error} == {"slot_abandoned"}


def test_the_other_episodes_of_a_hung_worker_end_or_are_lost_after_a_while(workspace: Workspace) -> None:
    def hang_in_task_0(worker: FakeWorker) -> None:
        worker.greet()
        plays = [worker.read_play() for _ in range(3)]
        for play in plays:
            assert play is not None
            worker.send(*opening_frames(play.header))
        hang(worker)

    timings = msgspec.structs.replace(TIMINGS, hung_s=0.2)
    batch = PooledBatch(workspace, hang_in_task_0, play_all, repeat=3, concurrency=3, timings=timings)
    batch.start()
    wait_until(lambda: sum(isinstance(item, EpisodeStarted) for item in batch.items) == 3)
    first = next(iter(batch.batch.episode_ids))
    batch.batch.command("abort", first)
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"cancelled": 1, "success": 2})
    errors = [record.error for record in batch.stored() if record.outcome is Outcome.INTERRUPTED]
    assert [error.message.partition(",")[0] for error in errors if error] == [
        "worker 0 was lost: an episode hung in it"
    ] * 2


def test_commands_reach_the_worker(workspace: Workspace) -> None:
    names: list[str] = []
    started = threading.Event()

    def obey(worker: FakeWorker) -> None:
        worker.greet()
        while (frame := worker.read()) is not None:
            frames: list[WorkerFrame] = []
            if isinstance(frame, Play):
                header = frame.header
                frames = opening_frames(header)
                started.set()
            elif isinstance(frame, Command):
                names.append(frame.name)
                if frame.name == "cancel":
                    ended = episode_frames(header)[-2]
                    assert isinstance(ended, Ended)
                    end = msgspec.structs.replace(ended, outcome=frame.outcome, success=False)
                    frames = [end, Free(episode_id=header.episode_id)]
            worker.send(*frames)

    batch = PooledBatch(workspace, obey, repeat=3, concurrency=1)
    batch.start()
    assert started.wait(60)
    for name in ("pause", "step", "resume", "interrupt"):
        batch.batch.command(name)
    result = batch.result()
    assert (result.status, result.outcomes) == ("interrupted", {"interrupted": 1})
    assert names == ["pause", "step", "resume", "cancel"]


def test_a_shortage_in_a_worker_interrupts_the_batch(workspace: Workspace) -> None:
    def run_out(play: Play) -> list[WorkerFrame]:
        frames = episode_frames(play.header)
        decided = Decided(episode_id=play.header.episode_id, outcome=Outcome.ERROR, shortage="open files")
        return [*frames[:2], decided, *frames[-2:]]

    result = PooledBatch(workspace, each_time(run_out), repeat=9, concurrency=1).result()
    assert (result.status, result.interrupted_by, result.n_episodes) == ("interrupted", "resources", 1)
    assert (result.interruption or "").startswith("no more open files (the limit is ")


def test_an_exception_outside_the_agent_is_a_problem(workspace: Workspace) -> None:
    def report(play: Play) -> list[WorkerFrame]:
        return [*episode_frames(play.header)[:-1], Free(episode_id=play.header.episode_id, problem="SystemExit: 5")]

    result = PooledBatch(workspace, each_time(report), repeat=1).result()
    assert result.outcomes == {"success": 1}
    assert "SystemExit: 5" in result.problems[0]


def test_a_batch_whose_workers_cannot_start_episodes_is_interrupted(workspace: Workspace) -> None:
    problem = "config_error: Counter cannot be loaded"
    refuse = each_time(lambda play: [Free(episode_id=play.header.episode_id, problem=problem)])
    result = PooledBatch(workspace, refuse, repeat=9).result()
    assert (result.status, result.interrupted_by, result.n_episodes) == ("interrupted", "workers", 0)
    assert result.interruption == f"worker 0 cannot start episodes: {problem}"


def test_an_episode_whose_end_cannot_be_sent_is_stored_as_an_error(workspace: Workspace) -> None:
    def fail(play: Play) -> list[WorkerFrame]:
        free = Free(episode_id=play.header.episode_id, problem="frame_too_large: a frame of 300 MiB")
        return [*opening_frames(play.header), step_frame(play.header, 0), free]

    batch = PooledBatch(workspace, each_time(fail), repeat=3)
    result = batch.result()
    assert (result.status, result.outcomes) == ("completed", {"error": 3})
    assert [len(record.timesteps) for record in batch.stored()] == [1, 1, 1]
    error = batch.stored()[0].error
    assert error is not None
    assert (error.type, error.message) == ("worker_problem", "frame_too_large: a frame of 300 MiB")


def test_a_batch_without_a_thread_for_its_worker_is_interrupted(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_no_worker(thread: threading.Thread) -> None:
        if thread.name.startswith("worker"):
            raise RuntimeError("can't start new thread")
        start(thread)

    batch = PooledBatch(workspace, play_all)
    monkeypatch.setattr(threading.Thread, "start", start_no_worker)
    result = batch.result()
    assert (result.status, result.interrupted_by, result.n_episodes) == ("interrupted", "workers", 0)
    assert (result.interruption or "").startswith("worker 0 cannot be started: no more threads")


@pytest.mark.parametrize("n_sent", [0, 1, 2, 3])
def test_a_lost_worker_whose_journal_has_more_than_it_has_sent_loses_no_step(workspace: Workspace, n_sent: int) -> None:
    """``n_sent`` is the number of parts that arrive, of start, reset and two steps."""

    def write_all_and_send_some(play: Play) -> list[WorkerFrame]:
        journal = EpisodeJournal(workspace.store.runs, play.header)
        parts: list[WorkerFrame] = [*opening_frames(play.header), *(step_frame(play.header, index) for index in (0, 1))]
        for part in parts:
            assert isinstance(part, Part)
            assert journal.write(part) is None
        journal.close()
        return parts[:n_sent]

    batch = PooledBatch(workspace, once(write_all_and_send_some), play_all, repeat=2, concurrency=1)
    result = batch.result()
    assert (result.status, result.outcomes, result.problems) == ("completed", {"success": 2}, [])
    lost, *finished = batch.stored()
    assert (lost.outcome, lost.rounds, lost.task_index) == (Outcome.INTERRUPTED, 2, 0)
    assert (lost.error.type if lost.error else None, lost.env_episode_id) == ("worker_lost", "e 7")
    assert sorted(record.task_index for record in finished) == [0, 1]
    assert lost.episode_id in {record.episode_id for record in batch.reported}


def test_a_worker_whose_frames_do_not_fit_is_lost(workspace: Workspace) -> None:
    skip_a_step = once(lambda play: [*opening_frames(play.header), step_frame(play.header, 1)], FakeWorker.read)
    send_no_start = once(lambda play: [step_frame(play.header, 0)], FakeWorker.read)
    batch = PooledBatch(workspace, skip_a_step, send_no_start, play_all, repeat=1)
    assert batch.result().outcomes == {"success": 1}
    (lost,) = [record.error for record in batch.stored() if record.error is not None]
    assert lost.message.startswith("worker 0 was lost: it sent step 1 in place of step 0")


def test_a_worker_that_is_killed_while_it_creates_a_journal_leaves_no_file(workspace: Workspace) -> None:
    def create(play: Play) -> list[WorkerFrame]:
        path = workspace.store.journal_path(play.header.batch_id, play.header.episode_id)
        path.with_name(path.name + TEMPORARY_SUFFIX).write_bytes(b"{")
        return []

    result = PooledBatch(workspace, once(create), play_all, repeat=1).result()
    assert result.outcomes == {"success": 1}
    assert [path.suffix for path in (workspace.store.runs / result.batch_id).iterdir()] == [".json"]


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
