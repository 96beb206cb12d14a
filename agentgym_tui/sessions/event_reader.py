"""Raw messages of a bus for the event screens, read as far as the user scrolls; unread ones wait on the bus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.event_log import EventLog, EventQuery, resolve_start

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Subscription

MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 16 << 20  # and number of unread messages in this process; those of a stream wait there
MAX_MESSAGES: Final = 500  # largest number of messages appended at once, after which the screen can repaint
GATHER_S: Final = 0.05  # for which single messages are gathered; appending them one by one would use most of a CPU
BACKLOG_INTERVAL_S: Final = 2.0  # between measurements of the number of unread messages
READ_AHEAD: Final = 200  # number of log entries that are read ahead below the selected entry


class EventSource:
    """Raw messages of the bus of a session; it can be opened before the session is connected."""

    def __init__(self) -> None:
        self._connection: NatsConnection | None = None
        self._has_connection = asyncio.Event()

    def set_connection(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._has_connection.set()

    @contextlib.asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[Subscription]:
        """Wait for the connection to the bus and subscribe to subjects; stored messages since then come first."""
        from agentgym_tui.sessions.time_ordered_buffer import TimeOrderedBuffer
        from runner.subscribe.subscription import Subscription

        await self._has_connection.wait()
        assert self._connection is not None
        subscribing = Subscription(
            self._connection,
            patterns=patterns,
            since=since,
            capacity=MAX_WAITING,
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
    ) -> None:
        self.query = EventQuery()
        self.paused = self.suspended = False  # by the user; because the screen is not shown
        self.following = True  # the end: then the log evicts its oldest entries, else reading stops when it is full
        self.n_waiting: int | None = None  # while reading is stopped, where it is known
        self._source, self._log, self._on_change, self._now = source, log, on_change, now
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
                await asyncio.sleep(0 if len(messages) == MAX_MESSAGES else GATHER_S)

    async def _measure(self, feed: Subscription) -> None:
        """Update ``n_waiting`` repeatedly while reading is stopped; None while the bus does not reply."""
        from runner.bus.streams import BUS_ERRORS

        while True:
            await asyncio.sleep(BACKLOG_INTERVAL_S)
            if not self.is_reading and not self.suspended:
                n_waiting: int | None = None
                with contextlib.suppress(*BUS_ERRORS):
                    n_waiting = await feed.count_waiting() + self._n_held
                if not self.is_reading and n_waiting != self.n_waiting:
                    self.n_waiting = n_waiting
                    self._on_change()
