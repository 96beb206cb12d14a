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

_MANY: Final = frozenset((TokenText, SpanClosed, Timestep))


def runs(items: Iterable[EpisodeItem]) -> Iterator[Sequence[EpisodeItem]]:
    """All items, those of each episode in their order; a run is of one kind and episode."""
    for kind, alike in groupby(items, type):
        if kind in _MANY:
            yield from _by_episode(alike)
        else:
            for item in alike:
                yield (item,)


def _by_episode(items: Iterable[EpisodeItem]) -> Iterable[list[EpisodeItem]]:
    found = defaultdict[str, list[EpisodeItem]](list)
    for item in items:
        found[item.episode_id].append(item)
    return found.values()
