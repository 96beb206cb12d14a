from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeRow, EpisodeStore, open_index
from runner.store.index_schema import episode_row
from runner.types import ErrorInfo, Outcome, Phases
from runner.util import sqlite
from runner.util.files import file_lock
from tests.support.episodes import (
    END,
    START,
    RecordedEpisode,
    damaged_bytes,
    episode_header,
    finished_record,
    make_step,
    make_trajectory,
    newest_rows,
)
from tests.support.examples import examples


def read_rows(store: EpisodeStore) -> list[EpisodeRow]:
    index = open_index(store)
    try:
        return newest_rows(index)
    finally:
        index.close()


def record_episodes(store: EpisodeStore, index: EpisodeIndex, n: int = 3) -> list[RecordedEpisode]:
    recordings = [RecordedEpisode(store, index, task_index=number, model="small") for number in range(n)]
    for recording in recordings:
        recording.record_episode()
    return recordings


def database_path(store: EpisodeStore) -> Path:
    return store.data_dir / "index.sqlite"


def test_a_saved_episode_is_listed(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index, battery_id=None, seed=2**70, attempt=2, model="small", task_index=7)
    recording.record_episode(outcome=Outcome.ERROR, success=False, error_info=ErrorInfo("Boom", "", ""))
    (row,) = newest_rows(index)
    assert (row.episode_id, row.batch_id) == (recording.header.episode_id, recording.header.batch_id)
    assert (row.env, row.agent, row.model, row.task_index, row.seed, row.attempt) == (
        "Maze",
        "oracle",
        "small",
        7,
        2**63 - 1,
        2,
    )
    assert (row.started_at, row.ended_at, row.duration_s) == (START, END, 1.5)
    assert (row.outcome, row.success, row.reward, row.rounds) == (Outcome.ERROR, False, 0.75, 3)
    assert (row.tokens_prompt, row.tokens_completion, row.cost, row.error_type) == (30, 6, 1.5, "Boom")
    for path in store.data_dir.glob("index.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


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
    rows = sorted(newest_rows(index), key=lambda row: row.task_index)
    assert [row.fallback for row in rows] == list(fallback_by_warnings.values())


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated", "empty", "old", "newer", "foreign", "folder"])
def test_an_unusable_index_is_rebuilt(damage: str, store: EpisodeStore, index: EpisodeIndex) -> None:
    record_episodes(store, index)
    before = newest_rows(index)
    index.close()
    path = database_path(store)
    match damage:
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 5000)
        case "truncated":
            os.truncate(path, path.stat().st_size // 2)
        case "empty":
            os.truncate(path, 0)
        case "folder":
            path.unlink()
            (path / "x").mkdir(parents=True)
        case "old":
            execute(path, "DROP INDEX results")
            execute(path, "ALTER TABLE episodes DROP COLUMN models")
            execute(path, "PRAGMA user_version = 9")
        case "newer":
            execute(path, "PRAGMA user_version = 99")
        case "foreign":
            execute(path, "ALTER TABLE episodes RENAME COLUMN reward TO prize")
    assert read_rows(store) == before
    assert len(before) == 3


def test_an_index_without_its_log_is_rebuilt_while_another_process_has_it_open(
    store: EpisodeStore, index: EpisodeIndex
) -> None:
    record_episodes(store, index)
    before = newest_rows(index)
    database_path(store).with_name("index.sqlite-wal").unlink()
    assert read_rows(store) == before


def test_the_row_of_a_played_episode_has_what_its_file_shows(
    store: EpisodeStore, index: EpisodeIndex, recording: RecordedEpisode
) -> None:
    recording.start()
    for number in range(4):
        recording.play(make_step(number, observation=[{"role": "user", "content": "Nothing happens."}]))
    recording.end(outcome=Outcome.FAILURE, success=False)
    (row,) = newest_rows(index)
    assert (row.flags, row.failure, row.failed_step) == ("loop,unearned", "loop: move … -> Nothing happens", 0)
    assert row == episode_row(store.load(recording.file))


def test_a_row_has_the_seconds_of_its_steps_by_what_they_were_spent_on(
    index: EpisodeIndex, recording: RecordedEpisode
) -> None:
    recording.start()
    known = Phases(queue=0.25, prefill=0.5, decode=1.0, model=2.0, env=0.125, own=0.375)
    recording.play(make_step(0, endpoint="lab", model_s=2.0, phases=known))
    failed = Phases(model=1.0, env=0.25, own=0.5, about=True)
    recording.play(make_step(1, endpoint="spare", warnings=("lab: refused",), model_s=1.0, phases=failed))
    recording.play(make_step(2, model_s=9.0))
    recording.end()
    (row,) = newest_rows(index)
    assert (row.model_s, row.queue_s, row.prefill_s, row.decode_s, row.unsplit_s) == (3.0, 0.25, 0.5, 1.0, 1.25)
    assert (row.env_s, row.endpoint_s, row.own_s) == (0.375, 0.5, 0.375)
    assert (row.times_about, row.fallback) == (True, "spare")


def test_the_row_names_the_models_that_answered_also_for_a_file_without_their_counts(
    store: EpisodeStore, index: EpisodeIndex
) -> None:
    recording = RecordedEpisode(store, index, model="small")
    recording.start()
    answers = (("lab", "z"), ("lab", "small"), (None, "unasked"), ("spare", "a"), ("lab", "z"))
    for number, (endpoint, model) in enumerate(answers):
        recording.play(make_step(number, endpoint=endpoint, model=model))
    recording.end()
    RecordedEpisode(store, index, model="small").record_episode(0)
    RecordedEpisode(store, index).record_episode(1)
    before = newest_rows(index)
    assert [row.models for row in before] == [None, "small", "small + a + z"]
    counts = b'"models":{"z":2,"small":1,"a":1},'
    content = recording.file.read_bytes()
    assert content.count(counts) == 1
    recording.file.write_bytes(content.replace(counts, b""))
    index.reconcile()
    assert newest_rows(index) == before


def test_the_row_has_the_shapes_of_all_steps(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index, model="small")
    recording.start()
    recording.reset()
    for number, shape in enumerate(("folded system", "", "folded system, tools as text", "anything else")):
        recording.play(make_step(number, shape=shape or msgspec.UNSET))
    recording.end()
    (row,) = newest_rows(index)
    assert row.shape == "tools as text, folded system"
    assert row == episode_row(store.load(recording.file))
    assert recording.file.read_bytes().count(b'"shape"') == 3


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_an_index_that_cannot_be_replaced_is_an_error_with_its_name(store: EpisodeStore) -> None:
    path = database_path(store)
    path.symlink_to(path)
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        open_index(store)


def test_a_busy_database_is_not_deleted(store: EpisodeStore, index: EpisodeIndex) -> None:
    (recording,) = record_episodes(store, index, 1)
    other = sqlite3.connect(database_path(store), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    recording.file.unlink()
    with pytest.raises(StoreError, match="locked"):
        open_index(store, busy_timeout_s=0.05)
    other.execute("ROLLBACK")
    other.close()
    assert len(newest_rows(index)) == 1


def test_a_stopped_process_that_opens_the_index_keeps_no_other_waiting(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_episodes(store, index, 1)
    monkeypatch.setattr(sqlite, "MAX_LOCKED_S", 0.1)
    with file_lock(store.data_dir / "index.lock", create=True) as is_locked:
        assert is_locked
        with closing(open_index(store)) as other:
            assert len(newest_rows(other)) == 1


def n_listed_elsewhere(store: EpisodeStore) -> int:
    """Return the number of rows that another process reads."""
    with closing(sqlite3.connect(database_path(store))) as other:
        return int(other.execute("SELECT count(*) FROM episodes").fetchone()[0])


def test_episodes_that_end_together_share_a_transaction(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "GROUP_S", 60.0)
    notes: list[int] = []
    database = index.database
    database.on_write = lambda: notes.append(database.n_unwritten)
    record_episodes(store, index, 3)
    assert n_listed_elsewhere(store) == 1
    assert notes == [0, 2, 4]
    database.write_waiting()
    assert n_listed_elsewhere(store) == 3


@pytest.mark.parametrize("use", ["read", "close", "killed"])
def test_rows_that_wait_for_others_are_never_lost(
    use: str, store: EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "GROUP_S", 60.0)
    index = open_index(store)
    record_episodes(store, index, 3)
    match use:
        case "read":
            assert len(newest_rows(index)) == 3
        case "close":
            index.close()
        case "killed":
            open_index(store).close()  # as the next start does
    assert n_listed_elsewhere(store) == 3
    index.close()
    assert n_listed_elsewhere(store) == 3


def test_reconciling_matches_the_files(store: EpisodeStore, index: EpisodeIndex) -> None:
    first, second, third = record_episodes(store, index)
    header = episode_header()
    record = finished_record(header, make_trajectory(header, [make_step(0)]))
    store.save(record)
    first.file.unlink()
    changed = msgspec.structs.replace(store.load(second.file), outcome=Outcome.FAILURE, reward=12345.0)
    store.save(changed)
    index.reconcile()
    assert {row.episode_id: row.reward for row in newest_rows(index)} == {
        second.header.episode_id: 12345.0,
        third.header.episode_id: 0.75,
        header.episode_id: 0.25,
    }


def test_a_damaged_file_is_reported_each_time_but_read_once(store: EpisodeStore, index: EpisodeIndex) -> None:
    good, bad = record_episodes(store, index, 2)
    content, status = bad.file.read_bytes(), bad.file.stat()
    bad.file.write_bytes(content[:-1] + b"?")
    os.utime(bad.file, ns=(1, 1))
    index.reconcile()
    assert [row.episode_id for row in newest_rows(index)] == [good.header.episode_id]
    (report,) = index.damaged
    assert report.path == bad.file
    assert "damaged" in report.reason

    bad.file.write_bytes(content)
    os.utime(bad.file, ns=(1, 1))
    index.reconcile()
    assert index.damaged == [report]

    os.utime(bad.file, ns=(1, status.st_mtime_ns))
    index.reconcile()
    assert index.damaged == []
    assert len(newest_rows(index)) == 2


def test_files_that_are_not_episodes_are_reported(store: EpisodeStore, index: EpisodeIndex) -> None:
    (recording,) = record_episodes(store, index, 1)
    folder = recording.file.parent
    (folder / "notes.json").touch()
    (folder / os.fsdecode(b"\xff.json")).touch()
    (folder / "01ARZ3NDEKTSV4RRFFQ69G5FAV.json").mkdir()
    (folder / "copies").mkdir()
    (folder / "copy.zip").touch()
    (store.runs / "lost+found").mkdir()
    (store.runs / ".keep").touch()
    (store.runs / "old runs").mkdir()
    (store.runs / "01ARZ3NDEKTSV4RRFFQ69G5FAV").symlink_to(folder)
    index.reconcile()
    assert {report.path.name for report in index.damaged} == {
        "notes.json",
        os.fsdecode(b"\xff.json"),
        "01ARZ3NDEKTSV4RRFFQ69G5FAV.json",
        "copies",
        "copy.zip",
        "old runs",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    }
    assert len(newest_rows(index)) == 1


def test_a_closed_index_raises_a_store_error_and_loses_nothing(store: EpisodeStore) -> None:
    index = open_index(store)
    index.close()
    (recording,) = record_episodes(store, index, 1)
    with pytest.raises(StoreError, match="it was closed"):
        newest_rows(index)
    assert database_path(store).exists()
    assert [row.episode_id for row in read_rows(store)] == [recording.header.episode_id]


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


@pytest.mark.long
def test_two_processes_insert_at_the_same_time(store: EpisodeStore, index: EpisodeIndex) -> None:
    command = [sys.executable, "-c", WRITER, str(store.data_dir)]
    writers = [subprocess.Popen(command, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE) for _ in range(2)]
    try:
        record_episodes(store, index, 40)
        errors = [writer.communicate(timeout=60)[1] for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
    assert errors == [b"", b""]
    live = newest_rows(index, 1000)
    assert len(live) == 160
    database_path(store).unlink()
    for suffix in ("-wal", "-shm"):
        database_path(store).with_name(f"index.sqlite{suffix}").unlink(missing_ok=True)
    rebuilt = open_index(store)
    assert newest_rows(rebuilt, 1000) == live
    rebuilt.close()


@pytest.fixture(scope="module")
def two_episodes(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    store = EpisodeStore(tmp_path_factory.mktemp("episodes"))
    index = open_index(store)
    record_episodes(store, index, 2)
    index.close()
    return store


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_no_bytes_in_the_database_crash_the_index(two_episodes: EpisodeStore, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(shutil.copytree(two_episodes.data_dir, folder, dirs_exist_ok=True)))
        path = database_path(store)
        path.write_bytes(data.draw(st.binary(max_size=200) | damaged_bytes(path.read_bytes())))
        try:
            index = open_index(store)
        except StoreError as exc:
            assert str(path) in str(exc)
            return
        try:
            rows = newest_rows(index)
        except StoreError as exc:
            assert str(path) in str(exc)
        else:
            episode_ids = {path.stem for path in two_episodes.runs.glob("*/*.json")}
            assert len(episode_ids) == 2
            assert {row.episode_id for row in rows} == episode_ids
        finally:
            index.close()
