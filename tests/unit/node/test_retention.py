"""Which episodes retention prunes, and which it keeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from runner.batch.spec import BatchSpec
from runner.config.profile import RetentionSettings
from runner.errors import StoreError
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status
from runner.node.retention import CleanUpAction, Policy, Pruner, PruneReport, disk_usage, prune_when_idle
from runner.publish.outbox import Ack, Outbox
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.store.notes import Notes
from runner.types.notes import NoteChange
from runner.util.clock import Clock
from runner.util.files import file_lock
from tests.support.episodes import END, RecordedEpisode, new_id, newest_rows, stored_files

DAY_S = 86400.0


class StateDir:
    """A state directory with episodes of different ages, all delivered."""

    def __init__(self, folder: Path) -> None:
        self.store = EpisodeStore(folder)
        self.index: EpisodeIndex = open_index(self.store)
        self.clock = Clock(now=lambda: END + timedelta(days=100))
        self.outbox = Outbox(self.index, clock=Clock(now=lambda: END))
        self.pruner = Pruner(self.store, self.index, Outbox(self.index, clock=self.clock), self.clock)

    def add(self, age_days: float, n: int = 2, *, delivered: bool = True, batch_id: str | None = None) -> list[str]:
        """Store a batch that ended so many days ago; return the ids of its episodes."""
        batch_id = batch_id or new_id()
        ids = []
        for _ in range(n):
            recording = RecordedEpisode(self.store, self.index, batch_id=batch_id)
            recording.record_episode()
            ids.append(recording.header.episode_id)
        self.index.write_waiting()
        ended_at = (self.clock.now() - timedelta(days=age_days)).isoformat()
        with self.index.transaction() as connection:
            connection.execute("UPDATE episodes SET ended_at = ? WHERE batch_id = ?", (ended_at, batch_id))
        if delivered:
            self.outbox.collect()
            self.outbox.ack("local", [Ack(f"episode:{each}", "S", 1) for each in ids])
        return ids

    def files(self) -> set[str]:
        """Return the episodes that have a file outside of an archive."""
        return {file.episode_id for file in stored_files(self.store) if not file.is_archived}

    def contents(self) -> dict[str, bytes]:
        """Return the content of each listed episode's file, wherever it is."""
        return {row.episode_id: self.store.read_bytes(row.episode_id) for row in newest_rows(self.index)}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    state = StateDir(tmp_path)
    with closing(state.index):
        yield state


def test_old_episodes_are_archived_and_young_ones_stay(state: StateDir) -> None:
    old, young = state.add(31), state.add(29)
    policy = Policy(older_s=30 * DAY_S)
    before = disk_usage(state.store, [])
    planned = state.pruner.prune(policy, dry_run=True)
    assert (planned.n_archived, planned.n_bytes) == (2, before - planned.n_freed)
    assert state.files() == {*old, *young}
    report = state.pruner.prune(policy)
    assert (report.n_archived, report.n_deleted, report.kept, report.problems) == (2, 0, {}, [])
    assert report.n_bytes == before - report.n_freed == disk_usage(state.store, [])
    assert state.files() == {*young}
    assert {row.episode_id for row in newest_rows(state.index)} == {*old, *young}
    assert state.pruner.prune(policy).n_archived == 0
    deleted = state.pruner.prune(Policy(older_s=30 * DAY_S, archive=False))
    assert (deleted.n_deleted, {row.episode_id for row in newest_rows(state.index)}) == (2, {*young})


@pytest.mark.parametrize("action", ["archive", "delete"])
def test_chosen_episodes_of_several_batches_are_archived_or_deleted(state: StateDir, action: CleanUpAction) -> None:
    first, second, kept = state.add(1), state.add(1, 3), state.add(1)
    Notes(state.store.data_dir).change(first[0], NoteChange(add=("good",)))
    (state.store.data_dir / "traces").mkdir()
    trace = state.store.data_dir / "traces" / f"{newest_rows(state.index)[-1].batch_id}.pftrace"
    trace.write_bytes(b"trace")
    before, chosen = state.contents(), Policy.of_chosen(action, [*first, second[0], "unknown", first[0]])
    planned = state.pruner.prune(chosen, dry_run=True)
    assert (planned.n_archived + planned.n_deleted, planned.kept) == (3, {"not stored": 1})
    assert planned.n_freed > 0
    assert state.files() == {*first, *second, *kept}
    report = state.pruner.prune(chosen)
    assert (report.n_archived, report.n_deleted) == (planned.n_archived, planned.n_deleted)
    assert (report.kept, report.problems) == ({"not stored": 1}, [])
    assert report.n_freed > 0
    assert state.files() == {*second[1:], *kept}
    assert not trace.exists()
    listed = before if action == "archive" else {each: before[each] for each in (*second[1:], *kept)}
    assert state.contents() == listed
    again = state.pruner.prune(chosen)
    assert again.kept == ({"archived": 3, "not stored": 1} if action == "archive" else {"not stored": 4})
    state.pruner.prune(Policy.of_chosen("delete", first[:1]))
    assert first[0] not in state.contents()


def test_chosen_episodes_that_are_still_needed_stay(state: StateDir) -> None:
    waiting, running, done = state.add(1, delivered=False), state.add(1, 1), state.add(1, 1)
    unfinished = state.add(1, 1)
    queue = BatchQueue(state.store.data_dir)
    batches = {row.episode_id: row.batch_id for row in newest_rows(state.index)}
    queue.add(QueuedBatch(batch_id=batches[unfinished[0]], battery_id=None, spec=BatchSpec(env="Maze")))
    playing = RecordedEpisode(state.store, state.index, batch_id=batches[running[0]])
    playing.start()
    for action in ("archive", "delete"):
        policy = Policy.of_chosen(action, [*waiting, *running, *done, *unfinished, playing.header.episode_id])
        kept = {"event not delivered": 2, "batch not ended": 1, "not stored": 1}
        planned = state.pruner.prune(policy, dry_run=True)
        assert (planned.n_archived + planned.n_deleted, planned.kept) == (2, kept)
        report = state.pruner.prune(policy)
        assert (report.n_archived + report.n_deleted, report.kept) == (1, {**kept, "batch not ended": 2})
    assert state.files() == {*waiting, *running, *unfinished}


@pytest.mark.parametrize("status", ["queued", "running", "interrupted"])
def test_batches_that_run_wait_or_can_be_resumed_stay(state: StateDir, status: Status) -> None:
    unfinished, ended = new_id(), new_id()
    kept = state.add(90, batch_id=unfinished)
    state.add(90, batch_id=ended)
    queue = BatchQueue(state.store.data_dir)
    for batch_id, state_of_it in ((unfinished, status), (ended, "completed")):
        queue.add(QueuedBatch(batch_id=batch_id, battery_id=None, spec=BatchSpec(env="Maze"), status=state_of_it))
    report = state.pruner.prune(Policy(older_s=DAY_S, archive=False))
    assert (report.n_deleted, report.kept, state.files()) == (2, {"batch not ended": 2}, {*kept})
    (state.store.data_dir / "batches.jsonl").write_bytes(b"garbage")
    with pytest.raises(StoreError, match="the next node restores it"):
        state.pruner.prune(Policy(older_s=DAY_S))


def test_tagged_episodes_and_those_with_undelivered_events_stay(state: StateDir) -> None:
    tagged, other = state.add(90)
    undelivered = state.add(90, delivered=False)
    Notes(state.store.data_dir).change(tagged, NoteChange(add=("good",), step=1))
    report = state.pruner.prune(Policy(older_s=DAY_S))
    assert report.kept == {"tagged": 1, "event not delivered": 2}
    assert state.files() == {tagged, *undelivered}
    assert state.pruner.prune(Policy(older_s=DAY_S, keep_tagged=False)).n_archived == 1
    assert state.pruner.prune(Policy(older_s=DAY_S, undelivered=True)).n_archived == 2
    # an archived episode keeps its row, so its event can still be sent
    assert [event.id for event in state.outbox.pending("local", 10)] == [f"episode:{each}" for each in undelivered]
    assert {row.episode_id for row in newest_rows(state.index)} == {tagged, other, *undelivered}


def test_an_episode_that_is_tagged_while_others_are_pruned_stays(state: StateDir) -> None:
    first, second = state.add(91), state.add(90)

    def tag_second() -> bool:
        if not state.files() & {*first}:  # between the two batches
            Notes(state.store.data_dir).change(second[0], NoteChange(add=("good",)))
        return False

    report = state.pruner.prune(Policy(older_s=DAY_S, archive=False), should_stop=tag_second)
    assert (report.n_deleted, report.kept, state.files()) == (3, {"tagged": 1}, {second[0]})


def test_an_event_that_a_broker_may_still_lose_keeps_its_file(state: StateDir) -> None:
    ids = state.add(90)
    recent = Pruner(state.store, state.index, state.outbox, state.clock)  # acknowledged just now
    assert recent.prune(Policy(older_s=DAY_S, archive=False)).kept == {"event delivered in the last 10 minutes": 2}
    assert state.pruner.prune(Policy(older_s=DAY_S, archive=False)).n_deleted == 2
    assert state.outbox.known_ids("episode") == {f"episode:{each}" for each in ids}


def test_a_quota_prunes_the_oldest_batches_until_it_is_met(state: StateDir) -> None:
    oldest, older, newest = state.add(3), state.add(2), state.add(1)
    (size,) = {file.size for file in stored_files(state.store) if file.episode_id == newest[0]}
    report = state.pruner.prune(Policy(max_bytes=3 * size, archive=False))
    assert (report.n_deleted, state.files()) == (4, {*newest})
    assert report.n_bytes <= 3 * size
    assert not {*oldest, *older} & {row.episode_id for row in newest_rows(state.index)}
    assert state.pruner.prune(Policy(max_bytes=3 * size)).n_archived == 0
    assert state.pruner.prune(Policy(max_bytes=1)).n_archived == 2


def test_only_one_process_prunes_at_a_time(state: StateDir) -> None:
    state.add(90)
    with (
        file_lock(state.store.data_dir / "prune.lock", create=True) as locked,
        pytest.raises(StoreError, match="another process"),
    ):
        assert locked
        state.pruner.prune(Policy(older_s=1))
    assert state.pruner.prune(Policy(older_s=1)).n_archived == 2


def test_a_batch_that_cannot_be_archived_keeps_no_other_from_it(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = state.add(91), state.add(90)
    path = next(state.store.runs.glob(f"*/{first[0]}.json"))
    (path.parent / f"{new_id()}.json").mkdir()
    folder = path.parent
    folder.chmod(0o500)
    try:
        report = state.pruner.prune(Policy(older_s=DAY_S))
    finally:
        folder.chmod(0o700)
    if report.problems:  # not as root
        assert state.files() >= {*first}
    assert not state.files() & {*second}


def test_an_idle_node_prunes_and_a_busy_one_does_not(state: StateDir, caplog: pytest.LogCaptureFixture) -> None:
    ids = state.add(90)
    policy = Policy.from_profile(RetentionSettings(older="30d", max_bytes=1))
    idle = iter([False, True, True, True])
    seen: list[set[str]] = []

    def is_idle() -> bool:
        if threading.current_thread() is not threading.main_thread():  # between two batches
            return True
        seen.append(state.files())
        try:
            return next(idle)
        except StopIteration:
            raise asyncio.CancelledError from None

    async def run() -> None:
        async with asyncio.timeout(20):
            await prune_when_idle(state.pruner, policy, is_idle, interval_s=0.01)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert seen == [{*ids}, {*ids}, set(), set(), set()]
    assert len([each for each in caplog.messages if "exceed retention.max_bytes" in each]) == 1
    assert any("2 episodes archived, 0 deleted" in each for each in caplog.messages)


@pytest.mark.parametrize(
    ("kept", "why"),
    [({}, "set archive: false to delete old ones"), ({"event not delivered": 2}, "are kept: event not delivered")],
)
def test_a_missed_quota_is_reported_with_what_would_help(
    state: StateDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kept: dict[str, int], why: str
) -> None:
    report = PruneReport(n_bytes=2, kept={"archived": 1, **kept})
    monkeypatch.setattr(state.pruner, "prune", lambda *_, **__: report)
    answers = iter([True])

    def is_idle() -> bool:
        if next(answers, False):
            return True
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(prune_when_idle(state.pruner, Policy(max_bytes=1), is_idle, interval_s=0.0))
    (message,) = [each for each in caplog.messages if "exceed retention.max_bytes" in each]
    assert message.endswith(why)


def test_a_profile_without_retention_prunes_nothing(state: StateDir) -> None:
    policy = Policy.from_profile(RetentionSettings())
    assert not policy.prunes
    asyncio.run(prune_when_idle(state.pruner, policy, _fail))
    assert policy.keep_tagged
    assert Policy.from_profile(RetentionSettings(older="2w")).older_s == 14 * DAY_S


def _fail() -> bool:
    raise AssertionError
