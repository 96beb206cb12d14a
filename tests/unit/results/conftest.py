from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.store import EpisodeIndex, EpisodeStore, open_index


@pytest.fixture
def episode_store(tmp_path: Path) -> EpisodeStore:
    return EpisodeStore(tmp_path / "data")


@pytest.fixture
def index(episode_store: EpisodeStore) -> Iterator[EpisodeIndex]:
    index = open_index(episode_store)
    yield index
    index.close()
