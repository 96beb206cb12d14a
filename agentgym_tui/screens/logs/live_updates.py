"""The base class of the log screen: reads and searches the open log while the screen is shown, and draws new lines."""

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
from agentgym_tui.state.log_entries import EventMessage
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText
from agentgym_tui.widgets.table import Table

if TYPE_CHECKING:
    from agentgym_tui.widgets.payload_view import PayloadView

DRAW_INTERVAL_S: Final = 0.1
DRAW_WHILE_READING_S: Final = 0.25
"""Seconds between two redraws, also while a log is being read: drawing slows reading down."""

POLL_INTERVAL_S: Final = 0.5
"""Seconds between two checks of a file that was read to its end."""


class LogTable(Table):
    """A table of log lines that starts at the first line and can follow the end of the log."""

    def __init__(self, source: LogRows, *, id: str) -> None:
        super().__init__(LOG_COLUMNS, source, id=id)
        self._can_follow = True


class OpenedLog:
    """An opened log, with the view state to restore when the log is shown again.

    Attributes:
        log: the log file.
        rows: the shown lines.
        text: the search words.
        line: number of the line under the cursor.
        follow: whether the list follows the end of the log.
    """

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.rows = LogRows(log)
        self.text = ""
        self.line = 0
        self.follow = False

    def search(self, text: str) -> None:
        """Search the log from its first line for the words of ``text``; without words, show all lines."""
        self.text = text
        self.rows = LogRows(self.log, LogSearch(self.log, text) if text.split() else None)

    def advance(self) -> bool:
        """Read and search for a short time; return whether lines are left to read or search."""
        more = self.log.advance()
        if (search := self.rows.search) is None:
            return more
        return (not search.is_stale and search.advance()) or more


class LogScreenBase(ConsoleScreen[None]):
    """A screen that reads the shown log while the screen is visible.

    Args:
        session: a session with logs.
        now: returns the time of a monotonic clock in seconds.

    Attributes:
        session: the session.
        opened: the shown log.
        table: the table of the log's lines.
        payload: the view of the selected line; mounted after the first paint.
    """

    REQUIRED_WIDGETS = "#summary, #nothing, #filter, #entry, #lines, #payload, #tabs"

    payload: PayloadView

    def __init__(self, session: Session, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.session = session
        self.logs = [OpenedLog(log) for log in session.logs]
        self.opened = self.logs[0]
        self.opened.log.advance(0.0)  # so that the first paint shows lines
        self.opened.rows.refresh()
        self.table = LogTable(self.opened.rows, id="lines")
        self._now = now
        self._selected_message: tuple[object, EventMessage] | None = None
        self._rate_start = (now(), 0)
        self._wake = asyncio.Event()
        self._suspended = False
        self._draw_timer: Timer | None = None
        self._drawn_signature: tuple[object, ...] = ()

    def on_mount(self) -> None:
        """Start reading after the first paint."""
        self.call_after_refresh(self._start_reading)

    async def mount_deferred(self) -> None:
        """Mount the widgets that the first paint does not need."""

    def on_screen_resume(self) -> None:
        """Resume reading."""
        self._suspended = False
        self._wake.set()

    def on_screen_suspend(self) -> None:
        """Suspend reading at the end of the current chunk."""
        self._suspended = True

    def refresh_view(self) -> None:
        """Resume reading and redraw, after another log or other search words were selected."""
        self._wake.set()
        self.show_all()

    def show_all(self) -> None:
        """Redraw everything."""
        self._draw_timer = None
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
        self.show_texts()

    def show_texts(self) -> None:
        """Redraw the heading and the text that replaces an empty list of lines."""
        for name, make_lines in (("summary", self.heading_lines), ("nothing", self.nothing_lines)):
            for widget in self.query(f"#{name}").results(StatusText):
                widget.show(make_lines)

    @property
    def message(self) -> EventMessage | None:
        """The selected line as a message; None if there is none. An unchanged line always yields the same object."""
        rows = self.opened.rows
        if not len(rows):
            return None
        log, number = rows.log, rows.number(self.table.cursor)
        identity = (log.index, number, number < log.index.n_newlines or log.index.size)
        if self._selected_message is None or self._selected_message[0] != identity:
            self._selected_message = identity, line_message(log, number)
        return self._selected_message[1]

    def heading_lines(self, width: int) -> list[Line]:
        """Return the heading lines above the list."""
        return log_heading(self._state, width)

    def nothing_lines(self, width: int) -> list[Line]:
        """Return the text that is shown if there are no log lines."""
        return [] if len(self.opened.rows) else empty_log_lines(self._state, width)

    @property
    def _state(self) -> LogViewState:
        rows = self.opened.rows
        position = (self.logs.index(self.opened), len(self.logs))
        is_unsafe = unsafe_text(self.message) is not None
        return LogViewState(rows, keymap_of(self.app).key, position, self.table.follow, self._read_rate(), is_unsafe)

    def _read_rate(self) -> float:
        started_at, size = self._rate_start
        log = self.opened.log
        return 0.0 if log.is_complete else (log.index.size - size) / max(self._now() - started_at, 0.001)

    @on(LineList.CursorMoved, "#lines")
    def _cursor_moved(self) -> None:
        if self.is_ready:
            self.payload.show(self.message)
            self.show_texts()

    @on(LineList.FollowChanged, "#lines")
    def _follow_changed(self) -> None:
        self.show_texts()

    async def _start_reading(self) -> None:
        if not self.is_attached:  # the screen was closed before the first paint
            return
        await self.mount_deferred()
        self.show_all()
        self._rate_start = (self._now(), self.opened.log.index.size)
        start_worker(self, self._read, group="log", exclusive=True)

    async def _read(self) -> None:
        """Read and search the log to its end, then poll the file for new lines."""
        while True:
            self._wake.clear()
            opened = self.opened
            reading = not opened.log.is_complete
            more = not self._suspended and await asyncio.to_thread(opened.advance)
            if opened.log.replaced and self.table.follow and opened is self.opened:
                await asyncio.to_thread(opened.log.reopen)
                more = True
            if (signature := self._signature()) != self._drawn_signature:
                self._drawn_signature = signature
                if reading and not more:
                    self._draw_now()
                else:
                    self._draw_soon()
            if not more:
                await self._wait()
                self._rate_start = (self._now(), self.opened.log.index.size)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(None if self._suspended else POLL_INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    def _signature(self) -> tuple[object, ...]:
        log, search = self.opened.log, self.opened.rows.search
        search_state = (
            None if search is None else (search.position, len(search.matches), search.partial_match, search.is_stale)
        )
        return (log, log.index, log.index.size, log.size, log.failure, log.replaced, log.deleted, search, search_state)

    def _draw_now(self) -> None:
        if self._draw_timer is not None:
            self._draw_timer.stop()
        self.show_all()

    def _draw_soon(self) -> None:
        if self._draw_timer is None:
            wait = DRAW_INTERVAL_S if self.opened.log.is_complete else DRAW_WHILE_READING_S
            self._draw_timer = self.set_timer(wait, self.show_all)
