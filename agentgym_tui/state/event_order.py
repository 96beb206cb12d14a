"""The order in which messages of several streams are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from heapq import merge

from runner.subscribe.buffer import Incoming
from runner.subscribe.messages import Notice

_LAST = datetime.max.replace(tzinfo=UTC)


def by_time(came: Sequence[Incoming | Notice]) -> Iterator[Incoming | Notice]:
    """What came at once, by time: each stream keeps its own order, and notices stay between what they are between.

    What no stream keeps has no time, and is the newest.
    """
    group: list[Incoming] = []
    for each in came:
        if isinstance(each, Notice):
            yield from _merged(group)
            group = []
            yield each
        else:
            group.append(each)
    yield from _merged(group)


def _merged(came: list[Incoming]) -> Iterator[Incoming]:
    streams: dict[str | None, list[Incoming]] = {}
    for each in came:
        streams.setdefault(each.stream, []).append(each)
    return merge(*streams.values(), key=_time)


def _time(incoming: Incoming) -> datetime:
    return incoming.time or _LAST
