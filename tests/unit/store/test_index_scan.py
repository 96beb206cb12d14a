"""Folders that have not changed are not listed again, and nothing is missed by that; processes read many files."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

from runner.store import EpisodeIndex, EpisodeStore, index_rows, index_scan, open_index
from runner.store import index as index_module
from runner.store.pruning import archive_episodes
from tests.support.episodes import RecordedEpisode, new_id, newest_rows, stored_files

OLD_NS = 1_000_000_000


def record(store: EpisodeStore, index: EpisodeIndex, n: int = 3, batch_id: str | None = None) -> list[RecordedEpisode]:
    batch_id = batch_id or new_id()
    episodes = [RecordedEpisode(store, index, batch_id=batch_id, task_index=number) for number in range(n)]
    for each in episodes:
        each.record_episode()
    return episodes


def look(index: EpisodeIndex, folder: Path, mtime_ns: int = OLD_NS) -> list[str]:
    """Look at the files, once the folder has not changed for long; return the ids of all episodes."""
    os.utime(folder, ns=(mtime_ns, mtime_ns))
    index.reconcile()
    return sorted(row.episode_id for row in newest_rows(index))


def ids_of(store: EpisodeStore) -> list[str]:
    return [file.episode_id for file in stored_files(store)]


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every folder: none can be made with an old time of its last change."""
    monkeypatch.setattr(index_scan, "TRUSTED_AGE_NS", -1)


@pytest.mark.usefixtures("trusted")
def test_an_unchanged_folder_is_not_listed_and_a_changed_one_is(store: EpisodeStore, index: EpisodeIndex) -> None:
    first, second, third = record(store, index)
    folder = first.file.parent
    assert look(index, folder) == ids_of(store)
    first.file.write_bytes(b"{}")  # which changes no folder
    index.reconcile()
    assert len(newest_rows(index)) == 3
    index.check_file(third.file)
    assert len(newest_rows(index)) == 3
    index.check_file(first.file)
    assert len(newest_rows(index)) == 2
    second.file.unlink()
    assert look(index, folder) == [third.file.stem]
    assert [each.path for each in index.damaged] == [first.file]
    (other,) = record(store, index, 1, folder.name)
    with index.transaction() as connection:  # its row was never written
        connection.execute("DELETE FROM episodes WHERE episode_id = ?", (other.file.stem,))
    assert look(index, folder) == [third.file.stem, other.file.stem]


@pytest.mark.parametrize("is_young", [True, False], ids=["young", "of the future"])
def test_the_time_of_a_young_folder_is_not_trusted(store: EpisodeStore, index: EpisodeIndex, is_young: bool) -> None:
    (episode,) = record(store, index, 1)
    if is_young:
        index.reconcile()
    else:
        look(index, episode.file.parent, 1 << 62)
    episode.file.write_bytes(b"{}")
    index.reconcile()
    assert newest_rows(index) == []


@pytest.mark.usefixtures("trusted")
def test_what_is_damaged_is_named_each_time(store: EpisodeStore, index: EpisodeIndex) -> None:
    first, second, _ = record(store, index)
    folder = first.file.parent
    first.file.write_bytes(b"{}")
    archive_episodes(store, index, folder.name, [second.file.stem])
    for _ in range(3):
        assert len(look(index, folder)) == 2
        assert [each.path for each in index.damaged] == [first.file]
    wrong = folder / "copy of it.json"
    wrong.write_bytes(b"{}")
    for _ in range(3):
        look(index, folder)
        assert {each.path for each in index.damaged} == {first.file, wrong}
    first.file.unlink()
    wrong.unlink()
    assert len(look(index, folder)) == 2
    assert index.damaged == []


@pytest.mark.usefixtures("trusted")
def test_a_vanished_folder_takes_its_rows_with_it(store: EpisodeStore, index: EpisodeIndex) -> None:
    gone, kept = record(store, index), record(store, index)
    gone[0].file.write_bytes(b"{}")
    look(index, gone[0].file.parent)
    shutil.copytree(gone[0].file.parent, store.data_dir / "copy")
    shutil.rmtree(gone[0].file.parent)
    assert look(index, kept[0].file.parent) == [each.file.stem for each in kept]
    assert index.damaged == []
    (store.data_dir / "copy").rename(gone[0].file.parent)
    assert len(look(index, gone[0].file.parent)) == 5


def test_an_index_that_others_change_at_the_same_time_ends_with_the_files(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_scan, "TRUSTED_AGE_NS", 20_000_000)  # a few ticks of the clock of files
    is_over = threading.Event()

    def look_again_and_again() -> None:
        with closing(open_index(EpisodeStore(store.data_dir))) as index:
            while not is_over.is_set():
                index.reconcile()

    lookers = [threading.Thread(target=look_again_and_again) for _ in range(2)]
    for each in lookers:
        each.start()
    batches = [new_id() for _ in range(3)]
    try:
        with closing(open_index(store)) as index:
            for number in range(20):
                (episode,) = record(store, index, 1, batches[number % 3])
                if number % 4 == 0:
                    archive_episodes(store, index, batches[number % 3], [episode.file.stem])
                elif number % 5 == 0:
                    episode.file.unlink()
    finally:
        is_over.set()
        for each in lookers:
            each.join(30)
    with closing(open_index(store)) as index:
        assert sorted(row.episode_id for row in newest_rows(index)) == ids_of(store)
        rows = newest_rows(index)
    (store.data_dir / "index.sqlite").unlink()
    with closing(open_index(store)) as rebuilt:
        assert newest_rows(rebuilt) == rows


@pytest.mark.usefixtures("trusted")
def test_a_look_that_another_process_has_overtaken_is_repeated(store: EpisodeStore, index: EpisodeIndex) -> None:
    (episode,) = record(store, index, 1)
    wrong = episode.file.with_name("copy of it.json")  # which makes this look trust the folder less than the other one
    wrong.write_bytes(b"{}")
    with index.transaction() as connection:
        connection.execute("DELETE FROM episodes")
    with closing(open_index(EpisodeStore(store.data_dir), reconcile=False)) as other:

        def delete_it() -> bool:
            episode.file.unlink()
            wrong.unlink()
            assert look(other, episode.file.parent) == []
            return False

        index.reconcile(delete_it)
        for each in (other, index):
            each.reconcile()
            assert (newest_rows(each), each.damaged) == ([], [])


@pytest.mark.usefixtures("trusted")
def test_an_index_that_is_deleted_during_a_look_gets_all_rows_again(store: EpisodeStore, index: EpisodeIndex) -> None:
    known, new = record(store, index), record(store, index, 1)
    index.write_waiting()
    with index.transaction() as connection:
        connection.execute("DELETE FROM episodes WHERE batch_id = ?", (new[0].file.parent.name,))
    os.utime(known[0].file.parent, ns=(OLD_NS, OLD_NS))

    def delete_index() -> bool:
        (store.data_dir / "index.sqlite").unlink()
        return False

    index.reconcile(delete_index)
    for _ in range(2):
        assert sorted(row.episode_id for row in newest_rows(index)) == ids_of(store)
        index.reconcile()


@pytest.fixture
def unread(store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch) -> Iterator[EpisodeIndex]:
    """A new index that reads 24 files, of which one is damaged and one archived, by processes, four at a time."""
    episodes = record(store, index, 24)
    episodes[5].file.write_bytes(b"{}")
    archive_episodes(store, index, episodes[0].file.parent.name, [episodes[7].file.stem])
    index.close()
    (store.data_dir / "index.sqlite").unlink()
    monkeypatch.setattr(index_rows, "MANY", 10)
    monkeypatch.setattr(index_module, "FILES_PER_TRANSACTION", 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with closing(open_index(store, reconcile=False)) as unread:
        yield unread


def children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


@contextmanager
def started_processes() -> Iterator[list[object]]:
    """Yield the environments of the processes that this one starts."""
    found: list[object] = []
    is_active = True

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if is_active and event == "subprocess.Popen":
            found.append(arguments[3])

    sys.addaudithook(note)  # which stays for good
    yield found
    is_active = False


def rows_read_here(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(index_rows, "MANY", 1_000)
    (store.data_dir / "index.sqlite").unlink()
    with closing(open_index(store)) as index:
        return [*newest_rows(index)]


def test_many_files_are_read_by_processes_without_secrets(
    store: EpisodeStore, unread: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-node")
    before, progress = {*children()}, list[object]()

    def look_at_progress() -> bool:
        progress.append(unread.progress)
        return False

    with started_processes() as environments:
        unread.reconcile(look_at_progress)
    assert len(environments) == 2
    assert "secret-of-the-node" not in str(environments)
    assert {*children()} == before
    assert progress == [(n, 24) for n in range(0, 24, 4)]
    assert unread.progress is None
    assert len(unread.damaged) == 1
    assert len(newest_rows(unread)) == 23
    rows = newest_rows(unread)
    unread.close()
    assert rows == rows_read_here(store, monkeypatch)


@pytest.mark.parametrize(
    "program",
    ["exec sleep 60", '{} "$@" | head -c 3000', "echo this is no frame"],
    ids=["hangs", "dies", "prints"],
)
def test_processes_that_fail_cost_no_row(
    store: EpisodeStore, unread: EpisodeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{program.format(sys.executable)}\n")
    script.chmod(0o700)
    monkeypatch.setattr(index_rows, "MAX_WAIT_S", 0.3 if "sleep" in program else 30)
    before = {*children()}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        with started_processes() as environments:
            unread.reconcile()
    assert len(environments) == 2
    assert {*children()} == before
    rows = newest_rows(unread)
    assert len(rows) == 23
    unread.close()
    assert rows == rows_read_here(store, monkeypatch)


def test_a_stopped_reading_goes_on_with_the_next_call(unread: EpisodeIndex) -> None:
    before, calls = {*children()}, count()
    unread.reconcile(lambda: next(calls) == 3)
    assert {*children()} == before
    assert len(newest_rows(unread)) in (11, 12)
    unread.reconcile()
    assert len(newest_rows(unread)) == 23
