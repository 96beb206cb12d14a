"""Reads a bus into a log as far as somebody wants to see it; what is not read waits on the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from agentgym_tui.sessions.event_source import EventFeed, EventSource
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.event_query import EventQuery, resolve_start

MAX_MESSAGES: Final = 500
"""Messages that are taken in before the screen gets its turn."""

GATHER_S: Final = 0.05
"""Seconds in which single messages are gathered: one by one they would cost most of a processor."""

BACKLOG_INTERVAL_S: Final = 2.0
READ_AHEAD: Final = 200
"""Entries of a history that are read beyond the one that is looked at."""


class EventReader:
    """Reads what a view wants.

    Args:
        source: the bus.
        log: where to.
        on_change: called after each change of the log.
        now: the time, with a zone.

    Attributes:
        view: what is read.
        paused: nothing is read until somebody says so.
        following: somebody looks at the end, so that the oldest may go; else nothing is read once the log is full.
        suspended: nobody looks.
        behind: messages that wait while nothing is read, None where that is not known.
    """

    def __init__(
        self,
        source: EventSource,
        log: EventLog,
        on_change: Callable[[], object],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Nothing is read before ``run``."""
        self.query = EventQuery()
        self.paused = self.suspended = False
        self.following = True
        self.n_waiting: int | None = None
        self._source = source
        self._log = log
        self._on_change = on_change
        self._now = now
        self._until = READ_AHEAD
        self._n_held = 0
        self._may_read = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        """Whether what comes is taken in."""
        if self.suspended or self.paused:
            return False
        if self.query.is_history:
            return self._log.n_matched < self._until
        return self.following or not self._log.is_full

    def set_query(self, view: EventQuery) -> None:
        """Begin anew with another view; takes a new ``run``."""
        self.query, self.paused, self.following = view, False, not view.is_history
        self._log.reset(view.episode)
        self._until, self.n_waiting = READ_AHEAD, None
        self.update()

    def read_to(self, n_below: int) -> None:
        """So many entries are shown below the one that is looked at."""
        self._until = self._log.n_matched - n_below + READ_AHEAD
        self.update()

    def update(self) -> None:
        """Attributes may have changed."""
        if self.is_reading:
            self.n_waiting = None
            self._may_read.set()
        else:
            self._may_read.clear()

    async def run(self) -> None:
        """Read until cancelled."""
        since = resolve_start(self.query.start, self._now())
        async with self._source.open(self.query.patterns, since) as feed, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure(feed))
            while True:
                came = await feed.read(MAX_MESSAGES)
                self._n_held = len(came)
                await self._may_read.wait()
                self._n_held = 0
                self._log.append(came, self._now())
                self.update()
                self._on_change()
                await asyncio.sleep(0 if len(came) == MAX_MESSAGES else GATHER_S)

    async def _measure(self, feed: EventFeed) -> None:
        """Know how much waits while nothing is read."""
        while True:
            await asyncio.sleep(BACKLOG_INTERVAL_S)
            if not self.is_reading and not self.suspended:
                unread = await feed.n_pending()
                behind = None if unread is None else unread + self._n_held
                if not self.is_reading and behind != self.n_waiting:
                    self.n_waiting = behind
                    self._on_change()
