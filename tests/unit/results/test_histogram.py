from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.results.summary import EVERYTHING, N_BINS, Selection, reward_histogram
from runner.store import EpisodeIndex
from runner.types import Outcome
from tests.support.episodes import RecordedEpisode
from tests.support.results import ResultTable

REWARDS = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


@given(REWARDS)
@example([1.7e308, -1.7e308])
@example([0.0, 0.05, 0.1, 1.0])
def test_each_reward_is_in_a_bin_whose_bounds_enclose_it(rewards: list[float]) -> None:
    histogram = reward_histogram(ResultTable([{"reward": reward} for reward in rewards]), EVERYTHING)
    assert histogram is not None
    assert (histogram.low, histogram.high) == (min(0.0, *rewards, 0.0), max(1.0, *rewards, 1.0))
    assert len(histogram.counts) == N_BINS and sum(histogram.counts) == len(rewards)
    assert histogram.counts[-1] >= sum(reward == histogram.high for reward in rewards)


def test_only_rated_episodes_of_the_selection_count(index: EpisodeIndex) -> None:
    for agent, outcome in (("react", Outcome.SUCCESS), ("react", Outcome.ERROR), ("oracle", Outcome.SUCCESS)):
        fields: dict[str, Any] = {"agent": agent, "model": None if agent == "oracle" else "small"}
        RecordedEpisode(index._store, index, **fields).record_episode(1, outcome=outcome, success=True)
    for selection in (Selection(agent="react"), Selection(has_model=True), Selection(has_model=False)):
        histogram = reward_histogram(index, selection)
        assert histogram is not None and sum(histogram.counts) == 1
    assert reward_histogram(index, Selection(agent="random")) is None


@pytest.mark.parametrize("value", ["text", b"\xff"])
def test_a_reward_that_is_no_number_is_reported(value: object) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        reward_histogram(ResultTable([{"reward": value}]), EVERYTHING)


def test_infinite_rewards_are_in_the_last_bins() -> None:
    histogram = reward_histogram(ResultTable([{"reward": math.inf}, {"reward": 0.5}]), EVERYTHING)
    assert histogram is not None and histogram.counts[-1] == 1
