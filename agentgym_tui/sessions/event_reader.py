"""Reads a bus into a log as far as somebody wants to see it; what is not read waits on the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from agentgym_tui.sessions.event_source import EventFeed, EventSource
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.event_query import EventView, since_of

AT_ONCE: Final = 500
"""Messages that are taken in before the screen gets its turn."""

PACE_S: Final = 0.05
"""Seconds in which single messages are gathered: one by one they would cost most of a processor."""

MEASURE_S: Final = 2.0
AHEAD: Final = 200
"""Entries of a history that are read beyond the one that is looked at."""


class EventReader:
    """Reads what a view wants.

    Args:
        source: the bus.
        log: where to.
        on_news: called after each change of the log.
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
        on_news: Callable[[], object],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Nothing is read before ``run``."""
        self.view = EventView()
        self.paused = self.suspended = False
        self.following = True
        self.behind: int | None = None
        self._source = source
        self._log = log
        self._on_news = on_news
        self._now = now
        self._until = AHEAD
        self._held = 0
        self._may = asyncio.Event()

    @property
    def reads(self) -> bool:
        """Whether what comes is taken in."""
        if self.suspended or self.paused:
            return False
        if self.view.is_history:
            return self._log.n_matched < self._until
        return self.following or not self._log.full

    def look_at(self, view: EventView) -> None:
        """Begin anew with another view; takes a new ``run``."""
        self.view, self.paused, self.following = view, False, not view.is_history
        self._log.begin(view.episode)
        self._until, self.behind = AHEAD, None
        self.update()

    def want(self, n_below: int) -> None:
        """So many entries are shown below the one that is looked at."""
        self._until = self._log.n_matched - n_below + AHEAD
        self.update()

    def update(self) -> None:
        """Attributes may have changed."""
        if self.reads:
            self.behind = None
            self._may.set()
        else:
            self._may.clear()

    async def run(self) -> None:
        """Read until cancelled."""
        since = since_of(self.view.start, self._now())
        async with self._source.open(self.view.patterns, since) as feed, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure(feed))
            while True:
                came = await feed.some(AT_ONCE)
                self._held = len(came)
                await self._may.wait()
                self._held = 0
                self._log.take(came, self._now())
                self.update()
                self._on_news()
                await asyncio.sleep(0 if len(came) == AT_ONCE else PACE_S)

    async def _measure(self, feed: EventFeed) -> None:
        """Know how much waits while nothing is read."""
        while True:
            await asyncio.sleep(MEASURE_S)
            if not self.reads and not self.suspended:
                unread = await feed.behind()
                behind = None if unread is None else unread + self._held
                if not self.reads and behind != self.behind:
                    self.behind = behind
                    self._on_news()
