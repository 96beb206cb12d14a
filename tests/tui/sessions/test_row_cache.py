"""Listing a folder of episodes again from the cache of its rows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentgym_tui.sessions import file_library, row_cache
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.row_cache import MAX_CACHES
from runner.errors import StoreError
from runner.store import EpisodeRow
from tests.support.episodes import record_episodes


@pytest.fixture(autouse=True)
def cached_from_one_file_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "MIN_FILES", 1)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    record_episodes(tmp_path / "data", 4)
    return tmp_path / "data"


def rows(data_dir: Path, cache: Path | None) -> list[EpisodeRow]:
    library = FileLibrary([data_dir], cache)
    listed = [row for part in library.scan() for row in part]
    assert library.rows() == listed and all(library.load(row.episode_id)[1] for row in listed)
    return listed


def episode_files(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob("runs/*/*.json"))


def replace_text(path: Path, old: bytes, new: bytes, *, keep_time: bool) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (not keep_time)))


def test_unchanged_files_are_listed_from_the_cache_and_changed_ones_from_their_content(
    data_dir: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    (file,) = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert rows(data_dir, cache) == first == rows(data_dir, None)
    env = first[0].env
    replace_text(file, env.encode(), env.upper().encode(), keep_time=True)
    assert [row.env for row in rows(data_dir, cache)] == [env.upper()] * len(first)
    oldest, *_, newest = episode_files(data_dir)
    replace_text(oldest, b"oracle", b"ORACLE", keep_time=True)  # recognized by the time of the status change
    replace_text(newest, b"oracle", b"ORACLE", keep_time=False)
    assert [row.env for row in rows(data_dir, cache)] == [env, *[env.upper()] * (len(first) - 2), env]


def test_rows_share_their_equal_texts_and_common_numbers(data_dir: Path, tmp_path: Path) -> None:
    for path in episode_files(data_dir):
        replace_text(path, b'"reward":0.5', b'"reward":1.0', keep_time=False)
    for _ in range(2):  # from the files, then from the cache
        first, second, *_ = rows(data_dir, tmp_path / "cache")
        assert first.reward == 1.0
        for name in ("env", "agent", "profile", "reward"):
            assert getattr(first, name) is getattr(second, name)


def test_the_cache_is_rewritten_only_after_a_change(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    (file,) = cache.iterdir()
    before = cache.stat().st_mtime_ns  # changes with each temporary file
    assert rows(data_dir, cache) == first and cache.stat().st_mtime_ns == before
    episode_files(data_dir)[0].unlink()
    assert rows(data_dir, cache) == first[:-1]
    assert len(file.read_bytes().splitlines()) == len(first) - 1 and [*cache.iterdir()] == [file]


def test_a_row_that_is_too_long_keeps_the_others_in_the_cache(tmp_path: Path) -> None:
    data_dir, cache = tmp_path / "data", tmp_path / "cache"
    record_episodes(data_dir, 6)
    long_row = episode_files(data_dir)[3]
    replace_text(long_row, b'"agent":"oracle"', b'"agent":"' + b"a" * 70_000 + b'"', keep_time=False)
    first = rows(data_dir, cache)
    assert max(len(row.agent) for row in first) == 70_000
    (file,) = cache.iterdir()
    env = first[0].env
    replace_text(file, env.encode(), env.upper().encode(), keep_time=True)
    before = file.read_bytes()
    assert [row.env for row in rows(data_dir, cache)].count(env.upper()) == 5
    assert file.read_bytes() == before


def test_cached_rows_are_known_at_once_until_the_scan_reaches_their_files(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "FIRST_PART_FILES", 1)
    monkeypatch.setattr(file_library, "PART_FILES", 1)
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    newest, deleted, changed, _ = reversed(episode_files(data_dir))
    deleted.unlink()
    replace_text(changed, b"oracle", b"ORACLE", keep_time=False)
    library = FileLibrary([data_dir], cache)
    assert library.first_rows == library.rows() == first
    with pytest.raises(StoreError, match=f"{deleted.name} cannot be read"):
        library.load(deleted.stem)
    parts = library.scan()
    assert [row.episode_id for row in next(parts)] == [newest.stem] and library.rows() == first
    assert [row.agent for row in next(parts)] == ["ORACLE"]
    assert [row.agent for row in library.rows()] == ["oracle", "ORACLE", "oracle"]
    with pytest.raises(StoreError, match="have no episode"):
        library.load(deleted.stem)
    assert len([*parts]) == 1 and library.rows() == rows(data_dir, None)


def test_cached_rows_of_an_emptied_folder_are_dropped(data_dir: Path, tmp_path: Path) -> None:
    rows(data_dir, tmp_path / "cache")
    for file in episode_files(data_dir):
        file.unlink()
    library = FileLibrary([data_dir], tmp_path / "cache")
    assert len(library.first_rows) == 4
    assert [*library.scan()] == [[]] and library.rows() == []


def test_new_and_deleted_files_change_the_cache(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    episode_files(data_dir)[1].unlink()
    record_episodes(data_dir, 2, env="Wordle")
    second = rows(data_dir, cache)
    assert second == rows(data_dir, None) == rows(data_dir, cache)
    assert len(second) == len(first) + 1


DEEP = b'[["a","b"],[1,2,3],{"x":' + b"[" * 60_000 + b"\n"


@pytest.mark.parametrize("damage", [b"\x00\xff\n", b'["a",1,2]\n', b"[" * 100_000, DEEP])
def test_a_damaged_cache_is_replaced(data_dir: Path, tmp_path: Path, damage: bytes) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    (file,) = cache.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + damage + b"".join(lines[1:]))
    assert rows(data_dir, cache) == first
    assert file.read_bytes() == b"".join(lines) and [*cache.iterdir()] == [file]


@pytest.mark.parametrize("damage", [b"\x00\xff\n", b"[" * 100_000 + b"\n"])
def test_rows_after_a_damaged_line_come_from_the_cache(data_dir: Path, tmp_path: Path, damage: bytes) -> None:
    cache = tmp_path / "cache"
    env = rows(data_dir, cache)[0].env
    (file,) = cache.iterdir()
    newest, *others = file.read_bytes().replace(env.encode(), env.upper().encode()).splitlines(keepends=True)
    file.write_bytes(newest + damage + b"".join(others))
    assert {row.env for row in rows(data_dir, cache)} == {env.upper()}
    assert file.read_bytes() == newest + b"".join(others)


def test_a_cache_that_fails_to_be_read_does_not_end_the_listing(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows(data_dir, tmp_path / "cache")
    memory = Path("/proc/self/mem")  # reading its start fails
    if not memory.exists():
        pytest.skip("run on Linux: this system has no file that fails to be read")
    real_open = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *args: real_open(memory if Path(path).suffix == ".jsonl" else path, *args)
    )
    assert rows(data_dir, tmp_path / "cache") == first


def test_a_cache_folder_of_another_user_is_not_used(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    (file,) = cache.iterdir()
    env, user = first[0].env, os.geteuid()
    replace_text(file, env.encode(), env.upper().encode(), keep_time=True)
    before = file.read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert rows(data_dir, cache) == first
    assert file.read_bytes() == before and [*cache.iterdir()] == [file]


def test_a_cache_that_is_not_a_regular_file_is_replaced(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    (file,) = cache.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert rows(data_dir, cache) == first
    assert stat.S_ISREG(file.lstat().st_mode)


def test_caches_are_limited_by_size_and_old_temporary_files_are_deleted(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("rows-old.jsonl", "new-old", "new-recent"):
        (cache / name).write_bytes(b"-" * 100_000)
    os.utime(cache / "rows-old.jsonl", (1, 1))
    os.utime(cache / "new-old", (1, 1))
    monkeypatch.setattr(row_cache, "MAX_BYTES", 90_000)
    first = rows(data_dir, cache)
    kept = {path.name for path in cache.iterdir()}
    assert len(kept) == 2 and "new-recent" in kept and "rows-old.jsonl" not in kept
    assert rows(data_dir, cache) == first


def test_files_are_listed_without_a_cache_that_cannot_be_written(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert rows(data_dir, tmp_path / "file" / "cache") == rows(data_dir, None)


def test_an_interrupted_scan_leaves_no_cache(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_library, "FIRST_PART_FILES", 2)
    cache = tmp_path / "cache"
    parts = FileLibrary([data_dir], cache).scan()
    assert len(next(parts)) == 2
    assert len([*cache.iterdir()]) == 1
    parts.close()  # type: ignore[attr-defined]
    assert [*cache.iterdir()] == []


def test_the_number_of_caches_is_limited(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number in range(MAX_CACHES + 3):
        link = tmp_path / str(number)
        link.mkdir()
        (link / "runs").mkdir()
        (link / "runs" / "episode.json").write_bytes(episode_files(data_dir)[0].read_bytes())
        assert len(rows(link, cache)) == 1
    assert len([*cache.iterdir()]) == MAX_CACHES
