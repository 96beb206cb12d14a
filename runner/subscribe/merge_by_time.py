"""Several streams as one history: what they keep is handed out in the order of its times.

A message goes out once every other stream that has more has brought something later. A stream that brings nothing
holds the others up for a moment only, and one that brings much cannot take the room of the others.
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
"""How long the others wait for a stream that has more and does not bring it."""

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


class _Lane(msgspec.Struct, eq=False):
    """What waits of a stream.

    ``has_more``: the stream keeps messages that have not come so far. ``is_over``: nobody reads it any more.
    """

    number: int
    name: str
    items: deque[RawMessage | Notice] = msgspec.field(default_factory=deque)
    size: int = 0
    has_more: bool = True
    is_over: bool = False

    @property
    def head(self) -> tuple[datetime, int, _Lane]:
        """Its place among the others: a notice is at once behind what it was behind."""
        first = self.items[0]
        return (_FIRST if isinstance(first, Notice) else first.time or _LAST, self.number, self)


class TimeOrderedBuffer(DedupBuffer):
    """A ``DedupBuffer`` that orders what streams keep; see there.

    Half of the room is for what streams keep, the same for each of them. What no stream keeps is the newest: it comes
    behind the history that streams had when they were found, and from then on as it passes.
    """

    def __init__(
        self, names: DurableNames, *, capacity: int = 10_000, max_bytes: int = 64 << 20, hold_s: float = HOLD_S
    ) -> None:
        """Start empty."""
        super().__init__(names, capacity=capacity - capacity // 2, max_bytes=max_bytes - max_bytes // 2)
        self._lane_room = FetchLimit(capacity // 2, max_bytes // 2)
        self._hold_s = hold_s
        self._n_lanes = 0
        self._lanes: dict[str, _Lane] = {}
        self._heads: list[tuple[datetime, int, _Lane]] = []
        self._awaited: dict[str, float] = {}  # lanes that hold the others up, and until when, the first one first
        self._behind: set[str] = set()  # those that have not come to their end so far
        self._newest = self._history_end = _FIRST
        self._after: deque[datetime | None] = deque()  # what each of ``_waiting`` comes behind; None: all history

    @property
    def n_waiting(self) -> int:
        """See there."""
        lanes = sum(isinstance(item, RawMessage) for lane in self._lanes.values() for item in lane.items)
        return super().n_waiting + lanes

    def add_stream(self, stream: str, last: int) -> None:
        """See there; the others wait for its beginning."""
        super().add_stream(stream, last)
        self._n_lanes += 1
        self._lanes.setdefault(stream, _Lane(self._n_lanes, stream)).is_over = False
        self._behind.add(stream)
        self.update_pending(stream, 1)

    def update_pending(self, stream: str, pending: int) -> None:
        """See there."""
        if (lane := self._lanes.get(stream)) is None:
            return
        lane.has_more = pending > 0
        if not lane.has_more:
            self._awaited.pop(stream, None)
            self._caught_up(stream)
            self._filled.set()
        elif not lane.items and stream in self._behind:
            self._awaited.setdefault(stream, time.monotonic() + self._hold_s)

    def remove_stream(self, stream: str) -> None:
        """See there."""
        self.update_pending(stream, 0)
        if (lane := self._lanes.get(stream)) is not None:
            lane.is_over = True
            self._forget(lane)

    def notify(self, notice: Notice, stream: str | None = None) -> None:
        """Add a notice; about a stream, behind what came of it."""
        if stream is not None and (lane := self._lanes.get(stream)) is not None:
            self._join(lane, notice)
        else:
            super().notify(notice)

    def put(self, message: RawMessage) -> None:
        """See there."""
        lane = None if message.stream is None else self._lanes.get(message.stream)
        if lane is None:
            super().put(message)
            return
        if not self._was_heard(message):
            lane.size += message.size
            self._newest = max(self._newest, message.time or _FIRST)
            self._join(lane, message)
        self.update_pending(lane.name, message.pending)

    async def wait_for_room(self, stream: str) -> None:
        """Wait until at most half of the stream's share is taken."""
        while (lane := self._lanes.get(stream)) is not None and self._is_half_full(lane):
            self._emptied.clear()
            await self._emptied.wait()

    def fetch_limit(self, stream: str) -> FetchLimit:
        """See there: half of a stream's share, so that two of these fit."""
        most, share = super().fetch_limit(stream), self._share()
        return FetchLimit(
            min(max(share.count // 2, MIN_FETCH.count), most.count),
            min(max(share.size // 2, MIN_FETCH.size), most.size),
        )

    async def wait_filled(self) -> bool:
        """See there; what waits for a stream is not there yet."""
        while True:
            if not self._waiting:
                self._tell_skipped()
            if self._is_next_kept() is not None:
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
        """See there."""
        match self._is_next_kept():
            case True:
                return self._leave()
            case False:
                self._after.popleft()
                return super().pop()
        return None

    def _append(self, item: RawMessage | Notice) -> None:
        self._after.append(None if self._behind else self._newest)
        super()._append(item)

    def _join(self, lane: _Lane, item: RawMessage | Notice) -> None:
        lane.items.append(item)
        if len(lane.items) == 1:
            self._awaited.pop(lane.name, None)
            heappush(self._heads, lane.head)
        self._filled.set()

    def _leave(self) -> RawMessage | Notice:
        """Take what is first among the streams."""
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
        self._forget(lane)
        return item

    def _forget(self, lane: _Lane) -> None:
        """Leave its share to the others once nothing more can come."""
        if lane.is_over and not lane.items:
            del self._lanes[lane.name]

    def _is_next_kept(self) -> bool | None:
        """Whether what is next comes from a stream; None while there is nothing that may go."""
        if self._waiting and isinstance(self._waiting[0], Notice):
            return False
        first = self._heads[0][0] if self._heads else None
        if first == _FIRST:
            return True
        self._give_up()
        if self._awaited and not self._ended:
            return None
        if not self._waiting:
            return None if first is None else True
        after = self._after[0] or (_LAST if self._behind else self._history_end)
        return first is not None and first <= after

    def _give_up(self) -> None:
        """Wait no more for what was waited for long enough."""
        while self._awaited:
            stream, until = next(iter(self._awaited.items()))
            if until > time.monotonic():
                return
            del self._awaited[stream]
            self._caught_up(stream)

    def _caught_up(self, stream: str) -> None:
        if stream in self._behind:
            self._behind.discard(stream)
            if not self._behind:
                self._history_end = self._newest

    def _share(self) -> FetchLimit:
        n = max(len(self._lanes), 1)
        return FetchLimit(self._lane_room.count // n, self._lane_room.size // n)

    def _is_half_full(self, lane: _Lane) -> bool:
        share = self._share()
        return 2 * len(lane.items) > share.count or 2 * lane.size > share.size
