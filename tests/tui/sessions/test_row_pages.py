from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentgym_tui.sessions import library
from agentgym_tui.sessions.library import RowPages
from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.types import Outcome
from tests.support.episodes import newest_rows, record_episodes

N_EPISODES, LIMIT = 7, 100


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EpisodeIndex]:
    monkeypatch.setattr(library, "PAGE", 3)
    monkeypatch.setattr(library, "N_SPARE_PAGES", 1)
    record_episodes(tmp_path, N_EPISODES, end={"outcome": Outcome.FAILURE, "success": False})
    with closing(open_index(EpisodeStore(tmp_path))) as opened:
        yield opened


def test_unchanged_rows_stay_the_same_objects(index: EpisodeIndex) -> None:
    pages = RowPages(index)
    first = pages.rows(LIMIT)
    assert first == newest_rows(index, LIMIT) and len(first) == N_EPISODES
    record_episodes(index.data_dir)
    second = pages.rows(LIMIT)
    assert second == newest_rows(index, LIMIT) and len(second) == N_EPISODES + 1
    assert all(before is after for before, after in zip(first[1:], second[2:], strict=True))
    assert all(before is after for before, after in zip(second, pages.rows(LIMIT), strict=True))


def test_deleted_and_changed_rows_are_read_again(index: EpisodeIndex) -> None:
    pages = RowPages(index)
    first = pages.rows(LIMIT)
    with index.transaction() as connection:
        connection.execute("DELETE FROM episodes WHERE episode_id = ?", (first[3].episode_id,))
    second = pages.rows(LIMIT)
    assert second == newest_rows(index, LIMIT) and len(second) == N_EPISODES - 1
    with index.transaction() as connection:
        connection.execute("UPDATE episodes SET flags = 'loop', mtime_ns = mtime_ns + 1")
    assert {row.flags for row in pages.rows(LIMIT)} == {"loop"}


def test_only_the_newest_rows_are_kept(index: EpisodeIndex) -> None:
    pages = RowPages(index)
    for _ in range(5):
        assert pages.rows(4) == newest_rows(index, 4)
        record_episodes(index.data_dir)
    assert sum(map(len, pages._pages.values())) <= 4 + library.PAGE
    with index.transaction() as connection:
        connection.execute("DELETE FROM episodes WHERE episode_id > ?", (newest_rows(index, 10)[-1].episode_id,))
    assert pages.rows(4) == newest_rows(index, 4)


def test_an_empty_index_has_no_rows(index: EpisodeIndex) -> None:
    pages = RowPages(index)
    pages.rows(LIMIT)
    with index.transaction() as connection:
        connection.execute("DELETE FROM episodes")
    assert pages.rows(LIMIT) == []


def test_an_impossible_value_is_a_store_error(index: EpisodeIndex) -> None:
    with index.transaction() as connection:
        connection.execute("UPDATE episodes SET rounds = 'many'")
    with pytest.raises(StoreError, match="cannot be used"):
        RowPages(index).rows(LIMIT)
