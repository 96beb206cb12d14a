"""Registry of the environments named by the profile or by episodes, with their rewards and success counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.data_model import EnvironmentState, Episode
from agentgym_tui.state.environment_rewards import (
    N_POINTS,
    UNRATED_OUTCOMES,
    RewardHistory,
    RewardPoint,
    count_successes,
)
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, clamp_finite, clamp_optional, clip_name, clip_optional
from runner.events.live import EnvHealth

if TYPE_CHECKING:
    from runner.store.index_schema import EpisodeRow

MAX_ENVS: Final = 200


class EnvironmentRegistry:
    """Environments by name: first the environments of the profile in its order, then all other known environments.

    Attributes:
        version: counter that grows with each change of ``envs``.
    """

    def __init__(self) -> None:
        self.envs: dict[str, EnvironmentState] = {}
        self.version = 0
        self.rewards = RewardHistory(MAX_ENVS)
        self._stale: set[str] = set()
        self._counted_version = -1

    def get(self, env: str) -> EnvironmentState | None:
        """Return the environment named ``env``, created where needed; None for "" and where ``MAX_ENVS`` are known."""
        env = clip_name(env)
        if env not in self.envs and env and len(self.envs) < MAX_ENVS:
            self.envs[env] = EnvironmentState(env)
            self.version += 1
        return self.envs.get(env)

    def apply_profile(self, entries: Iterable[tuple[str, str, str | None]]) -> None:
        """Set the order, tiers and server memory of the environments from a profile.

        The node no longer checks an environment that only the profile before had, so its health becomes unknown.

        Args:
            entries: tier, environment name and memory of the environment's server, in the order of the profile.
        """
        others, self.envs = self.envs, {}
        for tier, env, ram in entries:
            self.envs.setdefault(clip_name(env), others.pop(clip_name(env), EnvironmentState(clip_name(env))))
            self.envs[clip_name(env)].tier, self.envs[clip_name(env)].ram = clip_name(tier), clip_name(ram or "")
        for left in (other for other in others.values() if other.tier):
            left.tier, left.ram, left.status, left.cause, left.note = "", "", None, None, None
            left.latency_s = left.open = None
        self.envs |= others
        self.version += 1

    def apply_health(self, item: EnvHealth) -> bool:
        """Store the health that a node reported for an environment; return whether it has changed."""
        before = copy(self.envs.get(clip_name(item.env)))
        if (env := self.get(item.env)) is not None:
            env.status, env.cause, env.latency_s = item.status, clip_optional(item.cause), item.latency_s
            env.note = clip_optional(item.note, MAX_CAUSE_CHARS)
            env.transport, env.open = clip_name(item.transport), clamp_optional(item.open)
        self.version += (changed := env != before)
        return changed

    def apply_ended(self, episode: Episode) -> None:
        """Add the reward of an ended episode to its environment."""
        if self.get(episode.env) is None:
            return
        self.rewards.add(episode.env, _reward_point(episode))
        self._stale.add(episode.env)

    def apply_stored(self, rows: Sequence[EpisodeRow]) -> None:
        """Add the rewards of stored episodes; the newest episode is first in ``rows``."""
        newest: dict[str, list[RewardPoint]] = {}
        for row in rows:
            points = newest.setdefault(clip_name(row.env), [])
            if len(points) < N_POINTS:
                points.append(_reward_point(row))
        for env, points in newest.items():
            if self.get(env) is not None:
                self.rewards.merge(env, points)
                self._stale.add(env)

    def refresh(self, running: Iterable[Episode], version: int) -> None:
        """Recount the running episodes of each environment, and the successes of each environment with new rewards.

        Args:
            running: the running episodes.
            version: their version; the episodes are counted if it is not that of the last call.
        """
        if version != self._counted_version:
            self._counted_version = version
            self._count(running)
        self.version += bool(self._stale)
        for stale in self._stale & self.envs.keys():
            if points := self.rewards.by_env.get(stale):
                count_successes(self.envs[stale], points)
        self._stale.clear()

    def _count(self, running: Iterable[Episode]) -> None:
        n_running = Counter([episode.env for episode in running if not episode.node_lost])
        for name in sorted(n_running.keys() - self.envs.keys()):
            self.get(name)
        for env in self.envs.values():
            self.version += env.n_running != n_running[env.name]
            env.n_running = n_running[env.name]


def _reward_point(episode: Episode | EpisodeRow) -> RewardPoint:
    return RewardPoint(
        episode_id=episode.episode_id,
        reward=None if episode.reward is None else clamp_finite(episode.reward),
        success=episode.success,
        rated=episode.outcome not in UNRATED_OUTCOMES and not episode.unscored,
        agent=clip_name(episode.agent),
        model=clip_optional(episode.models),
        error=episode.outcome == "error",
        unscored=episode.unscored,
    )
