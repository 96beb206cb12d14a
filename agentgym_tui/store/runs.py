"""Items of episodes in runs that are taken in together: there may be tens of thousands of items in a second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from runner.events.live_items import (
    EpisodeEnded,
    EpisodeItem,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    SpanClosed,
    Timestep,
    TokenText,
)

PLAYED: Final = (TokenText, SpanClosed, Timestep, EpisodeStarted, EpisodePaused, EpisodeResumed, EpisodeEnded)
"""What is said of episodes, the most frequent first."""


def runs(items: Iterable[EpisodeItem]) -> Iterator[Sequence[EpisodeItem]]:
    """All items, those of each episode in their order: what an episode's answers, or its spans, are, and others alone."""
    for kind, alike in groupby(items, type):
        if kind is TokenText or kind is SpanClosed:
            yield from _by_episode(alike)
        else:
            for item in alike:
                yield (item,)


def _by_episode(items: Iterable[EpisodeItem]) -> Iterable[list[EpisodeItem]]:
    found = defaultdict[str, list[EpisodeItem]](list)
    for item in items:
        found[item.episode_id].append(item)
    return found.values()
