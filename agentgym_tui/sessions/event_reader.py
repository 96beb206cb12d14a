"""Raw messages of a bus for the event screens, read as far as the user scrolls; unread ones wait on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from agentgym_tui.state.event_log import EventLog, EventQuery, resolve_start
from runner.events.subjects import DurableNames
from runner.subscribe.buffer import MIN_FETCH, DedupBuffer, FetchLimit, RawMessage
from runner.subscribe.messages import Notice

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Subscription

FeedItem: TypeAlias = RawMessage | Notice

MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 16 << 20  # and number of unread messages in this process; those of a stream wait there
MAX_MESSAGES: Final = 500  # largest number of messages appended at once, after which the screen can repaint
GATHER_S: Final = 0.05  # for which single messages are gathered; appending them one by one would use most of a CPU
BACKLOG_INTERVAL_S: Final = 2.0  # between measurements of the number of unread messages
READ_AHEAD: Final = 200  # number of log entries that are read ahead below the selected entry
HOLD_S: Final = 2.0  # for which the other streams wait for a stream that does not deliver its remaining messages

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


class EventSource:
    """Raw messages of the bus of a session; it can be opened before the session is connected."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._connection: NatsConnection | None = None
        self._has_connection = asyncio.Event()

    def set_connection(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._has_connection.set()

    @contextlib.asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[Subscription]:
        """Wait for the connection to the bus and subscribe to subjects; stored messages since then come first."""
        from runner.subscribe.subscription import Subscription

        await self._has_connection.wait()
        assert self._connection is not None
        subscribing = Subscription(
            self._connection,
            patterns=patterns,
            since=since,
            capacity=self._max_waiting,
            max_bytes=MAX_WAITING_BYTES,
            buffer=TimeOrderedBuffer,
        )
        async with subscribing as subscription:
            yield subscription


class EventReader:
    def __init__(
        self,
        source: EventSource,
        log: EventLog,
        on_change: Callable[[], object],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        gather_s: float = GATHER_S,
        backlog_interval_s: float = BACKLOG_INTERVAL_S,
    ) -> None:
        self.query = EventQuery()
        self.paused = self.suspended = False  # by the user; because the screen is not shown
        self.following = True  # the end: then the log evicts its oldest entries, else reading stops when it is full
        self.n_waiting: int | None = None  # while reading is stopped, where it is known
        self._source, self._log, self._on_change, self._now = source, log, on_change, now
        self._gather_s, self._backlog_interval_s = gather_s, backlog_interval_s
        self._until = READ_AHEAD
        self._n_held = 0
        self._may_read = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        if self.suspended or self.paused:
            return False
        if self.query.is_history:
            return self._log.n_matched < self._until
        return self.following or not self._log.is_full

    def set_query(self, query: EventQuery) -> None:
        """Set another query and clear the log; the caller has to cancel ``run`` and start it again."""
        self.query, self.paused, self.following = query, False, not query.is_history
        self._log.reset(query.episode)
        self._until, self.n_waiting = READ_AHEAD, None
        self.update()

    def read_to(self, n_below: int) -> None:
        """Read on until ``READ_AHEAD`` entries are below the selected entry; ``n_below`` is their current number."""
        self._until = self._log.n_matched - n_below + READ_AHEAD
        self.update()

    def update(self) -> None:
        """Start or stop reading; must be called after a change of ``paused``, ``following`` or ``suspended``."""
        if self.is_reading:
            self.n_waiting = None
            self._may_read.set()
        else:
            self._may_read.clear()

    async def run(self) -> None:
        since = resolve_start(self.query.start, self._now())
        async with self._source.open(self.query.patterns, since) as feed, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure(feed))
            while True:
                messages = await feed.next_raw(MAX_MESSAGES)
                self._n_held = len(messages)
                await self._may_read.wait()
                self._n_held = 0
                self._log.append(messages, self._now())
                self.update()
                self._on_change()
                await asyncio.sleep(0 if len(messages) == MAX_MESSAGES else self._gather_s)

    async def _measure(self, feed: Subscription) -> None:
        """Update ``n_waiting`` repeatedly while reading is stopped; None while the bus does not reply."""
        from runner.bus.streams import BUS_ERRORS

        while True:
            await asyncio.sleep(self._backlog_interval_s)
            if not self.is_reading and not self.suspended:
                n_waiting: int | None = None
                with contextlib.suppress(*BUS_ERRORS):
                    n_waiting = await feed.count_waiting() + self._n_held
                if not self.is_reading and n_waiting != self.n_waiting:
                    self.n_waiting = n_waiting
                    self._on_change()


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

    Each stream has a lane until it has no more history, or has delivered nothing for ``hold_s`` seconds. A message is
    returned once every lane has one. What belongs to no lane follows in the order of its arrival, also a stream that is
    found while such messages wait. The lanes share half of the capacity, and a fetch is for half of such a share.
    """

    def __init__(
        self, names: DurableNames, *, capacity: int = 10_000, max_bytes: int = 64 << 20, hold_s: float = HOLD_S
    ) -> None:
        super().__init__(names, capacity=capacity - capacity // 2, max_bytes=max_bytes - max_bytes // 2)
        self._lane_limit = FetchLimit(capacity // 2, max_bytes // 2)
        self._hold_s = hold_s
        self._lanes: dict[str, _Lane] = {}

    @property
    def n_waiting(self) -> int:
        lanes = sum(isinstance(item, RawMessage) for lane in self._lanes.values() for item in lane.items)
        return super().n_waiting + lanes

    def add_stream(self, stream: str, last: int) -> None:
        super().add_stream(stream, last)
        if not any(isinstance(item, RawMessage) for item in self._items):
            self._lanes.setdefault(stream, _Lane(0)).held_until = time.monotonic() + self._hold_s
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
        lane.held_until = time.monotonic() + self._hold_s
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
