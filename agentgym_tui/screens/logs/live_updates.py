"""What the screen of a log does without being asked: it reads on, searches, and draws what came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from textual import on
from textual.timer import Timer

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.logs.log_search import LogSearch
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.log_rows import (
    LOG_COLUMNS,
    LogRows,
    LogViewState,
    empty_log_lines,
    line_message,
    log_heading,
)
from agentgym_tui.presenters.payload import unsafe_text
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.event_log import EventMessage
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText
from agentgym_tui.widgets.table import Table

if TYPE_CHECKING:
    from agentgym_tui.widgets.payload_view import PayloadView

DRAW_S: Final = 0.1
DRAW_READING_S: Final = 0.25
"""Seconds between two drawings, also while a log is read: drawing takes time from reading."""

POLL_S: Final = 0.5
"""Seconds between two looks at a file that was read."""


class LogTable(Table):
    """A table that may follow its end, though it begins at its top."""

    def __init__(self, source: LogRows, *, id: str) -> None:
        super().__init__(LOG_COLUMNS, source, id=id)
        self._can_follow = True


class OpenedLog:
    """A log as it was left when another one was shown.

    Attributes:
        log: the file.
        rows: what is shown of it.
        text: the words that are looked for.
        line: the line of the cursor.
        follows: whether its end is shown.
    """

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.rows = LogRows(log)
        self.text = ""
        self.line = 0
        self.follows = False

    def search(self, text: str) -> None:
        """Look for words, from the beginning; for none, all lines are shown."""
        self.text = text
        self.rows = LogRows(self.log, LogSearch(self.log, text) if text.split() else None)

    def advance(self) -> bool:
        """Read and search on for a while; whether there is more to do now."""
        more = self.log.advance()
        if (search := self.rows.search) is None:
            return more
        return (not search.is_stale and search.advance()) or more


class LiveLogScreen(ConsoleScreen[None]):
    """Reads the log that is shown, as long as it is looked at.

    Args:
        session: what is looked at; it has logs.
        now: a monotonic clock, seconds.

    Attributes:
        session: the same.
        opened: the log that is shown.
        table: its lines.
        payload: all of the selected one; comes after the first paint.
    """

    REQUIRED_WIDGETS = "#summary, #nothing, #filter, #entry, #lines, #payload, #tabs"

    payload: PayloadView

    def __init__(self, session: Session, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.session = session
        self.logs = [OpenedLog(log) for log in session.logs]
        self.opened = self.logs[0]
        self.opened.log.advance(0.0)  # so that the first lines are there when it is painted first
        self.opened.rows.refresh()
        self.table = LogTable(self.opened.rows, id="lines")
        self._now = now
        self._message: tuple[object, EventMessage] | None = None
        self._began = (now(), 0)
        self._wake = asyncio.Event()
        self._suspended = False
        self._next: Timer | None = None
        self._seen: tuple[object, ...] = ()

    def on_mount(self) -> None:
        """Read on after the first paint."""
        self.call_after_refresh(self._begin)

    async def complete(self) -> None:
        """Have the parts that are not needed for the first paint."""

    def on_screen_resume(self) -> None:
        """Read on."""
        self._suspended = False
        self._wake.set()

    def on_screen_suspend(self) -> None:
        """Read no more than was begun."""
        self._suspended = True

    def changed(self) -> None:
        """Something else is to be shown or looked for."""
        self._wake.set()
        self.show_all()

    def show_all(self) -> None:
        """Draw what came."""
        self._next = None
        if not self.is_ready:
            return
        rows = self.opened.rows
        if rows.search is not None and rows.search.is_stale:
            self.opened.search(self.opened.text)
            rows = self.opened.rows
        rows.refresh()
        self.set_class(not len(rows), "-empty")
        self.table.show(rows)
        self.payload.show(self.message)
        self.show_around()

    def show_around(self) -> None:
        """Draw what is said above the lines, and in their place."""
        for name, make in (("summary", self.heading_lines), ("nothing", self.nothing_lines)):
            for part in self.query(f"#{name}").results(StatusText):
                part.show(make)

    @property
    def message(self) -> EventMessage | None:
        """The selected line, None where there is none; the same object as long as it is the same."""
        rows = self.opened.rows
        if not len(rows):
            return None
        log, number = rows.log, rows.number(self.table.cursor)
        known = (log.index, number, number < log.index.n_newlines or log.index.size)
        if self._message is None or self._message[0] != known:
            self._message = known, line_message(log, number)
        return self._message[1]

    def heading_lines(self, width: int) -> list[Line]:
        """What is said above the lines."""
        return log_heading(self._state, width)

    def nothing_lines(self, width: int) -> list[Line]:
        """What is said where there are no lines."""
        return [] if len(self.opened.rows) else empty_log_lines(self._state, width)

    @property
    def _state(self) -> LogViewState:
        rows = self.opened.rows
        place = (self.logs.index(self.opened), len(self.logs))
        is_hostile = unsafe_text(self.message) is not None
        return LogViewState(rows, keymap_of(self.app).key, place, self.table.follow, self._pace(), is_hostile)

    def _pace(self) -> float:
        began, size = self._began
        log = self.opened.log
        return 0.0 if log.is_complete else (log.index.size - size) / max(self._now() - began, 0.001)

    @on(LineList.CursorMoved, "#lines")
    def _moved(self) -> None:
        if self.is_ready:
            self.payload.show(self.message)
            self.show_around()

    @on(LineList.FollowChanged, "#lines")
    def _followed(self) -> None:
        self.show_around()

    async def _begin(self) -> None:
        if not self.is_attached:  # left before it was there
            return
        await self.complete()
        self.show_all()
        self._began = (self._now(), self.opened.log.index.size)
        start_worker(self, self._read, group="log", exclusive=True)

    async def _read(self) -> None:
        """Read and search as long as there is something to read, then look at the file from time to time."""
        while True:
            self._wake.clear()
            opened = self.opened
            reading = not opened.log.is_complete
            more = not self._suspended and await asyncio.to_thread(opened.advance)
            if opened.log.replaced and self.table.follow and opened is self.opened:
                await asyncio.to_thread(opened.log.reopen)
                more = True
            if (seen := self._what_is_seen()) != self._seen:
                self._seen = seen
                if reading and not more:
                    self._draw_now()
                else:
                    self._draw_soon()
            if not more:
                await self._wait()
                self._began = (self._now(), self.opened.log.index.size)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(None if self._suspended else POLL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    def _what_is_seen(self) -> tuple[object, ...]:
        log, search = self.opened.log, self.opened.rows.search
        found = None if search is None else (search.position, len(search.matches), search.partial_match, search.is_stale)
        return (log, log.index, log.index.size, log.size, log.failure, log.replaced, log.deleted, search, found)

    def _draw_now(self) -> None:
        """All is read: nothing more comes that could be drawn along with it."""
        if self._next is not None:
            self._next.stop()
        self.show_all()

    def _draw_soon(self) -> None:
        """What comes until then is drawn at once."""
        if self._next is None:
            wait = DRAW_S if self.opened.log.is_complete else DRAW_READING_S
            self._next = self.set_timer(wait, self.show_all)
