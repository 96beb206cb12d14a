"""Live items in runs that are taken in together: there may be tens of thousands of items in a second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias, TypeGuard, cast

from runner.events.live_items import (
    EpisodeEnded,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    HeardEpisodeItem,
    HeardItem,
    HeardSpan,
    HeardTimestep,
    TokenText,
)

_Many: TypeAlias = TokenText | HeardSpan | HeardTimestep
_MANY: Final = (TokenText, HeardSpan, HeardTimestep)
_FAILURE: Final = attrgetter("failure")
_PLAYED: Final = (*_MANY, EpisodeStarted, EpisodePaused, EpisodeResumed, EpisodeEnded)


def runs(items: Iterable[HeardItem]) -> Iterator[Sequence[HeardItem]]:
    """All items, those of each episode in their order; a run is of one kind, and of one episode."""
    for kind, alike in groupby(items, type):
        if kind is TokenText:
            for part in _between_failures(cast("Iterable[TokenText]", alike)):
                yield from _by_episode(part)
        elif kind in _MANY:
            yield from _by_episode(cast("Iterable[_Many]", alike))
        else:
            for item in alike:
                yield (item,)


def are_played(run: Sequence[HeardItem]) -> TypeGuard[Sequence[HeardEpisodeItem]]:
    """Whether a run is of an episode."""
    return isinstance(run[0], _PLAYED)


def are_texts(run: Sequence[HeardEpisodeItem]) -> TypeGuard[Sequence[TokenText]]:
    """Whether a run is of answers."""
    return isinstance(run[0], TokenText)


def are_spans(run: Sequence[HeardEpisodeItem]) -> TypeGuard[Sequence[HeardSpan]]:
    """Whether a run is of spans."""
    return isinstance(run[0], HeardSpan)


def are_steps(run: Sequence[HeardEpisodeItem]) -> TypeGuard[Sequence[HeardTimestep]]:
    """Whether a run is of rounds."""
    return isinstance(run[0], HeardTimestep)


def _between_failures(items: Iterable[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Where an endpoint fails, what came before that in other episodes comes before it here as well."""
    told = list(items)
    if set(map(_FAILURE, told)) == {None}:
        yield told
        return
    for failed, part in groupby(told, lambda item: item.failure is not None):
        if failed:
            for item in part:
                yield (item,)
        else:
            yield list(part)


def _by_episode(items: Iterable[_Many]) -> Iterable[list[_Many]]:
    found = defaultdict[str, list[_Many]](list)
    for item in items:
        found[item.episode_id].append(item)
    return found.values()
