"""Listing a folder of episodes again from the index that the cache keeps of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest

from agentgym_tui.sessions import file_library
from agentgym_tui.sessions.file_library import FileLibrary
from runner.errors import StoreError
from runner.results.summary import summarize_results
from runner.store import EpisodeRow
from runner.util.sqlite import Database
from tests.support.episodes import record_episodes


@pytest.fixture(autouse=True)
def kept_from_one_file_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_library, "MIN_FILES", 1)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    record_episodes(tmp_path / "data", 4)
    return tmp_path / "data"


def rows(data_dir: Path, cache: Path | None) -> list[EpisodeRow]:
    library = FileLibrary([data_dir], cache)
    listed = [row for part in library.scan() for row in part]
    known = library.rows()
    assert sorted(listed, key=lambda row: row.episode_id, reverse=True) == known
    assert all(library.load(row.episode_id)[1] for row in known)
    library.close()
    return known


def index_file(cache: Path) -> Path:
    (file,) = cache.glob("*/index.sqlite")
    return file


def episode_files(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob("runs/*/*.json"))


def replace_text(path: Path, old: bytes, new: bytes, *, keep_time: bool = False) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (not keep_time)))


def mark_kept_rows(cache: Path, env: str) -> None:
    """Give the kept rows another environment, by which they are recognized."""
    table = file_library._opened_table(index_file(cache))
    with table.transaction() as connection:
        connection.execute("UPDATE episodes SET env = ?", (env,))
    table.close()


def test_unchanged_files_are_listed_from_the_index_and_changed_ones_from_their_content(
    data_dir: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    assert {stat.S_IMODE(each.stat().st_mode) for each in index_file(cache).parent.iterdir()} == {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (cache, index_file(cache).parent)} == {0o700}
    assert rows(data_dir, cache) == first == rows(data_dir, None)
    mark_kept_rows(cache, "kept")
    assert [row.env for row in rows(data_dir, cache)] == ["kept"] * 4
    oldest, *_, newest = episode_files(data_dir)
    replace_text(oldest, b"oracle", b"ORACLE", keep_time=True)  # recognized by the time of the status change
    replace_text(newest, b"oracle", b"ORACLE")
    assert [row.env for row in rows(data_dir, cache)] == [first[0].env, "kept", "kept", first[0].env]
    known = rows(data_dir, cache)
    assert [row.agent for row in known] == ["ORACLE", "oracle", "oracle", "ORACLE"]
    assert all(getattr(known[1], name) is getattr(known[2], name) for name in ("env", "agent", "profile"))
    assert all(getattr(first[0], name) is getattr(first[1], name) for name in ("env", "agent", "profile"))
    copy = oldest.with_name("copy")
    shutil.copy2(oldest, copy)  # a file that replaces another one with the same times and size
    replace_text(copy, b"ORACLE", b"oracle", keep_time=True)
    copy.replace(oldest)
    assert [row.agent for row in rows(data_dir, cache)] == ["ORACLE", "oracle", "oracle", "oracle"]


def test_kept_rows_are_known_at_once_until_the_scan_looks_at_their_files(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "FIRST_PART_FILES", 1)
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    newest, deleted, changed, oldest = reversed(episode_files(data_dir))
    deleted.unlink()
    replace_text(changed, b"oracle", b"ORACLE")
    library = FileLibrary([data_dir], cache)
    assert library.first_rows == library.rows() == first
    with pytest.raises(StoreError, match=f"{deleted.name} cannot be read"):
        library.load(deleted.stem)
    parts = library.scan()
    assert next(parts) == []
    assert [row.episode_id for row in next(parts)] == [newest.stem, oldest.stem]
    with pytest.raises(StoreError, match="have no episode"):
        library.load(deleted.stem)
    assert [row.agent for row in next(parts)] == ["ORACLE"]
    assert [row.agent for row in library.rows()] == ["oracle", "ORACLE", "oracle"]
    assert len([*parts]) == 0 and library.rows() == rows(data_dir, None)


def test_new_and_deleted_files_change_the_index(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    episode_files(data_dir)[1].unlink()
    record_episodes(data_dir, 2, env="Wordle")
    second = rows(data_dir, cache)
    assert second == rows(data_dir, None) == rows(data_dir, cache)
    assert len(second) == len(first) + 1
    for file in episode_files(data_dir):
        file.unlink()
    library = FileLibrary([data_dir], cache)
    assert len(library.first_rows) == len(second)
    assert [*library.scan()] == [[]] and library.rows() == []
    assert summarize_results(library.result_source()) == []


def test_an_interrupted_scan_keeps_what_it_has_read(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "FIRST_PART_FILES", 2)
    library = FileLibrary([data_dir], tmp_path / "cache")
    parts = library.scan()
    newest = [row.episode_id for row in next(parts)]
    assert newest == [path.stem for path in reversed(episode_files(data_dir))][:2]
    library.close()
    assert [row.episode_id for row in FileLibrary([data_dir], tmp_path / "cache").first_rows] == newest
    assert len(rows(data_dir, tmp_path / "cache")) == 4


@pytest.mark.parametrize("damage", ["no database", "a torn page", "an impossible value", "other columns", "a pipe"])
def test_a_damaged_index_is_made_again(data_dir: Path, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    file = index_file(cache)
    match damage:
        case "no database":
            file.write_bytes(b"\x00\xff" * 5_000)
        case "a torn page":
            file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (file.stat().st_size - 4096))
        case "an impossible value" | "other columns":
            change = "UPDATE episodes SET rounds = 'x'" if "value" in damage else "ALTER TABLE episodes DROP COLUMN env"
            table = file_library._opened_table(file)
            with table.transaction() as connection:
                connection.execute(change)
            table.close()
        case _:
            file.unlink()
            os.mkfifo(file)
    assert rows(data_dir, cache) == first
    for _ in range(2):
        assert rows(data_dir, cache) == first
    assert len(FileLibrary([data_dir], cache).first_rows) == 4


@pytest.mark.parametrize("with_folder", [False, True])
def test_an_index_that_another_process_deletes_is_made_again(data_dir: Path, tmp_path: Path, with_folder: bool) -> None:
    cache = tmp_path / "cache"
    library = FileLibrary([data_dir], cache)
    n_rows = sum(len(part) for part in library.scan())
    if with_folder:
        shutil.rmtree(cache)
    else:
        index_file(cache).unlink()
    assert sum(row.n for row in summarize_results(library.result_source())) == n_rows == 4
    assert library.load(library.rows()[0].episode_id)[1]
    library.close()


def test_two_consoles_that_open_a_folder_at_once_list_all_of_it(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "FIRST_PART_FILES", 1)
    monkeypatch.setattr(file_library, "PART_FILES", 1)
    consoles = [FileLibrary([data_dir], tmp_path / "cache") for _ in range(2)]
    for _ in zip_longest(*(each.scan() for each in consoles)):  # in turns
        pass
    assert consoles[0].rows() == consoles[1].rows() == rows(data_dir, None)
    for each in consoles:
        each.close()
    assert rows(data_dir, tmp_path / "cache") == rows(data_dir, None)


def test_a_folder_is_listed_while_another_process_keeps_its_index_locked(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "Database", partial(Database, busy_timeout_s=0.01))
    first = rows(data_dir, tmp_path / "cache")
    with closing(sqlite3.connect(index_file(tmp_path / "cache"), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        record_episodes(data_dir, 1, env="Wordle")
        assert len(rows(data_dir, tmp_path / "cache")) == len(first) + 1
    assert len(rows(data_dir, tmp_path / "cache")) == len(first) + 1


def test_a_cache_folder_of_another_user_is_not_used(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first, user = rows(data_dir, cache), os.geteuid()
    mark_kept_rows(cache, "kept")
    before = index_file(cache).read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert rows(data_dir, cache) == first
    assert index_file(cache).read_bytes() == before


def test_the_folders_used_least_recently_are_forgotten(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    for name in ("opened-old", "opened-recent"):
        (cache / name).mkdir(parents=True)
        (cache / name / "index.sqlite").write_bytes(b"-" * 60_000)
    os.utime(cache / "opened-old", (1, 1))
    monkeypatch.setattr(file_library, "MAX_CACHE_BYTES", 100_000)
    rows(data_dir, cache)
    kept = {path.name for path in cache.iterdir()}
    assert len(kept) == 2 and "opened-old" not in kept


def test_a_name_that_is_no_text_is_listed_and_kept(data_dir: Path, tmp_path: Path) -> None:
    file = episode_files(data_dir)[0]
    file.rename(file.with_name(os.fsdecode(b"\xff\xfe.json")))
    for _ in range(2):
        assert len(rows(data_dir, tmp_path / "cache")) == 4


def test_a_short_folder_or_one_whose_cache_cannot_be_written_is_listed_without_it(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert rows(data_dir, tmp_path / "file" / "cache") == rows(data_dir, None)
    monkeypatch.setattr(file_library, "MIN_FILES", 5)
    assert len(rows(data_dir, tmp_path / "cache")) == 4
    assert not (tmp_path / "cache").exists()
