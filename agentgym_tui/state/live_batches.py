"""Groups live items by kind and episode, and splits received messages into portions of bounded work.

A node may send tens of thousands of items per second. All items of one kind and episode that arrive together are
applied together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from runner.events.codec import LiveRow
from runner.events.live import LazyItem, LazySpan, LazyTimestep, TokenText
from runner.subscribe.messages import BusMessage, SubscriptionItem

PORTION_ITEMS: Final = 500
"""Number of live items after which a portion ends; any other message counts as one item."""

Received: TypeAlias = SubscriptionItem | LiveRow
"""A message, a notice, or the joined content of live messages."""

_ItemT = TypeVar("_ItemT", TokenText, LazySpan, LazyTimestep)

_failure_of: Final = attrgetter("failure")


def join_live(messages: Iterable[SubscriptionItem]) -> Iterator[Received]:
    """Yield the messages; live messages of one subject and one node process become one ``LiveRow``.

    A notice or any other message separates the live messages before it from those after it. Live messages on different
    subjects may change their order, as each kind of item has its own subject.
    """
    for is_live, alike in groupby(messages, _is_live):
        if not is_live:
            yield from alike
            continue
        by_sender = defaultdict[tuple[str, str, str], list[LiveRow]](list)
        for message in cast("Iterable[BusMessage]", alike):
            row = cast("LiveRow", message.decoded)
            by_sender[message.subject, row.batch.node, row.batch.boot].append(row)
        for rows in by_sender.values():
            yield _join(rows) if len(rows) > 1 else rows[0]


def _is_live(message: SubscriptionItem) -> bool:
    return isinstance(message, BusMessage) and isinstance(message.decoded, LiveRow)


def _join(rows: Sequence[LiveRow]) -> LiveRow:
    batch = replace(rows[-1].batch, items=[item for row in rows for item in row.batch.items])
    return LiveRow(batch=batch, raw=tuple(raw for row in rows for raw in row.raw))


def split_portions(messages: Iterable[Received]) -> Iterator[list[Received]]:
    """Yield the messages in their order, in portions that each take a few milliseconds to apply."""
    portion: list[Received] = []
    n_items = 0
    for message in messages:
        for part in _split_row(message) if isinstance(message, LiveRow) else (message,):
            portion.append(part)
            n_items += max(len(part.batch.items), 1) if isinstance(part, LiveRow) else 1
            if n_items >= PORTION_ITEMS:
                yield portion
                portion, n_items = [], 0
    if portion:
        yield portion


def _split_row(row: LiveRow) -> Iterator[LiveRow]:
    items = row.batch.items
    for first in range(0, max(len(items), 1), PORTION_ITEMS):
        batch = replace(row.batch, items=items[first : first + PORTION_ITEMS])
        yield LiveRow(batch=batch, raw=() if first else row.raw)


def group_items(items: Iterable[LazyItem]) -> Iterator[Sequence[LazyItem]]:
    """Yield groups of items; the items of each episode keep their order.

    Tokens, spans and timesteps of one episode between items of other kinds are one group, every other item is a group
    by itself. A token item that reports a failed endpoint is a group, too, which separates the tokens of all episodes.
    """
    for kind, alike in groupby(items, type):
        if kind is TokenText:
            for failure, tokens in groupby(cast("Iterable[TokenText]", alike), _failure_of):
                if failure is None:
                    yield from _by_episode(tokens)
                else:
                    for item in tokens:
                        yield [item]
        elif kind is LazySpan:
            yield from _by_episode(cast("Iterable[LazySpan]", alike))
        elif kind is LazyTimestep:
            yield from _by_episode(cast("Iterable[LazyTimestep]", alike))
        else:
            yield from ([item] for item in alike)


def _by_episode(items: Iterable[_ItemT]) -> Iterable[list[_ItemT]]:
    by_episode = defaultdict[str, list[_ItemT]](list)
    for item in items:
        by_episode[item.episode_id].append(item)
    return by_episode.values()
