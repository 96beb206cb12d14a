"""Listing a folder of episodes again from the cache of its rows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentgym_tui.sessions import row_cache
from agentgym_tui.sessions.file_session import FileLibrary
from agentgym_tui.sessions.row_cache import MAX_CACHES
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
    oldest, *_, newest = episode_files(data_dir)
    env = first[0].env
    replace_text(oldest, env.encode(), env.upper().encode(), keep_time=True)
    replace_text(newest, env.encode(), env.upper().encode(), keep_time=False)
    assert [row.env for row in rows(data_dir, cache)] == [env.upper(), *[env] * (len(first) - 1)]


def test_new_and_deleted_files_change_the_cache(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    episode_files(data_dir)[1].unlink()
    record_episodes(data_dir, 2, env="Wordle")
    second = rows(data_dir, cache)
    assert second == rows(data_dir, None) == rows(data_dir, cache)
    assert len(second) == len(first) + 1


@pytest.mark.parametrize("damage", [b"\x00\xff\n", b'["a",1,2]\n', b"[" * 100_000])
def test_a_damaged_cache_is_replaced(data_dir: Path, tmp_path: Path, damage: bytes) -> None:
    cache = tmp_path / "cache"
    first = rows(data_dir, cache)
    (file,) = cache.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + damage + b"".join(lines[1:]))
    assert rows(data_dir, cache) == first
    assert file.read_bytes() == b"".join(lines) and [*cache.iterdir()] == [file]


def test_files_are_listed_without_a_cache_that_cannot_be_written(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert rows(data_dir, tmp_path / "file" / "cache") == rows(data_dir, None)


def test_an_interrupted_scan_leaves_no_cache_and_caches_are_limited(data_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    parts = FileLibrary([data_dir], cache).scan()
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert not cache.exists() or [*cache.iterdir()] == []
    for number in range(MAX_CACHES + 3):
        link = tmp_path / str(number)
        link.mkdir()
        (link / "runs").mkdir()
        (link / "runs" / "episode.json").write_bytes(episode_files(data_dir)[0].read_bytes())
        assert len(rows(link, cache)) == 1
    assert len([*cache.iterdir()]) == MAX_CACHES
