"""Which stored episodes an export has: those that a condition selects, without those that teach a trainer nothing.

The filters need all attempts of a task before the first one is written, so they work on the rows of the index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import msgspec

from runner.results.summary import IS_RATED, ResultSource


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Filters over groups of episodes.

    Attributes:
        drop_flat: drop the attempts of a task if all rated ones have the same reward, and a task with one attempt.
        balanced: keep as many episodes of each environment as the one with the fewest has, the oldest first.
    """

    first_success: bool = False
    drop_flat: bool = False
    balanced: bool = False


class Candidate(NamedTuple):
    """An episode that may be exported; the fields up to ``task_index`` name the group of its attempts."""

    env: str
    data_label: str
    mode: str
    agent: str
    model: str | None
    task_index: int
    episode_id: str
    batch_id: str
    success: int
    reward: float | None
    rated: int


Reasons: TypeAlias = "Counter[str]"
"""Number of episodes that were left out, by reason."""

_N_GROUP, _N_NAMES = 6, 5
_COLUMNS = f"env, data_label, mode, agent, model, task_index, episode_id, batch_id, success, reward, {IS_RATED}"
_BY_TASK = "env, data_label, mode, agent, task_index, episode_id"
"""Order in which the attempts of one task follow one another; ids of episodes are in the order of their starts."""


def select_candidates(
    source: ResultSource, condition: str, parameters: Mapping[str, object], filters: Filters, *, by_task: bool = False
) -> tuple[list[Candidate], Reasons]:
    """Return the episodes to export, oldest first or ``by_task``, and how many the filters left out."""
    order = _BY_TASK if by_task else "episode_id"
    rows = source.select(f"SELECT {_COLUMNS} FROM episodes WHERE {condition} ORDER BY {order}", parameters)
    names: dict[object, Any] = {}  # equal names are one object, as an export may have millions
    candidates = [
        Candidate(*(names.setdefault(each, each) for each in row[:_N_NAMES]), *row[_N_NAMES:]) for row in rows
    ]
    left_out = Counter[str]()
    for is_on, kept_by, reason in (
        (filters.drop_flat, _varied, "its task's attempts all have the same reward"),
        (filters.first_success, _first_successes, "not the first success of its task"),
        (filters.balanced, _balanced, "its environment has more episodes"),
    ):
        if is_on:
            kept, n_before = kept_by(candidates), len(candidates)
            candidates = [candidate for candidate in candidates if candidate.episode_id in kept]
            left_out += Counter({reason: n_before - len(candidates)})
    return candidates, left_out


def _varied(candidates: Iterable[Candidate]) -> set[str]:
    groups = [list(group) for _, group in groupby(sorted(candidates, key=group_of), key=group_of)]
    varied = (group for group in groups if len({each.reward for each in group if each.rated} - {None}) > 1)
    return {each.episode_id for group in varied for each in group}


def group_of(candidate: Candidate) -> tuple[str, ...]:
    return tuple(map(str, candidate[:_N_GROUP]))


def _first_successes(candidates: Iterable[Candidate]) -> set[str]:
    """Return the first one of each task, whichever agent had it."""
    successes = sorted((each for each in candidates if each.success), key=lambda each: each.episode_id, reverse=True)
    return set(
        {(each.env, each.data_label, each.mode, each.task_index): each.episode_id for each in successes}.values()
    )


def _balanced(candidates: Iterable[Candidate]) -> set[str]:
    by_env: dict[str, list[str]] = {}
    for candidate in candidates:
        by_env.setdefault(candidate.env, []).append(candidate.episode_id)
    n = min(map(len, by_env.values()), default=0)
    return {episode_id for ids in by_env.values() for episode_id in sorted(ids)[:n]}
