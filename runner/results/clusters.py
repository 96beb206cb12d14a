"""Failure clusters: failed episodes of one environment whose failures have the same cause and templates."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import msgspec

from runner.store.failures import CAUSES, parse_line
from runner.store.index_schema import EpisodeRow

SHOWN_IDS = 20


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes that failed in the same way; ``failure`` is the line that the query field ``failure`` has.

    Attributes:
        action: template of the action that failed; empty without one.
        observation: template of the answer to it, or of the error.
        representative: id of the shortest of them, of the oldest if several are equally short.
        episodes: ids of the first ``SHOWN_IDS`` of them.
    """

    env: str
    failure: str
    cause: str
    action: str
    observation: str
    n: int
    representative: str
    step: int | None
    agents: dict[str, int]
    flags: dict[str, int]
    episodes: list[str]

    @property
    def id(self) -> str:
        """Return a short name that depends on the environment and the way of failing alone."""
        return hashlib.sha256(f"{self.env}\n{self.failure}".encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @property
    def text(self) -> str:
        meaning = CAUSES.get(self.cause, self.cause)  # type: ignore[call-overload]
        what = " -> ".join(filter(None, (self.action, "" if self.cause == "limit" else self.observation)))
        return f"{meaning}: {what}" if what else meaning


class _Group:
    def __init__(self) -> None:
        self.n = 0
        self.representative: tuple[int, str, int | None] | None = None
        self.agents: Counter[str] = Counter()
        self.flags: Counter[str] = Counter()
        self.episodes: list[str] = []

    def add(self, row: EpisodeRow) -> None:
        self.n += 1
        self.agents[row.agent if row.models is None else f"{row.agent} {row.models}"] += 1
        if row.flags:
            self.flags[row.flags] += 1
        if len(self.episodes) < SHOWN_IDS:
            self.episodes.append(row.episode_id)
        candidate = (row.rounds, row.episode_id, row.failed_step)
        if self.representative is None or candidate[:2] < self.representative[:2]:
            self.representative = candidate

    def flag_counts(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for names, n in self.flags.items():
            counts.update(dict.fromkeys(names.split(","), n))
        return dict(counts.most_common())


def find_clusters(rows: Iterable[EpisodeRow]) -> list[Cluster]:
    """The largest cluster comes first."""
    groups: dict[tuple[str, str], _Group] = {}
    for row in rows:
        if row.failure is not None:
            if (group := groups.get(key := (row.env, row.failure))) is None:
                group = groups[key] = _Group()
            group.add(row)
    clusters = [_cluster(env, failure, group) for (env, failure), group in groups.items()]
    return sorted(clusters, key=lambda cluster: (-cluster.n, cluster.representative))


def _cluster(env: str, failure: str, group: _Group) -> Cluster:
    _, representative, step = group.representative or (0, "", None)
    cause, action, observation = parse_line(failure)
    return Cluster(
        env=env,
        failure=failure,
        cause=cause,
        action=action,
        observation=observation,
        n=group.n,
        representative=representative,
        step=step,
        agents=dict(group.agents.most_common()),
        flags=group.flag_counts(),
        episodes=group.episodes,
    )
