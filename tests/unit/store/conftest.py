from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.store import EpisodeIndex, EpisodeStore, open_index
from tests.support.episodes import RecordedEpisode


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    return EpisodeStore(tmp_path / "data")


@pytest.fixture
def index(store: EpisodeStore) -> Iterator[EpisodeIndex]:
    index = open_index(store)
    yield index
    index.close()


@pytest.fixture
def recording(store: EpisodeStore, index: EpisodeIndex) -> RecordedEpisode:
    """Return an episode that has not started."""
    return RecordedEpisode(store, index)
