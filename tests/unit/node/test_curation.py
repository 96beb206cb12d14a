"""Episodes that a person archives or deletes, and brings back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runner.batch.spec import BatchSpec
from runner.errors import StoreError
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.node.curation import CurationAction, Curator
from runner.store import EpisodeStore, open_index
from runner.store.trash import remove_abandoned_trash
from runner.util.files import file_lock
from tests.support.episodes import RecordedEpisode, newest_rows
from tests.unit.node.test_retention import StateDir


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    state = StateDir(tmp_path)
    with closing(state.index):
        yield state


@pytest.fixture
def curator(state: StateDir) -> Iterator[Curator]:
    with closing(Curator(state.store, state.index)) as curator:
        yield curator


def content(state: StateDir) -> dict[str, bytes]:
    """Return the content of each listed episode's file, wherever it is."""
    return {row.episode_id: state.store.read_bytes(row.episode_id) for row in newest_rows(state.index)}


@pytest.mark.parametrize("action", ["archive", "delete"])
def test_chosen_episodes_of_several_batches_go_and_come_back(
    state: StateDir, curator: Curator, action: CurationAction
) -> None:
    first, second, kept = state.add(1), state.add(1, 3), state.add(1)
    (state.store.data_dir / "traces").mkdir()
    trace = state.store.data_dir / "traces" / f"{newest_rows(state.index)[-1].batch_id}.pftrace"
    trace.write_bytes(b"trace")
    before, events = content(state), state.index.select("SELECT * FROM events")
    plan = curator.plan(action, [*first, second[0], "unknown", first[0]])
    assert (plan.n_episodes, plan.kept) == (3, {"not stored": 1})
    assert plan.n_bytes > 0
    assert state.files() == {*first, *second, *kept}
    report = curator.apply(plan)
    assert (report.n_episodes, report.kept, report.problems) == (3, {"not stored": 1}, [])
    assert report.n_bytes > 0
    assert state.files() == {*second[1:], *kept}
    assert not trace.exists()
    listed = before if action == "archive" else {each: before[each] for each in (*second[1:], *kept)}
    assert content(state) == listed
    undone = curator.undo()
    assert undone is not None and (undone.n_episodes, undone.is_undone) == (3, True)
    assert state.files() == {*first, *second, *kept}
    assert content(state) == before
    assert trace.read_bytes() == b"trace"
    assert state.index.select("SELECT * FROM events") == events
    assert curator.undo() is None


def test_several_actions_are_undone_in_turn(state: StateDir, curator: Curator) -> None:
    a, b = state.add(1, 1), state.add(1, 1)
    curator.apply(curator.plan("delete", a))
    curator.apply(curator.plan("archive", b))
    curator.apply(curator.plan("delete", b))
    assert content(state).keys() == set()
    for expected, files in ((b, set()), (b, {*b}), ([*a, *b], {*a, *b})):
        assert curator.undo() is not None
        assert (set(content(state)), state.files()) == ({*expected}, files)


def test_episodes_that_are_still_needed_stay(state: StateDir, curator: Curator) -> None:
    waiting, running, done = state.add(1, delivered=False), state.add(1, 1), state.add(1, 1)
    unfinished = state.add(1, 1)
    queue = BatchQueue(state.store.data_dir)
    batches = {row.episode_id: row.batch_id for row in newest_rows(state.index)}
    spec = BatchSpec(env="Maze", agent="oracle")
    queue.add(QueuedBatch(batch_id=batches[unfinished[0]], battery_id=None, spec=spec))
    playing = RecordedEpisode(state.store, state.index, batch_id=batches[running[0]])
    playing.start()
    for action in ("archive", "delete"):
        plan = curator.plan(action, [*waiting, *running, *done, *unfinished, playing.header.episode_id])
        kept = {"event not delivered": 2, "batch not ended": 1, "not stored": 1}
        assert (plan.n_episodes, plan.kept) == (2, kept)
        report = curator.apply(plan)
        assert (report.n_episodes, report.kept) == (1, {**kept, "batch not ended": 2})
        curator.undo()
    assert state.files() == {*waiting, *running, *done, *unfinished}


def test_an_episode_in_an_archive_with_others_stays(state: StateDir, curator: Curator) -> None:
    a, b = ids = state.add(1)
    curator.apply(curator.plan("archive", ids))
    assert curator.plan("archive", ids).kept == {"already archived": 2}
    report = curator.apply(curator.plan("delete", [a]))
    assert (report.n_episodes, report.kept) == (0, {"in an archive with others": 1})
    assert content(state).keys() == {a, b}


def test_the_trash_is_removed_when_its_process_ends_and_after_a_crash_by_the_next_one(state: StateDir) -> None:
    first, second = (Curator(state.store, state.index) for _ in range(2))
    first.apply(first.plan("delete", state.add(1)))
    second.apply(second.plan("delete", state.add(1)))
    trash = state.store.data_dir / "trash"
    assert len(list(trash.glob("*/0/runs/*/*.json"))) == 4
    assert remove_abandoned_trash(state.store.data_dir) == 0
    second.close()
    assert len(list(trash.glob("*/0/runs/*/*.json"))) == 2
    first._trash._lock.close()  # as when the process is killed
    (trash / "notes.txt").write_text("not ours")
    assert remove_abandoned_trash(state.store.data_dir) == 1
    assert [path.name for path in trash.iterdir()] == ["notes.txt"]
    assert content(state) == {}


def test_only_one_process_at_a_time_changes_the_directory(state: StateDir, curator: Curator) -> None:
    ids = state.add(1)
    plan = curator.plan("delete", ids)
    lock = file_lock(state.store.data_dir / "prune.lock", wait=False, create=True)
    with lock, pytest.raises(StoreError, match="being pruned by another process"):
        curator.apply(plan)
    with (
        closing(open_index(EpisodeStore(state.store.data_dir))) as index,
        closing(Curator(state.store, index)) as other,
    ):
        assert other.apply(other.plan("delete", ids)).n_episodes == 2
        assert curator.apply(plan).kept == {"not stored": 2}
        assert other.undo() is not None
    assert content(state).keys() == {*ids}


def test_what_cannot_be_restored_stays_in_the_trash(state: StateDir, curator: Curator) -> None:
    a, b = state.add(1)
    (path,) = state.store.runs.glob(f"*/{a}.json")
    curator.apply(curator.plan("delete", [a, b]))
    path.parent.mkdir()
    path.write_bytes(b"other")
    undone = curator.undo()
    assert undone is not None
    assert (undone.n_episodes, undone.problems) == (1, [f"{path} exists again"])
    assert path.read_bytes() == b"other"
    assert state.files() == {a, b}
