"""Archived episodes in the console: as an opened archive or folder, and in the library of a state directory."""

from __future__ import annotations

import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from agentgym_tui.sessions import file_library
from agentgym_tui.sessions.episode_files import is_log
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.library import StateDirLibrary
from runner.errors import StoreError
from runner.store import EpisodeStore, open_index
from runner.store.pruning import archive_episodes
from tests.support.episodes import record_episodes, stored_files


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, bytes]:
    """Content of the files of 4 episodes, 3 of which are archived now."""
    record_episodes(tmp_path / "data", 4)
    store = EpisodeStore(tmp_path / "data")
    contents = {file.episode_id: store.read_bytes(file.episode_id) for file in stored_files(store)}
    files = sorted(stored_files(store), key=lambda file: file.episode_id)
    with closing(open_index(store)) as index:
        for file in files[:3]:
            archive_episodes(store, index, file.batch_id, [file.episode_id])
    return contents


def opened(*paths: Path, cache: Path | None = None) -> dict[str, bytes]:
    library = FileLibrary(paths, cache)
    listed = [row.episode_id for part in library.scan() for row in part]
    assert library.unreadable == []
    return {each: library.load(each)[1] for each in listed}


def test_folders_and_archives_are_opened(
    tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(tmp_path / "data") == contents
    monkeypatch.setattr(file_library, "MIN_FILES", 1)
    for _ in range(2):
        assert opened(tmp_path / "data", cache=tmp_path / "cache") == contents
    archives = list((tmp_path / "data").glob("runs/*/*.zip"))
    moved = tmp_path / "moved.zip"
    archives[0].rename(moved)
    assert not is_log(moved)
    assert len(opened(moved)) >= 1
    assert opened(moved).items() <= contents.items()
    assert {**opened(moved), **opened(tmp_path / "data")} == contents


def test_the_library_of_a_node_lists_and_loads_them(tmp_path: Path, contents: dict[str, bytes]) -> None:
    library = StateDirLibrary(lambda: tmp_path / "data")
    with closing(library):
        assert {row.episode_id for row in library.rows()} == contents.keys()
        for episode_id, content in contents.items():
            episode, data = library.load(episode_id)
            assert (episode.episode_id, data) == (episode_id, content)
            path = library.path(episode_id)
            assert path is not None
            assert path.exists()


def test_damaged_archives_are_unreadable_and_hide_nothing(tmp_path: Path, contents: dict[str, bytes]) -> None:
    damaged = tmp_path / "data" / "runs" / "damaged.zip"
    damaged.write_bytes(b"PK\3\4 no archive")
    library = FileLibrary([tmp_path / "data"])
    assert sum(len(part) for part in library.scan()) == len(contents)
    assert [each.path for each in library.unreadable] == [damaged]
    archive = next((tmp_path / "data").glob("runs/*/*.zip"))
    archive.unlink()
    gone = {row.episode_id for row in library.rows()} - opened(*(tmp_path / "data" / "runs").glob("0*")).keys()
    assert gone
    with pytest.raises(StoreError, match="cannot be read"):
        library.load(gone.pop())


def test_an_archive_of_other_files_lists_none(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../etc/passwd.json", "{}")
        archive.writestr("readme.txt", "hello")
    library = FileLibrary([path])
    assert [*library.scan()] == [[]]
    assert [each.path for each in library.unreadable] == [path / "passwd.json"]
