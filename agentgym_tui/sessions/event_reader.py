"""Reads messages of a bus into an event log, as far as the user scrolls; unread messages wait on the bus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from agentgym_tui.sessions.event_source import EventFeed, EventSource
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.event_query import EventQuery, resolve_start

MAX_MESSAGES: Final = 500
"""Largest number of messages appended at once, after which the screen can repaint."""

GATHER_S: Final = 0.05
"""Seconds for which single messages are gathered; appending them one by one would use most of a CPU."""

BACKLOG_INTERVAL_S: Final = 2.0
"""Seconds between measurements of the number of unread messages."""

READ_AHEAD: Final = 200
"""Number of log entries that are read ahead below the selected entry."""


class EventReader:
    """Reads the messages that match a query into an event log.

    Args:
        source: the bus.
        log: the log to append to.
        on_change: called after each change of the log.
        now: returns the current time, with a zone.
        gather_s: seconds for which single messages are gathered.
        backlog_interval_s: seconds between measurements of the number of unread messages.

    Attributes:
        query: query for the messages to read.
        paused: whether the user has paused reading.
        following: whether the user looks at the end of the log. While True, the log evicts its oldest entries; while
            False, reading stops when the log is full.
        suspended: whether reading is stopped because the screen is not shown.
        n_waiting: number of unread messages while reading is stopped; None if the number is not known.
    """

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
        self.paused = self.suspended = False
        self.following = True
        self.n_waiting: int | None = None
        self._source = source
        self._log = log
        self._on_change = on_change
        self._now = now
        self._gather_s = gather_s
        self._backlog_interval_s = backlog_interval_s
        self._until = READ_AHEAD
        self._n_held = 0
        self._may_read = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        """Whether messages are currently read and appended to the log."""
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
        """Subscribe to the messages of ``query`` and read them until cancelled."""
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

    async def _measure(self, feed: EventFeed) -> None:
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
