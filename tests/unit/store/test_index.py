from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeRow, EpisodeStore, open_index
from runner.store.episode_file import finished_record
from runner.types import ErrorInfo, Outcome
from tests.support.episodes import (
    END,
    START,
    RecordedEpisode,
    damaged_bytes,
    episode_header,
    make_step,
    make_trajectory,
)


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    return EpisodeStore(tmp_path / "data")


@pytest.fixture
def index(store: EpisodeStore) -> Iterator[EpisodeIndex]:
    index = open_index(store)
    yield index
    index.close()


def _rows(store: EpisodeStore) -> list[EpisodeRow]:
    index = open_index(store)
    try:
        return index.recent()
    finally:
        index.close()


def _play(store: EpisodeStore, index: EpisodeIndex, n: int = 3) -> list[RecordedEpisode]:
    recordings = [RecordedEpisode(store, index, task_index=number, model="small") for number in range(n)]
    for recording in recordings:
        recording.record_episode()
    return recordings


def _database(store: EpisodeStore) -> Path:
    return store.data_dir / "index.sqlite"


def test_an_episode_is_listed_once_it_is_saved(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index, battery_id=None, seed=5, attempt=2, model="small", task_index=7)
    recording.record_episode(outcome=Outcome.ERROR, success=False, error_info=ErrorInfo("Boom", "", ""))
    (row,) = index.recent()
    assert (row.episode_id, row.batch_id) == (recording.header.episode_id, recording.header.batch_id)
    assert (row.env, row.agent, row.model, row.task_index, row.seed, row.attempt) == (
        "Maze",
        "oracle",
        "small",
        7,
        5,
        2,
    )
    assert (row.started_at, row.ended_at, row.duration_s) == (START, END, 1.5)
    assert (row.outcome, row.success, row.reward, row.rounds) == (Outcome.ERROR, False, 0.75, 3)
    assert (row.tokens_prompt, row.tokens_completion, row.cost, row.error_type) == (30, 6, 1.5, "Boom")


def test_fallback_endpoints_are_listed(store: EpisodeStore, index: EpisodeIndex) -> None:
    fallback_by_warnings: dict[tuple[str, ...], str | None] = {
        (): None,
        ("ollama: late",): None,
        ("gateway: away", "ollama: late"): "ollama",
    }
    for task, warnings in enumerate(fallback_by_warnings):
        recording = RecordedEpisode(store, index, task_index=task)
        recording.start()
        for number in range(2):
            recording.play(make_step(number, endpoint="ollama", model="m", warnings=warnings))
        recording.end()
    rows = sorted(index.recent(), key=lambda row: row.task_index)
    assert [row.fallback for row in rows] == list(fallback_by_warnings.values())


def test_the_newest_come_first(store: EpisodeStore, index: EpisodeIndex) -> None:
    ids = sorted((recording.header.episode_id for recording in _play(store, index, 4)), reverse=True)
    assert [row.episode_id for row in index.recent()] == ids
    assert [row.episode_id for row in index.recent(2, 1)] == ids[1:3]


def test_the_database_is_private(store: EpisodeStore, index: EpisodeIndex) -> None:
    _play(store, index, 1)
    for path in store.data_dir.glob("index.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("harm", ["missing", "garbage", "truncated", "empty", "old", "newer", "foreign"])
def test_an_unusable_index_is_rebuilt(harm: str, store: EpisodeStore, index: EpisodeIndex) -> None:
    _play(store, index)
    before = index.recent()
    index.close()
    path = _database(store)
    match harm:
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 5000)
        case "truncated":
            os.truncate(path, path.stat().st_size // 2)
        case "empty":
            os.truncate(path, 0)
        case "old" | "newer":
            _run(path, f"PRAGMA user_version = {2 if harm == 'newer' else 0}")
        case "foreign":
            _run(path, "ALTER TABLE episodes RENAME COLUMN reward TO prize")
    assert _rows(store) == before
    assert len(before) == 3


def _run(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_an_irreplaceable_index_is_an_error_with_its_name(store: EpisodeStore) -> None:
    _database(store).mkdir()
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        open_index(store)


def test_a_busy_database_is_not_deleted(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.sqlite.BUSY_TIMEOUT_S", 0.05)
    (recording,) = _play(store, index, 1)
    other = sqlite3.connect(_database(store), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    recording.file.unlink()
    with pytest.raises(StoreError, match="locked"):
        open_index(store)
    other.execute("ROLLBACK")
    other.close()
    assert len(index.recent()) == 1


def test_reconciling_follows_the_files(store: EpisodeStore, index: EpisodeIndex) -> None:
    first, second, third = _play(store, index)
    about = episode_header()
    record = finished_record(about, make_trajectory(about, [make_step(0)]), ended_at=END, spans=[], flows=[])
    store.save(record)
    first.file.unlink()
    changed = msgspec.structs.replace(store.load(second.file), outcome=Outcome.FAILURE, reward=12345.0)
    store.save(changed)
    index.reconcile()
    assert {row.episode_id: row.reward for row in index.recent()} == {
        second.header.episode_id: 12345.0,
        third.header.episode_id: 0.75,
        about.episode_id: 0.25,
    }


def test_a_damaged_file_is_reported_each_time_but_read_once(store: EpisodeStore, index: EpisodeIndex) -> None:
    good, bad = _play(store, index, 2)
    whole, status = bad.file.read_bytes(), bad.file.stat()
    bad.file.write_bytes(whole[:-1] + b"?")
    os.utime(bad.file, ns=(1, 1))
    index.reconcile()
    assert [row.episode_id for row in index.recent()] == [good.header.episode_id]
    (report,) = index.damaged
    assert report.path == bad.file
    assert "damaged" in report.reason

    bad.file.write_bytes(whole)
    os.utime(bad.file, ns=(1, 1))
    index.reconcile()
    assert index.damaged == [report]

    os.utime(bad.file, ns=(1, status.st_mtime_ns))
    index.reconcile()
    assert index.damaged == []
    assert len(index.recent()) == 2


def test_a_deleted_damaged_file_is_removed_from_the_index(store: EpisodeStore, index: EpisodeIndex) -> None:
    (bad,) = _play(store, index, 1)
    bad.file.write_bytes(b"{")
    index.reconcile()
    bad.file.unlink()
    index.reconcile()
    assert (index.damaged, index.recent()) == ([], [])


def test_files_that_are_no_episodes_are_reported(store: EpisodeStore, index: EpisodeIndex) -> None:
    (recording,) = _play(store, index, 1)
    folder = recording.file.parent
    (folder / "notes.json").touch()
    (folder / os.fsdecode(b"\xff.json")).touch()
    (folder / "01ARZ3NDEKTSV4RRFFQ69G5FAV.json").mkdir()
    (store.runs / "lost+found").mkdir()
    index.reconcile()
    assert {report.path.name for report in index.damaged} == {
        "notes.json",
        os.fsdecode(b"\xff.json"),
        "01ARZ3NDEKTSV4RRFFQ69G5FAV.json",
    }
    assert len(index.recent()) == 1


def test_numbers_beyond_64_bits_are_listed_at_the_limit(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index, seed=2**70)
    recording.record_episode()
    assert index.recent()[0].seed == 2**63 - 1


def test_a_closed_index_is_an_error_of_the_store_and_loses_nothing(store: EpisodeStore) -> None:
    index = open_index(store)
    index.close()
    (recording,) = _play(store, index, 1)
    with pytest.raises(StoreError, match="rebuilt"):
        index.recent()
    assert [row.episode_id for row in _rows(store)] == [recording.header.episode_id]


WRITER = """
import sys
from pathlib import Path
from runner.store import EpisodeStore, open_index
from tests.support.episodes import RecordedEpisode

store = EpisodeStore(Path(sys.argv[1]))
index = open_index(store)
for number in range(60):
    RecordedEpisode(store, index, task_index=number).record_episode()
index.close()
"""


def test_two_processes_insert_at_once(store: EpisodeStore, index: EpisodeIndex) -> None:
    command = [sys.executable, "-c", WRITER, str(store.data_dir)]
    writers = [subprocess.Popen(command, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE) for _ in range(2)]
    try:
        _play(store, index, 40)
        errors = [writer.communicate(timeout=60)[1] for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
    assert errors == [b"", b""]
    live = index.recent(1000)
    assert len(live) == 160
    _database(store).unlink()
    for suffix in ("-wal", "-shm"):
        _database(store).with_name(f"index.sqlite{suffix}").unlink(missing_ok=True)
    rebuilt = open_index(store)
    assert rebuilt.recent(1000) == live
    rebuilt.close()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_no_bytes_in_the_database_crash_the_index(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder))
        index = open_index(store)
        recordings = _play(store, index, 2)
        index.close()
        path = _database(store)
        path.write_bytes(data.draw(st.binary(max_size=200) | damaged_bytes(path.read_bytes())))
        try:
            index = open_index(store)
        except StoreError as exc:
            assert str(path) in str(exc)
            return
        try:
            rows = index.recent()
        except StoreError as exc:
            assert str(path) in str(exc)
        else:
            assert {row.episode_id for row in rows} == {recording.header.episode_id for recording in recordings}
        finally:
            index.close()
