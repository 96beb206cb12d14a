"""Rewards and success counts of the newest episodes of each environment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from runner.types import UNRATED

N_POINTS: Final = 500
"""Largest number of reward points kept per environment."""

UNRATED_OUTCOMES: Final = frozenset(outcome.value for outcome in UNRATED)
"""Outcomes of episodes that were cut off or broke down, so they do not count for the success rate."""


class RewardPoint(NamedTuple):
    """Reward of a finished episode.

    Attributes:
        rated: whether the episode counts for the success rate; False for the outcomes in ``UNRATED_OUTCOMES``, and for
            unscored episodes.
        baseline: whether the agent used no model.
        error: whether the episode ended with an error.
        unscored: whether the evaluation leaves the episode unscored.
    """

    episode_id: str
    reward: float
    success: bool
    rated: bool
    baseline: bool = False
    error: bool = False
    unscored: bool = False


class SuccessCounts(NamedTuple):
    """Success counts of an environment, either of models or of baseline agents.

    Attributes:
        n_rated: number of rated episodes.
        n_success: number of rated episodes that succeeded.
        n_errors: number of episodes that ended with an error.
        baseline: whether the counts are those of baseline agents, because no model has a rated episode or an error.
    """

    n_rated: int
    n_success: int
    n_errors: int
    baseline: bool


class RewardHistory:
    """Reward points per environment, sorted by episode id and so from the oldest to the newest.

    Args:
        max_envs: largest number of environments; the points of further environments are ignored.
    """

    def __init__(self, max_envs: int) -> None:
        self.by_env: dict[str, deque[RewardPoint]] = {}
        self._max_envs = max_envs

    def add(self, env: str, point: RewardPoint) -> None:
        """Add the reward point of an episode, or replace the point that has the same episode id."""
        known = self.by_env.get(env)
        if known and point.episode_id > known[-1].episode_id:
            known.append(point)
        else:
            self.merge(env, [point])

    def merge(self, env: str, points: Iterable[RewardPoint]) -> None:
        """Add reward points in any order; a new point replaces a known point with the same episode id."""
        if env not in self.by_env and len(self.by_env) >= self._max_envs:
            return
        by_id = {point.episode_id: point for point in (*self.by_env.get(env, ()), *points)}
        self.by_env[env] = deque((by_id[episode_id] for episode_id in sorted(by_id)), maxlen=N_POINTS)


def rated_points(points: Iterable[RewardPoint]) -> list[RewardPoint]:
    """Return the rated points of models, or those of baseline agents where no model has a rated point."""
    return _without_baselines([point for point in points if point.rated])


def count_successes(points: Iterable[RewardPoint]) -> SuccessCounts:
    """Count rated episodes, successes and errors of models, or of baseline agents where no model has any of them."""
    counted = _without_baselines([point for point in points if point.rated or point.error])
    rated = [point for point in counted if point.rated]
    return SuccessCounts(
        n_rated=len(rated),
        n_success=sum(point.success for point in rated),
        n_errors=len(counted) - len(rated),
        baseline=bool(counted) and counted[0].baseline,
    )


def _without_baselines(points: list[RewardPoint]) -> list[RewardPoint]:
    return [point for point in points if not point.baseline] or points
