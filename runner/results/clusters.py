"""Failure clusters: failed episodes of one environment whose failures have the same cause and templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from runner.results.failures import CAUSES, Cause, Failure, find_failure
from runner.results.flags import FlagName, find_flags
from runner.store.episode_file import EpisodeRecord

SHOWN_IDS = 20
"""Maximum number of episodes that a cluster lists."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes that failed in the same way.

    Attributes:
        cause: what kind of failure it is; ``CAUSES`` has its meaning.
        action: template of the action that failed; empty without one.
        observation: template of the answer to it, or of the error.
        n: number of episodes.
        representative: id of the shortest of them, of the oldest if several are equally short.
        step: index of the representative's step that failed; None without one.
        agents: number of episodes by agent and model.
        flags: number of episodes by flag.
        episodes: ids of the first ``SHOWN_IDS`` of them.
    """

    env: str
    cause: Cause
    action: str
    observation: str
    n: int
    representative: str
    step: int | None
    agents: dict[str, int]
    flags: dict[FlagName, int]
    episodes: list[str]

    @property
    def text(self) -> str:
        """Cause and templates in one line."""
        what = " -> ".join(filter(None, (self.action, "" if self.cause == "limit" else self.observation)))
        return f"{CAUSES[self.cause]}: {what}" if what else CAUSES[self.cause]


class _Key(NamedTuple):
    env: str
    cause: Cause
    action: str
    observation: str


class _Group:
    def __init__(self) -> None:
        self.n = 0
        self.representative: tuple[int, str, int | None] | None = None
        self.agents: Counter[str] = Counter()
        self.flags: Counter[FlagName] = Counter()
        self.episodes: list[str] = []

    def add(self, episode: EpisodeRecord, failure: Failure) -> None:
        self.n += 1
        self.agents[" ".join(filter(None, (episode.agent, episode.model)))] += 1
        self.flags.update(flag.name for flag in find_flags(episode))
        if len(self.episodes) < SHOWN_IDS:
            self.episodes.append(episode.episode_id)
        candidate = (episode.rounds, episode.episode_id, failure.step)
        if self.representative is None or candidate[:2] < self.representative[:2]:
            self.representative = candidate


def find_clusters(episodes: Iterable[EpisodeRecord]) -> list[Cluster]:
    """Return the clusters of the failed ones among episodes, the largest first; one episode is held at a time."""
    groups: dict[_Key, _Group] = {}
    for episode in episodes:
        if (failure := find_failure(episode)) is not None:
            key = _Key(episode.env, failure.cause, failure.action, failure.observation)
            groups.setdefault(key, _Group()).add(episode, failure)
    clusters = [_cluster(key, group) for key, group in groups.items()]
    return sorted(clusters, key=lambda cluster: (-cluster.n, cluster.representative))


def _cluster(key: _Key, group: _Group) -> Cluster:
    _, representative, step = group.representative or (0, "", None)
    return Cluster(
        **key._asdict(),
        n=group.n,
        representative=representative,
        step=step,
        agents=dict(group.agents.most_common()),
        flags=dict(group.flags.most_common()),
        episodes=group.episodes,
    )
