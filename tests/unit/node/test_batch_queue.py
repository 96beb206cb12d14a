"""The queue of batches: what survives a restart, and what is restored when its file is lost, damaged or older."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import StoreError
from runner.node import batch_queue
from runner.node.batch_queue import FILE_NAME, BatchQueue, QueuedBatch, Status, queued_ids, recover_queue
from runner.publish.outbox import EndedBattery
from runner.types import ErrorInfo, Outcome
from tests.support.episodes import RecordedEpisode

Damage = Callable[[Path], object]


def new_batch(repeat: int = 1, **fields: Any) -> QueuedBatch:  # noqa: ANN401
    return QueuedBatch(
        batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=repeat, **fields)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


@pytest.fixture
def batches(tmp_path: Path) -> dict[Status, str]:
    """Ids of batches by the status that they have after a restart of the node."""
    statuses: tuple[Status, ...] = ("completed", "cancelled", "interrupted")
    added = [new_batch(repeat) for repeat in (1, 2, 3)]
    queue = BatchQueue(tmp_path)
    assert queue.add(*added)
    ids = dict(zip(statuses, (batch.batch_id for batch in added), strict=True))
    queue.set_status(ids["completed"], "completed", n_done=1)
    queue.set_status(ids["cancelled"], "cancelled")
    queue.set_status(ids["interrupted"], "running")
    return ids


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


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def line_of(**fields: object) -> bytes:
    line = {"batch_id": str(ULID()), "battery_id": None, "spec": {"env": "Maze"}, **fields}
    return json.dumps(line).encode() + b"\n"


def replace_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


LOSSES: dict[str, Damage] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(os.urandom(9000)),
    "a folder": replace_with_folder,
    "a pipe": replace_with_pipe,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_file_is_named_kept_and_written_again_from_the_episodes(
    loss: str, path: Path, batches: dict[Status, str], workspace: Workspace
) -> None:
    (path.parent / "nats").mkdir()
    played = new_batch(2)
    play(workspace, played, 2)
    LOSSES[loss](path)
    BatchQueue(path.parent)  # a node that is killed before it has read its episodes
    queue = BatchQueue(path.parent)
    assert "was damaged" in (queue.notice or "")
    recover_queue(queue, workspace, set())
    assert states(queue) == {played.batch_id: ("completed", 2, 2)}
    assert "listed again as far as their episodes describe them: 1" in (queue.notice or "")
    assert (path.with_name(f"{FILE_NAME}.damaged").exists()) == (loss not in ("missing", "empty"))
    later = new_batch()
    assert queue.add(later)
    reopened = BatchQueue(path.parent)
    assert (reopened.notice, states(reopened)[later.batch_id]) == (None, ("interrupted", 0, 1))


DAMAGED_LINES: dict[str, Callable[[bytes], bytes]] = {
    "invalid UTF-8": lambda content: b"\xff\xfe\n",
    "deep nesting": lambda content: b"[" * 100_000 + b"\n",
    "endless line": lambda content: b"x" * 1_000_000 + b"\n",
    "not an id": lambda content: line_of(batch_id="../../x"),
    "control characters": lambda content: line_of(battery_id="\x1b[2J"),
    "huge n_done": lambda content: line_of(n_done=10**30),
    "huge repeat": lambda content: line_of(spec={"env": "Maze", "repeat": 10**40}),
    "huge workers": lambda content: line_of(spec={"env": "Maze", "workers": 10**6}),
    "huge name": lambda content: line_of(spec={"env": "x" * 1_000_000}),
}
UNFINISHED_ENDS: dict[str, Callable[[bytes], bytes]] = {
    "partial line": lambda content: b'{"batch_id":"01',
    "zeros": lambda content: bytes(4096),
    "the first state again": lambda content: b"".join(content.splitlines(keepends=True)[:4]),
    "copies of itself": lambda content: content * 50,
}


def test_a_damaged_line_before_an_unfinished_but_whole_one_may_be_that_of_a_lost_batch(
    path: Path, batches: dict[Status, str]
) -> None:
    append(path, b"damaged\n" + path.read_bytes().splitlines()[-1])
    queue = BatchQueue(path.parent)
    assert states(queue) == expected_states(batches)
    assert queue.notice is not None and "was damaged: 1 damaged lines" in queue.notice


@pytest.mark.parametrize("damage", [*DAMAGED_LINES, *UNFINISHED_ENDS])
def test_the_batches_of_a_damaged_file_stay_and_later_ones_survive(
    damage: str, path: Path, batches: dict[Status, str]
) -> None:
    size = path.stat().st_size
    append(path, (DAMAGED_LINES | UNFINISHED_ENDS)[damage](path.read_bytes()))
    queue = BatchQueue(path.parent)
    assert states(queue) == expected_states(batches)
    assert (queue.notice is None) == (damage in UNFINISHED_ENDS)  # else a line may be that of a lost batch
    later = new_batch()
    assert queue.add(later)
    assert path.stat().st_size < 3 * size
    assert states(BatchQueue(path.parent)) == {**expected_states(batches), later.batch_id: ("interrupted", 0, 1)}


@pytest.mark.parametrize("change", [Path.unlink, lambda path: append(path, b'{"batch_id":"01')])
def test_a_file_that_changes_under_a_living_node_is_complete_after_the_next_batch(
    change: Damage, path: Path, batches: dict[Status, str]
) -> None:
    queue, later = BatchQueue(path.parent), new_batch()
    change(path)
    assert queue.add(later)
    assert not queue.add(later)
    reopened = BatchQueue(path.parent)
    assert states(reopened) == {**expected_states(batches), later.batch_id: ("interrupted", 0, 1)}
    assert reopened.notice is None


def test_a_batch_is_rejected_if_the_file_cannot_be_written(path: Path, batches: dict[Status, str]) -> None:
    queue = BatchQueue(path.parent)
    replace_with_folder(path)
    with pytest.raises(StoreError, match=r"batches\.jsonl cannot be written"):
        queue.add(new_batch())
    assert states(queue) == expected_states(batches)


def test_a_part_of_a_line_that_cannot_be_removed_harms_no_later_batch(
    path: Path, batches: dict[Status, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_a_part(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:10])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fail(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    queue, refused, later = BatchQueue(path.parent), new_batch(), new_batch()
    with monkeypatch.context() as context:
        context.setattr(batch_queue, "write_all", write_a_part)
        context.setattr(os, "ftruncate", fail)
        with pytest.raises(StoreError, match=r"batches\.jsonl cannot be written"):
            queue.add(refused)
    queue.add(later)
    reopened = BatchQueue(path.parent)
    assert states(reopened) == {**expected_states(batches), later.batch_id: ("interrupted", 0, 1)}
    assert reopened.notice is None


def test_a_long_history_is_written_again_while_the_node_runs(path: Path, batches: dict[Status, str]) -> None:
    queue, held = BatchQueue(path.parent), new_batch()
    queue.add(held)
    for _ in range(700):
        queue.hold(held.batch_id)
        queue.hold(held.batch_id, held=False)
    assert path.read_bytes().count(b"\n") < 1200
    assert states(BatchQueue(path.parent))[held.batch_id] == ("interrupted", 0, 1)


def test_an_older_copy_lists_what_it_has(path: Path, batches: dict[Status, str]) -> None:
    copy = shutil.copy(path, path.with_name("copy"))
    BatchQueue(path.parent).add(new_batch())
    shutil.move(copy, path)
    queue = BatchQueue(path.parent)
    assert (states(queue), queue.notice) == (expected_states(batches), None)


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


def test_interrupted_batches_end_by_their_episodes_and_events(path: Path, workspace: Workspace) -> None:
    played, announced, stopped, unplayed = new_batch(2), new_batch(2), new_batch(2), new_batch(2)
    BatchQueue(path.parent).add(played, announced, stopped, unplayed)
    play(workspace, played, 2)
    play(workspace, announced, 1)
    play(workspace, stopped, 2, outcome=Outcome.ERROR, error_info=ErrorInfo("resources", "too many open files", ""))
    queue = BatchQueue(path.parent)
    recover_queue(queue, workspace, {announced.batch_id})
    assert states(queue) == {
        played.batch_id: ("completed", 2, 2),
        announced.batch_id: ("cancelled", 1, 2),
        stopped.batch_id: ("interrupted", 0, 2),
        unplayed.batch_id: ("interrupted", 0, 2),
    }


def test_batches_of_foreground_runs_are_not_listed_by_the_first_node(path: Path, workspace: Workspace) -> None:
    play(workspace, new_batch(2), 2)
    queue = BatchQueue(path.parent)
    recover_queue(queue, workspace, set())
    assert (states(queue), queue.notice) == ({}, None)


def test_batches_that_the_rest_of_a_damaged_file_lacks_are_restored_from_the_episodes(
    path: Path, workspace: Workspace, batches: dict[Status, str]
) -> None:
    (path.parent / "nats").mkdir()
    completed, interrupted = new_batch(2), new_batch(3, attempts=2, task_index=5, seed=7)
    play(workspace, completed, 2)
    play(workspace, interrupted, 4)
    append(path, b"damaged\n")
    queue = BatchQueue(path.parent)
    recover_queue(queue, workspace, set())
    assert states(queue) == {
        **expected_states(batches),
        completed.batch_id: ("completed", 2, 2),
        interrupted.batch_id: ("interrupted", 4, 6),
    }
    found = queue.get(interrupted.batch_id)
    assert found is not None
    assert found.spec == interrupted.spec
    assert "Batches that it still had: 3; batches that are listed again" in (queue.notice or "")


def test_a_damaged_file_shows_no_ids(path: Path, batches: dict[Status, str]) -> None:
    assert queued_ids(path.parent) == {*batches.values()}
    assert queued_ids(path.parent, unfinished=True) == {batches["interrupted"]}
    append(path, b"damaged\n")
    with pytest.raises(StoreError, match=r"batches\.jsonl has 1 damaged lines; .* \(no episode is lost\)"):
        queued_ids(path.parent)


def test_a_battery_ends_with_its_last_batch(path: Path) -> None:
    battery_id = str(ULID())
    first, second, other = (
        msgspec.structs.replace(new_batch(2), battery_id=battery) for battery in (battery_id, battery_id, str(ULID()))
    )
    queue = BatchQueue(path.parent)
    queue.add(first, second, other)
    queue.set_status(first.batch_id, "completed", n_done=2)
    for status in ("queued", "running", "interrupted"):
        queue.set_status(second.batch_id, status)
        assert queue.ended_batteries() == {}
    queue.set_status(second.batch_id, "cancelled", n_done=1)
    assert queue.ended_batteries() == {battery_id: EndedBattery(3, 1)}
