"""Environments of the profile and of what was played, with what their episodes came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.limits import clamp_count, clamp_finite, clip_name, clip_optional
from agentgym_tui.state.models import EnvironmentState, Episode
from agentgym_tui.state.rewards import N_POINTS, UNRATED_OUTCOMES, RewardHistory, RewardPoint, count_successes
from runner.events.live import EnvHealth

if TYPE_CHECKING:
    from runner.store.index_schema import EpisodeRow

MAX_ENVS: Final = 200


class EnvironmentRegistry:
    """Environments by name, those of the profile first and in its order."""

    def __init__(self) -> None:
        """Start empty."""
        self.envs: dict[str, EnvironmentState] = {}
        self.rewards = RewardHistory(MAX_ENVS)
        self._stale: set[str] = set()

    def get(self, env: str) -> EnvironmentState | None:
        """The environment of this name, a new one if need be; None for no name, and where there are too many."""
        env = clip_name(env)
        if env not in self.envs and env and len(self.envs) < MAX_ENVS:
            self.envs[env] = EnvironmentState(env)
        return self.envs.get(env)

    def apply_profile(self, entries: Iterable[tuple[str, str, str | None]]) -> None:
        """Tier, name and memory of each environment of a profile."""
        others, self.envs = self.envs, {}
        for tier, env, ram in entries:
            self.envs.setdefault(clip_name(env), others.pop(clip_name(env), EnvironmentState(clip_name(env))))
            self.envs[clip_name(env)].tier, self.envs[clip_name(env)].ram = clip_name(tier), clip_name(ram or "")
        self.envs |= others

    def apply_health(self, item: EnvHealth) -> None:
        """Whether it can be played."""
        if (env := self.get(item.env)) is not None:
            env.status, env.cause, env.latency_s = item.status, clip_optional(item.cause), item.latency_s
            env.transport, env.open = clip_name(item.transport), None if item.open is None else clamp_count(item.open)

    def apply_ended(self, episode: Episode) -> None:
        """An episode is over."""
        if self.get(episode.env) is None:
            return
        rated, baseline = episode.outcome not in UNRATED_OUTCOMES, episode.model is None
        point = RewardPoint(episode.episode_id, episode.reward, episode.success, rated, baseline)
        self.rewards.add(episode.env, point)
        self._stale.add(episode.env)

    def apply_stored(self, rows: Sequence[EpisodeRow]) -> None:
        """Rows of an index, the newest first."""
        newest: dict[str, list[RewardPoint]] = {}
        for row in rows:
            points = newest.setdefault(clip_name(row.env), [])
            if len(points) < N_POINTS:
                rated = row.outcome not in UNRATED_OUTCOMES
                points.append(
                    RewardPoint(row.episode_id, clamp_finite(row.reward), row.success, rated, row.model is None)
                )
        for env, points in newest.items():
            if self.get(env) is not None:
                self.rewards.merge(env, points)
                self._stale.add(env)

    def refresh(self, running: Iterable[Episode]) -> None:
        """Bring the numbers of each environment up to date."""
        for env in self.envs.values():
            env.n_running = 0
        for episode in running:
            if (found := self.envs.get(episode.env)) is not None and not episode.node_lost:
                found.n_running += 1
        for stale in self._stale & self.envs.keys():
            points = self.rewards.by_env.get(stale)
            if points:
                of, env = count_successes(points), self.envs[stale]
                env.last_reward, env.n_rated, env.n_success = points[-1].reward, of.n_rated, of.n_success
                env.baseline = of.baseline
        self._stale.clear()
