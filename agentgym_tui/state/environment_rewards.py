"""Rewards and success counts of the newest episodes of each environment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from agentgym_tui.state.data_model import EnvironmentState
from runner.types import UNRATED

N_POINTS: Final = 500
"""Largest number of reward points kept per environment."""

UNRATED_OUTCOMES: Final = frozenset(outcome.value for outcome in UNRATED)
"""Outcomes of episodes that were cut off or broke down, so they do not count for the success rate."""


class RewardPoint(NamedTuple):
    """Reward of a finished episode.

    Attributes:
        reward: None if it is not known.
        success: whether the episode solved its task; None if that is not known: then it is in no rate.
        rated: whether the episode counts for rates and means; False for the outcomes in ``UNRATED_OUTCOMES``, and for
            unscored episodes.
        agent: name of the agent.
        model: name of its model; None for a baseline agent.
        error: whether the episode ended with an error.
        unscored: whether the evaluation leaves the episode unscored.
    """

    episode_id: str
    reward: float | None
    success: bool | None
    rated: bool
    agent: str = ""
    model: str | None = None
    error: bool = False
    unscored: bool = False


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
    """Return the rated points of models, or those of the newest baseline agent where no model has a rated point."""
    return _comparable([point for point in points if point.rated])


def count_successes(env: EnvironmentState, points: Sequence[RewardPoint]) -> None:
    """Set the last reward and the success counts: those of models, or of the newest baseline where no model has any."""
    env.last_reward = next((point.reward for point in reversed(points) if not point.error), None)
    env.unscored = any(point.unscored for point in points)
    counted = _comparable([point for point in points if point.rated or point.error])
    rated = [point for point in counted if point.rated and point.success is not None]
    env.n_rated, env.n_success = len(rated), sum(bool(point.success) for point in rated)
    env.n_errors = sum(point.error for point in counted)
    env.baseline = counted[-1].agent if counted and counted[-1].model is None else None
    env.n_players = len({(point.agent, point.model) for point in rated})


def _comparable(points: list[RewardPoint]) -> list[RewardPoint]:
    """Return the points of models, or those of the newest agent where none has a model."""
    return [point for point in points if point.model is not None] or [
        point for point in points if point.agent == points[-1].agent
    ]
