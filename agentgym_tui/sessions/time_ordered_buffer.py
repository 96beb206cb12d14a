"""The order of stored messages of several streams, by the times at which the streams stored them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from runner.events.subjects import DurableNames
from runner.subscribe.buffer import MIN_FETCH, DedupBuffer, FetchLimit, RawMessage
from runner.subscribe.messages import Notice

FeedItem: TypeAlias = RawMessage | Notice

HOLD_S: Final = 2.0  # for which the other streams wait for a stream that does not deliver its remaining messages

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


class _Lane(msgspec.Struct):
    """Unread items of one stream whose history is being read; ``held_until``: how long an empty one delays others."""

    held_until: float
    items: deque[FeedItem] = msgspec.field(default_factory=deque)
    size: int = 0
    has_more: bool = True

    @property
    def time(self) -> datetime:
        first = self.items[0]
        return _FIRST if isinstance(first, Notice) else first.time or _LAST


class TimeOrderedBuffer(DedupBuffer):
    """``DedupBuffer`` that returns the history of all streams in the order of the messages' times.

    Each stream has a lane until it has no more history, or has delivered nothing for ``HOLD_S`` seconds. A message is
    returned once every lane has one. What belongs to no lane follows in the order of its arrival, also a stream that is
    found while such messages wait. The lanes share half of the capacity, and a fetch is for half of such a share.
    """

    def __init__(self, names: DurableNames, *, capacity: int = 10_000, max_bytes: int = 64 << 20) -> None:
        super().__init__(names, capacity=capacity - capacity // 2, max_bytes=max_bytes - max_bytes // 2)
        self._lane_limit = FetchLimit(capacity // 2, max_bytes // 2)
        self._lanes: dict[str, _Lane] = {}

    @property
    def n_waiting(self) -> int:
        lanes = sum(isinstance(item, RawMessage) for lane in self._lanes.values() for item in lane.items)
        return super().n_waiting + lanes

    def add_stream(self, stream: str, last: int) -> None:
        super().add_stream(stream, last)
        if not any(isinstance(item, RawMessage) for item in self._items):
            self._lanes.setdefault(stream, _Lane(0)).held_until = time.monotonic() + HOLD_S
        elif (lane := self._lanes.pop(stream, None)) is not None:  # what is read now comes after what waits
            self._items.extendleft(reversed(lane.items))
            self._bytes += lane.size

    def update_pending(self, stream: str, pending: int) -> None:
        if (lane := self._lanes.get(stream)) is not None:
            lane.has_more = pending > 0
            self._filled.set()

    def notify(self, notice: Notice, stream: str | None = None) -> None:
        if (lane := self._lanes.get(stream or "")) is not None:
            lane.items.append(notice)
            self._filled.set()
        else:
            super().notify(notice)

    def put(self, message: RawMessage) -> None:
        if (lane := self._lanes.get(message.stream or "")) is None:
            super().put(message)
            return
        if not self._was_delivered_by_core(message):
            lane.items.append(message)
            lane.size += message.size
        self.update_pending(message.stream or "", message.pending)

    async def wait_for_space(self, stream: str) -> None:
        def is_half_full(lane: _Lane) -> bool:
            share = self._share()
            return 2 * len(lane.items) > share.count or 2 * lane.size > share.size

        while (lane := self._lanes.get(stream)) is not None and is_half_full(lane):
            self._emptied.clear()
            await self._emptied.wait()
        await super().wait_for_space(stream)

    def fetch_limit(self, stream: str) -> FetchLimit:
        most, share = super().fetch_limit(stream), self._share()
        count = min(max(share.count // 2, MIN_FETCH.count), most.count)
        return FetchLimit(count, min(max(share.size // 2, MIN_FETCH.size), most.size))

    async def wait_filled(self) -> bool:
        while True:
            if not self._items:
                self._report_skipped()
            if self._next_items():
                return True
            if self._ended:
                return False
            self._filled.clear()
            wait_s = min((lane.held_until for lane in self._lanes.values() if not lane.items), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s is None else max(wait_s - time.monotonic(), 0)):
                    await self._filled.wait()

    def pop(self) -> FeedItem | None:
        items = self._next_items()
        if items is self._items:
            return super().pop()
        lane = next((lane for lane in self._lanes.values() if lane.items is items), None)
        if lane is None:
            return None
        item = lane.items.popleft()
        lane.size -= item.size if isinstance(item, RawMessage) else 0
        lane.held_until = time.monotonic() + HOLD_S
        self._emptied.set()
        return item

    def _next_items(self) -> deque[FeedItem]:
        """Return the queue of the next item; an empty one while none may be returned."""
        if self._items and isinstance(self._items[0], Notice):
            return self._items
        now = time.monotonic()
        self._lanes = {
            name: lane
            for name, lane in self._lanes.items()
            if lane.items or (lane.has_more and lane.held_until > now and not self._ended)
        }
        if not self._lanes:
            return self._items
        if any(not lane.items for lane in self._lanes.values()):
            return deque()
        return min(self._lanes.values(), key=lambda lane: lane.time).items

    def _share(self) -> FetchLimit:
        n = max(len(self._lanes), 1)
        return FetchLimit(self._lane_limit.count // n, self._lane_limit.size // n)
