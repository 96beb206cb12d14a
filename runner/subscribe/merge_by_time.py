"""Merge the histories of several streams in the order of their server times.

A message is returned once every other stream with unread messages has delivered a later one. A stream that delivers
nothing delays the others for ``HOLD_S`` at most, and each stream has its own share of the buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Final

import msgspec

from runner.events.subjects import DurableNames
from runner.subscribe.buffer import MIN_FETCH, DedupBuffer, FetchLimit, RawMessage
from runner.subscribe.messages import Notice

HOLD_S: Final = 2.0
"""Seconds for which the other streams wait for a stream that does not deliver its remaining messages."""

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


class _Lane(msgspec.Struct, eq=False):
    """Undelivered items of one stream.

    ``has_more``: the stream has further messages. ``is_removed``: no reader fetches from it any more.
    """

    number: int
    name: str
    items: deque[RawMessage | Notice] = msgspec.field(default_factory=deque)
    size: int = 0
    has_more: bool = True
    is_removed: bool = False

    @property
    def head(self) -> tuple[datetime, int, _Lane]:
        """A notice sorts first, directly after the message before it."""
        first = self.items[0]
        return (_FIRST if isinstance(first, Notice) else first.time or _LAST, self.number, self)


class TimeOrderedBuffer(DedupBuffer):
    """``DedupBuffer`` that returns the messages of all streams in the order of their times.

    Half of the capacity is shared equally by the streams, and a fetch is for half of such a share, so that two fit. A
    message without a stream comes after all messages that the streams had when it was added; later messages follow in
    the order of their arrival. ``hold_s`` is the longest wait for a silent stream, in seconds.
    """

    def __init__(
        self, names: DurableNames, *, capacity: int = 10_000, max_bytes: int = 64 << 20, hold_s: float = HOLD_S
    ) -> None:
        super().__init__(names, capacity=capacity - capacity // 2, max_bytes=max_bytes - max_bytes // 2)
        self._lane_limit = FetchLimit(capacity // 2, max_bytes // 2)
        self._hold_s = hold_s
        self._n_lanes = 0
        self._lanes: dict[str, _Lane] = {}
        self._heads: list[tuple[datetime, int, _Lane]] = []
        self._awaited: dict[str, float] = {}  # deadline per lane that delays the others, earliest first
        self._catching_up: set[str] = set()  # streams that have not reached their end
        self._newest = self._history_end = _FIRST
        self._after: deque[datetime | None] = deque()  # per item of ``_items``: the time it follows; None: all history

    @property
    def n_waiting(self) -> int:
        lanes = sum(isinstance(item, RawMessage) for lane in self._lanes.values() for item in lane.items)
        return super().n_waiting + lanes

    def add_stream(self, stream: str, last: int) -> None:
        super().add_stream(stream, last)
        self._n_lanes += 1
        self._lanes.setdefault(stream, _Lane(self._n_lanes, stream)).is_removed = False
        self._catching_up.add(stream)
        self.update_pending(stream, 1)

    def update_pending(self, stream: str, pending: int) -> None:
        if (lane := self._lanes.get(stream)) is None:
            return
        lane.has_more = pending > 0
        if not lane.has_more:
            self._awaited.pop(stream, None)
            self._mark_caught_up(stream)
            self._filled.set()
        elif not lane.items and stream in self._catching_up:
            self._awaited.setdefault(stream, time.monotonic() + self._hold_s)

    def remove_stream(self, stream: str) -> None:
        self.update_pending(stream, 0)
        if (lane := self._lanes.get(stream)) is not None:
            lane.is_removed = True
            self._drop_if_done(lane)

    def notify(self, notice: Notice, stream: str | None = None) -> None:
        """Add a notice; a notice about a stream comes after the messages of that stream."""
        if stream is not None and (lane := self._lanes.get(stream)) is not None:
            self._append_to_lane(lane, notice)
        else:
            super().notify(notice)

    def put(self, message: RawMessage) -> None:
        lane = None if message.stream is None else self._lanes.get(message.stream)
        if lane is None:
            super().put(message)
            return
        if not self._was_delivered_by_core(message):
            lane.size += message.size
            self._newest = max(self._newest, message.time or _FIRST)
            self._append_to_lane(lane, message)
        self.update_pending(lane.name, message.pending)

    async def wait_for_space(self, stream: str) -> None:
        while (lane := self._lanes.get(stream)) is not None and self._is_half_full(lane):
            self._emptied.clear()
            await self._emptied.wait()

    def fetch_limit(self, stream: str) -> FetchLimit:
        most, share = super().fetch_limit(stream), self._share()
        return FetchLimit(
            min(max(share.count // 2, MIN_FETCH.count), most.count),
            min(max(share.size // 2, MIN_FETCH.size), most.size),
        )

    async def wait_filled(self) -> bool:
        """Wait until ``pop`` has an item; items that wait for another stream do not count."""
        while True:
            if not self._items:
                self._report_skipped()
            if self._is_next_from_stream() is not None:
                return True
            if self._ended:
                return False
            self._filled.clear()
            until = next(iter(self._awaited.values()), None)
            wait_s = None if until is None else max(until - time.monotonic(), 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._filled.wait()

    def pop(self) -> RawMessage | Notice | None:
        match self._is_next_from_stream():
            case True:
                return self._pop_lane()
            case False:
                self._after.popleft()
                return super().pop()
        return None

    def _append(self, item: RawMessage | Notice) -> None:
        self._after.append(None if self._catching_up else self._newest)
        super()._append(item)

    def _append_to_lane(self, lane: _Lane, item: RawMessage | Notice) -> None:
        lane.items.append(item)
        if len(lane.items) == 1:
            self._awaited.pop(lane.name, None)
            heappush(self._heads, lane.head)
        self._filled.set()

    def _pop_lane(self) -> RawMessage | Notice:
        _, _, lane = heappop(self._heads)
        item = lane.items.popleft()
        if isinstance(item, RawMessage):
            lane.size -= item.size
        if lane.items:
            heappush(self._heads, lane.head)
        elif lane.has_more:
            self._awaited[lane.name] = time.monotonic() + self._hold_s
        if not self._is_half_full(lane):
            self._emptied.set()
        self._drop_if_done(lane)
        return item

    def _drop_if_done(self, lane: _Lane) -> None:
        if lane.is_removed and not lane.items:
            del self._lanes[lane.name]

    def _is_next_from_stream(self) -> bool | None:
        """Whether the next item comes from a stream; None while no item may be returned."""
        if self._items and isinstance(self._items[0], Notice):
            return False
        first = self._heads[0][0] if self._heads else None
        if first == _FIRST:
            return True
        self._expire_waits()
        if self._awaited and not self._ended:
            return None
        if not self._items:
            return None if first is None else True
        after = self._after[0] or (_LAST if self._catching_up else self._history_end)
        return first is not None and first <= after

    def _expire_waits(self) -> None:
        while self._awaited:
            stream, until = next(iter(self._awaited.items()))
            if until > time.monotonic():
                return
            del self._awaited[stream]
            self._mark_caught_up(stream)

    def _mark_caught_up(self, stream: str) -> None:
        if stream in self._catching_up:
            self._catching_up.discard(stream)
            if not self._catching_up:
                self._history_end = self._newest

    def _share(self) -> FetchLimit:
        n = max(len(self._lanes), 1)
        return FetchLimit(self._lane_limit.count // n, self._lane_limit.size // n)

    def _is_half_full(self, lane: _Lane) -> bool:
        share = self._share()
        return 2 * len(lane.items) > share.count or 2 * lane.size > share.size
