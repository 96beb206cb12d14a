from __future__ import annotations

import pytest

from runner.store import EpisodeIndex, EpisodeStore
from tests.support.episodes import RecordedEpisode


@pytest.fixture
def recording(store: EpisodeStore, index: EpisodeIndex) -> RecordedEpisode:
    """Return an episode that has not started."""
    return RecordedEpisode(store, index)
