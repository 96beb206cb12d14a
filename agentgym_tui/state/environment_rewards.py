"""Rewards and success counts of the newest episodes of each environment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

N_POINTS: Final = 500
"""Episodes per environment that are kept."""

UNRATED_OUTCOMES: Final = frozenset({"cancelled", "interrupted"})
"""Outcomes that say nothing about the agent."""


class RewardPoint(NamedTuple):
    """Reward of a finished episode.

    Attributes:
        rated: False where the episode was cut off.
        baseline: the agent used no model.
    """

    episode_id: str
    reward: float
    success: bool
    rated: bool
    baseline: bool = False


class SuccessCounts(NamedTuple):
    """Successes among rated episodes of models; of baseline agents where no model has any."""

    n_rated: int
    n_success: int
    baseline: bool


class RewardHistory:
    """Reward points per environment, the oldest first; episode ids sort by time.

    Args:
        max_envs: largest number of environments.
    """

    def __init__(self, max_envs: int) -> None:
        self.by_env: dict[str, deque[RewardPoint]] = {}
        self._max_envs = max_envs

    def add(self, env: str, point: RewardPoint) -> None:
        """Add an episode, or replace a known one."""
        known = self.by_env.get(env)
        if known and point.episode_id > known[-1].episode_id:
            known.append(point)
        else:
            self.merge(env, [point])

    def merge(self, env: str, points: Iterable[RewardPoint]) -> None:
        """Add episodes in any order."""
        if env not in self.by_env and len(self.by_env) >= self._max_envs:
            return
        by_id = {point.episode_id: point for point in (*self.by_env.get(env, ()), *points)}
        self.by_env[env] = deque((by_id[episode_id] for episode_id in sorted(by_id)), maxlen=N_POINTS)


def rated_points(points: Iterable[RewardPoint]) -> list[RewardPoint]:
    """Return the rated points of models; those of baseline agents where no model has any."""
    rated = [point for point in points if point.rated]
    return [point for point in rated if not point.baseline] or rated


def count_successes(points: Iterable[RewardPoint]) -> SuccessCounts:
    """Count the successes among ``rated_points``, so that models and baselines are never mixed."""
    counted = rated_points(points)
    return SuccessCounts(len(counted), sum(point.success for point in counted), bool(counted) and counted[0].baseline)
