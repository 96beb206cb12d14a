"""The queue of batches: what it restores when its file is lost, damaged or older than its journal."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import StoreError
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status, queued_ids
from runner.node.stored_batches import recover_queue
from runner.types import ErrorInfo, Outcome
from tests.support.episodes import RecordedEpisode

Damage = Callable[[Path], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.sqlite"


@pytest.fixture
def batches(path: Path) -> dict[Status, str]:
    """Ids of batches by the status that they have after a restart of the node."""
    ids: dict[Status, str] = {"completed": str(ULID()), "cancelled": str(ULID()), "interrupted": str(ULID())}
    with closing(BatchQueue(path)) as queue:
        for number, batch_id in enumerate(ids.values(), start=1):
            spec = BatchSpec(env="Maze", agent="oracle", repeat=number)
            assert queue.add(QueuedBatch(batch_id=batch_id, battery_id=None, spec=spec))
        queue.set_done(ids["completed"], 1)
        queue.set_status(ids["completed"], "completed")
        queue.set_status(ids["cancelled"], "cancelled")
        queue.set_status(ids["interrupted"], "running")
    return ids


@pytest.fixture
def reopen(path: Path) -> Iterator[Callable[[], BatchQueue]]:
    queues: list[BatchQueue] = []

    def reopen() -> BatchQueue:
        queues.append(BatchQueue(path))
        return queues[-1]

    yield reopen
    for queue in queues:
        queue.close()


def states(queue: BatchQueue) -> dict[str, tuple[Status, int, int]]:
    return {
        batch.batch_id: (batch.status, batch.n_done, batch.spec.n_planned)
        for batch in queue.listed(n_waiting=10, n_others=10)
    }


def expected_states(ids: dict[Status, str]) -> dict[str, tuple[Status, int, int]]:
    n_done = {"completed": 1}
    return {id_: (status, n_done.get(status, 0), n) for n, (status, id_) in enumerate(ids.items(), start=1)}


def replace_with_folder(path: Path) -> None:
    path.unlink()
    (path / "file").mkdir(parents=True)


def set_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_rows(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE batches SET spec = x'ff00', status = CAST(x'ff' AS TEXT)")


DAMAGES: dict[str, Damage] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(os.urandom(9000)),
    "text": lambda path: path.write_bytes(b"not a SQLite database" * 100),
    "header only": lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 5000),
    "truncated": truncate,
    "another version": set_version,
    "a folder": replace_with_folder,
    "damaged rows": damage_rows,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unusable_queue_is_restored_and_reported(
    damage: str, path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    DAMAGES[damage](path)
    queue = reopen()
    assert states(queue) == expected_states(batches)
    assert "batches that were missing and are listed again: 3" in (queue.notice or "")
    assert queue.add(QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle")))
    queue.close()
    assert reopen().notice is None


@pytest.mark.parametrize("damage", ["garbage", "a folder", "another version"])
def test_an_unusable_queue_is_kept_beside_the_new_one(
    damage: str, path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    for _ in range(2):
        DAMAGES[damage](path)
        reopen().close()
        assert states(reopen()) == expected_states(batches)
    kept = [each for each in path.parent.glob("queue.sqlite.damaged*") if not each.name.endswith(("-wal", "-shm"))]
    assert len(kept) == (2 if damage == "a folder" else 1)


def test_an_older_copy_gets_the_later_batches_and_ends(
    path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    copy = shutil.copy(path, path.with_name("copy"))
    later = QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle"))
    with closing(BatchQueue(path)) as queue:
        queue.add(later)
        queue.set_status(batches["interrupted"], "completed")
    shutil.move(copy, path)
    queue = reopen()
    assert queue.get(batches["interrupted"]).status == "completed"  # type: ignore[union-attr]
    assert queue.get(later.batch_id).status == "interrupted"  # type: ignore[union-attr]
    assert "missing and are listed again: 1; batches that had ended: 1" in (queue.notice or "")


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "truncated", "a folder"])
def test_a_damaged_journal_is_written_again_from_the_queue(
    damage: str, path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    journal = path.with_name("batches.jsonl")
    DAMAGES[damage](journal)
    queue = reopen()
    assert (states(queue), queue.notice) == (expected_states(batches), None)
    queue.close()
    path.unlink()
    assert states(reopen()) == expected_states(batches)


def without_workers(path: Path) -> None:
    """Change the records of a queue to those of a version without the field ``workers``."""
    journal = path.with_name("batches.jsonl")
    lines = [json.loads(line) for line in journal.read_text().split("\n") if line]
    for line in lines:
        del line["spec"]["workers"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE batches SET spec = CAST(json_remove(spec, '$.workers') AS BLOB)")
        assert not connection.execute("SELECT 1 FROM batches WHERE spec LIKE '%workers%'").fetchall()


@pytest.mark.parametrize("kept", [None, "queue.sqlite", "batches.jsonl"])
def test_records_of_an_earlier_version_without_workers_are_read(
    kept: str | None, path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    without_workers(path)
    if kept is not None:
        (path if kept == "batches.jsonl" else path.with_name("batches.jsonl")).unlink()
    queue = reopen()
    assert states(queue) == expected_states(batches)
    assert [batch.spec.workers for batch in queue.listed(n_waiting=10, n_others=10)] == [None] * 3
    remote = {id_: msgspec.structs.replace(queue.get(id_).spec, workers="ray") for id_ in [batches["interrupted"]]}  # type: ignore[union-attr]
    queue.queue_again(remote)
    queue.close()
    path.unlink()
    assert reopen().get(batches["interrupted"]).spec.workers == "ray"  # type: ignore[union-attr]


DAMAGED_ENDS: dict[str, Damage] = {
    "partial line": lambda path: append(path, b'{"batch_id":"01'),
    "zeros": lambda path: append(path, bytes(4096)),
    "line without end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "invalid UTF-8": lambda path: append(path, b"\xff\xfe\n"),
    "deep nesting": lambda path: append(path, b"[" * 100_000 + b"\n"),
    "endless line": lambda path: append(path, b"x" * 1_000_000 + b"\n"),
    "not an id": lambda path: append(path, line_of(batch_id="../../x")),
    "control characters": lambda path: append(path, line_of(battery_id="\x1b[2J")),
    "huge n_done": lambda path: append(path, line_of(n_done=10**30)),
    "huge repeat": lambda path: append(path, line_of(spec={"env": "Maze", "repeat": 10**40})),
    "negative repeat": lambda path: append(path, line_of(spec={"env": "Maze", "repeat": -1})),
    "huge seed": lambda path: append(path, line_of(spec={"env": "Maze", "seed": 10**40})),
    "huge workers": lambda path: append(path, line_of(spec={"env": "Maze", "workers": 10**6})),
    "unknown workers": lambda path: append(path, line_of(spec={"env": "Maze", "workers": "../x"})),
    "huge name": lambda path: append(path, line_of(spec={"env": "x" * 1_000_000})),
    "the first state again": lambda path: append(path, b"".join(path.read_bytes().splitlines(keepends=True)[:3])),
    "copies of itself": lambda path: path.write_bytes(path.read_bytes() * 50),
}


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def line_of(**fields: object) -> bytes:
    line = {"batch_id": str(ULID()), "battery_id": None, "spec": {"env": "Maze"}, **fields}
    return json.dumps(line).encode() + b"\n"


@pytest.mark.parametrize(
    ("damage", "is_open"),
    [*((name, False) for name in DAMAGED_ENDS), ("partial line", True), ("line without end", True)],
)
def test_a_batch_after_a_damaged_end_of_the_journal_survives_the_loss_of_the_queue(
    damage: str, is_open: bool, path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    journal = path.with_name("batches.jsonl")
    size = journal.stat().st_size
    queue = reopen() if is_open else None
    DAMAGED_ENDS[damage](journal)
    queue = queue or reopen()
    assert (states(queue), queue.notice) == (expected_states(batches), None)
    later = new_batch()
    assert queue.add(later)
    queue.close()
    assert journal.stat().st_size < 3 * size
    path.unlink()
    assert states(reopen()) == {**expected_states(batches), later.batch_id: ("interrupted", 0, 1)}


@pytest.mark.parametrize(("kind", "suffix"), [("folder", "-wal"), ("pipe", "-shm"), ("link", "-wal")])
def test_a_side_file_that_is_no_file_is_set_aside(
    kind: str, suffix: str, path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    side = path.with_name(path.name + suffix)
    for _ in range(2):
        if kind == "folder":
            (side / "file").mkdir(parents=True)
        elif kind == "pipe":
            os.mkfifo(side)
        else:
            side.symlink_to(path.with_name("nowhere"))
        queue = reopen()
        assert (states(queue), queue.notice) == (expected_states(batches), None)
        queue.close()


def test_a_journal_replaced_by_a_folder_twice_is_written_again(
    path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    for _ in range(2):
        replace_with_folder(path.with_name("batches.jsonl"))
        queue = reopen()
        assert states(queue) == expected_states(batches)
        queue.close()


def test_a_journal_deleted_under_a_living_node_is_complete_after_the_next_batch(
    path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    queue = reopen()
    path.with_name("batches.jsonl").unlink()
    later = QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle"))
    assert queue.add(later)
    assert not queue.add(later)
    queue.close()
    path.unlink()
    assert states(reopen()) == {**expected_states(batches), later.batch_id: ("interrupted", 0, 1)}


def test_a_batch_is_rejected_if_the_journal_cannot_be_written(
    path: Path, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    queue = reopen()
    replace_with_folder(path.with_name("batches.jsonl"))
    with pytest.raises(StoreError, match=r"batches\.jsonl cannot be written"):
        queue.add(QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle")))
    assert states(queue) == expected_states(batches)


def new_batch(repeat: int = 1, **fields: Any) -> QueuedBatch:  # noqa: ANN401
    return QueuedBatch(
        batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=repeat, **fields)
    )


@pytest.fixture
def workspace(path: Path) -> Iterator[Workspace]:
    workspace = Workspace(path.parent, node="n", profile="p")
    yield workspace
    workspace.close()


def play(workspace: Workspace, batch: QueuedBatch, n_episodes: int, **end: Any) -> None:  # noqa: ANN401
    """Record the first episodes of a batch."""
    for planned in batch.spec.plan()[:n_episodes]:
        RecordedEpisode(
            workspace.store,
            workspace.index,
            batch_id=batch.batch_id,
            env=batch.spec.env,
            agent=batch.spec.agent,
            n_planned=batch.spec.n_planned,
            **msgspec.structs.asdict(planned),
        ).record_episode(**end)


def test_interrupted_batches_end_by_their_episodes_and_events(
    path: Path, workspace: Workspace, reopen: Callable[[], BatchQueue]
) -> None:
    played, announced, stopped, unplayed = new_batch(2), new_batch(2), new_batch(2), new_batch(2)
    with closing(BatchQueue(path)) as queue:
        queue.add(played, announced, stopped, unplayed)
    play(workspace, played, 2)
    play(workspace, announced, 1)
    play(workspace, stopped, 2, outcome=Outcome.ERROR, error_info=ErrorInfo("resources", "too many open files", ""))
    queue = reopen()
    recover_queue(queue, workspace, {announced.batch_id})
    assert states(queue) == {
        played.batch_id: ("completed", 2, 2),
        announced.batch_id: ("cancelled", 1, 2),
        stopped.batch_id: ("interrupted", 0, 2),
        unplayed.batch_id: ("interrupted", 0, 2),
    }


def test_a_queue_lost_with_its_journal_is_restored_from_the_episodes(
    path: Path, workspace: Workspace, reopen: Callable[[], BatchQueue]
) -> None:
    completed, interrupted = new_batch(2), new_batch(3, attempts=2, task_index=5, seed=7)
    play(workspace, completed, 2)
    play(workspace, interrupted, 4)
    queue = reopen()
    recover_queue(queue, workspace, set())
    assert (states(queue), queue.notice) == ({}, None)  # the first node of the directory: the batches are not of a node
    queue.close()
    (workspace.data_dir / "nats").mkdir()
    for damage in ("missing", "garbage", "empty"):
        for name in ("queue.sqlite", "batches.jsonl"):
            DAMAGES[damage](path.with_name(name))
        queue = reopen()
        recover_queue(queue, workspace, set())
        assert queue.get(completed.batch_id) == msgspec.structs.replace(completed, status="completed", n_done=2)
        assert queue.get(interrupted.batch_id) == msgspec.structs.replace(interrupted, status="interrupted", n_done=4)
        assert "listed again as far as their episodes describe them: 2" in (queue.notice or "")
        queue.close()
    queue = reopen()
    recover_queue(queue, workspace, set())
    assert (len(states(queue)), queue.notice) == (2, None)


@pytest.mark.parametrize("n_lines", [1, 2])
def test_a_queue_lost_with_the_first_lines_of_its_journal_is_reported(
    path: Path, workspace: Workspace, reopen: Callable[[], BatchQueue], n_lines: int
) -> None:
    played, unplayed = new_batch(2), new_batch(2)
    with closing(BatchQueue(path)) as queue:
        queue.add(played)
        queue.add(unplayed)
    play(workspace, played, 2)
    (workspace.data_dir / "nats").mkdir()
    journal = path.with_name("batches.jsonl")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[n_lines:]))
    queue = reopen()  # a journal of an earlier version has no empty first line, which alone is no loss
    assert (len(states(queue)), queue.notice) == (2, None)
    queue.close()
    path.unlink()
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[n_lines:]))
    reopen().close()  # the node was killed before it had read its episodes
    queue = reopen()
    assert "batches.jsonl was damaged, too" in (queue.notice or "")
    recover_queue(queue, workspace, set())
    assert queue.get(played.batch_id) == msgspec.structs.replace(played, status="completed", n_done=2)
    queue.close()
    reopened = reopen()
    assert reopened.notice is None
    reopened.close()


def test_batches_that_neither_the_queue_nor_the_end_of_its_journal_has_are_restored_from_the_episodes(
    path: Path, workspace: Workspace, batches: dict[Status, str], reopen: Callable[[], BatchQueue]
) -> None:
    completed, interrupted = new_batch(2), new_batch(3)
    with closing(BatchQueue(path)) as queue:
        queue.add(completed, interrupted)
    play(workspace, completed, 2)
    play(workspace, interrupted, 1)
    (workspace.data_dir / "nats").mkdir()
    path.unlink()
    journal = path.with_name("batches.jsonl")
    os.truncate(journal, journal.read_bytes().index(completed.batch_id.encode()))  # in the middle of a line
    queue = reopen()
    recover_queue(queue, workspace, set())
    assert states(queue) == {
        **expected_states(batches),
        completed.batch_id: ("completed", 2, 2),
        interrupted.batch_id: ("interrupted", 1, 3),
    }
    assert "batches.jsonl still had: 3; batches that are listed again" in (queue.notice or "")


def test_the_ids_of_a_file_whose_damage_is_no_text_are_a_store_error(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE batches (batch_id TEXT)")
    path.write_bytes(path.read_bytes().replace(b"tablebatchesbatches", b"table\xff\xfftchesbatches"))
    with pytest.raises(StoreError, match=r"queue\.sqlite cannot be read: .* \(no episode is lost\)"):
        queued_ids(path)


def test_a_battery_ends_with_its_last_batch(path: Path) -> None:
    battery_id = str(ULID())
    first, second, other = (
        msgspec.structs.replace(new_batch(2), battery_id=battery) for battery in (battery_id, battery_id, str(ULID()))
    )
    with closing(BatchQueue(path)) as queue:
        queue.add(first, second, other)
        queue.set_status(first.batch_id, "completed", n_done=2)
        assert queue.ended_batteries() == {}
        queue.set_status(second.batch_id, "cancelled", n_done=1)
        assert queue.ended_batteries() == {battery_id: 3}
