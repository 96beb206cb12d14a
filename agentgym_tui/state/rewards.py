"""What the newest episodes of each environment came to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

N_POINTS: Final = 500
"""Episodes per environment that are looked at."""

UNRATED_OUTCOMES: Final = frozenset({"cancelled", "interrupted"})
"""Outcomes that say nothing about the agent."""


class RewardPoint(NamedTuple):
    """An episode that is over; not ``rated_points`` when it was cut off, ``baseline`` when no model played."""

    episode_id: str
    reward: float
    success: bool
    rated: bool
    baseline: bool = False


class SuccessCounts(NamedTuple):
    """Successes among rated episodes: those of models, or, while there is none, the ``baseline`` ones."""

    n_rated: int
    n_success: int
    baseline: bool


class RewardHistory:
    """The newest points per environment, the oldest first; ids sort by time."""

    def __init__(self, max_envs: int) -> None:
        """Start empty."""
        self.by_env: dict[str, deque[RewardPoint]] = {}
        self._max_envs = max_envs

    def add(self, env: str, point: RewardPoint) -> None:
        """Add an episode, or say more of a known one."""
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
        self.by_env[env] = deque((by_id[known] for known in sorted(by_id)), maxlen=N_POINTS)


def rated_points(points: Iterable[RewardPoint]) -> list[RewardPoint]:
    """Those that say something about the agent: of models, or, while there is none, of baselines."""
    told = [point for point in points if point.rated]
    return [point for point in told if not point.baseline] or told


def count_successes(points: Iterable[RewardPoint]) -> SuccessCounts:
    """Models are not mixed with baselines."""
    counted = rated_points(points)
    return SuccessCounts(len(counted), sum(point.success for point in counted), bool(counted) and counted[0].baseline)
