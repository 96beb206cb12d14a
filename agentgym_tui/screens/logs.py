"""The log screen: shows a file of events or other lines, of any size, even while the file is being written."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from textual import on

from agentgym_tui.commands.keymap import bindings, keymap_of
from agentgym_tui.logs.log_file import LogFile, find_last_time, find_line_at
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.logs import LOG_COLUMNS, OpenedLog, empty_log_lines, line_info, log_heading
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.line_browser import LineBrowser
from agentgym_tui.services import start_worker
from agentgym_tui.state.event_log import EventMessage, parse_start
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList
from agentgym_tui.widgets.payload_view import PayloadView
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.table import Table

DRAW_INTERVAL_S: Final = 0.1
DRAW_WHILE_READING_S: Final = 0.25
"""Seconds between two redraws, also while a log is being read: drawing slows reading down."""
POLL_INTERVAL_S: Final = 0.5
"""Seconds between two checks of a file that was read to its end."""

SHARES: Final = (Share("lines", "log.lines", "height", 20, 80),)


class LogScreen(LineBrowser):
    """A screen that shows the logs of a session, one at a time, and reads the shown log while it is visible."""

    SCOPE = "log"
    AUTO_FOCUS = "#lines"
    FILTER_HINT = "words and fields, such as: level:error,warning timeout since:10m"
    keeps_filter = False
    list_key = "log"
    GO_TO_HINT = "a line (1200), 14:30, 10m before the end, 2026-05-01 14:30, all, now"

    def __init__(self, context: ScreenContext) -> None:
        table = Table(LOG_COLUMNS, can_follow=True, id="lines")
        payload = PayloadView(("formatted", "raw", "hex"), line_info, command="log.view", id="message")
        super().__init__(context, table, payload, Split(SHARES, context.ui_state.sizes, table, payload, id="log"))
        self.logs: list[OpenedLog] = []
        self._add_logs()
        self.opened = self.logs[0]
        self.opened.log.advance(0.0)  # so that the first paint shows lines
        self.opened.refresh()
        table.source, table.follow = self.opened, self.opened.follow
        self._selected: tuple[object, EventMessage] | None = None
        self._rate_start = (self._now(), 0)
        self._wake = asyncio.Event()
        self._suspended = False
        self._restore_keys: Callable[[], None] | None = None
        self._drawn_signature: tuple[object, ...] = ()

    def on_mount(self) -> None:
        self.call_after_refresh(self._start_reading)

    def on_screen_resume(self) -> None:
        self._add_logs()
        self._suspended = False
        self._wake.set()

    def _add_logs(self) -> None:
        """Add the session's new logs; those of a node are followed at their end."""
        for log in self.session.open_logs()[len(self.logs) :]:
            self.logs.append(opened := OpenedLog(log))
            opened.follow = self.session.has_node_logs

    def on_screen_suspend(self) -> None:
        self._suspended = True

    @property
    def searchable(self) -> OpenedLog:
        return self.opened

    @property
    def entry(self) -> EventMessage | None:
        if not len(self.opened):
            return None
        index, number = self.opened.log.index, self.opened.number(self.table.cursor)
        identity = (index, number, number < index.n_newlines or index.size)
        if self._selected is None or self._selected[0] != identity:
            self._selected = identity, self.opened.message(self.table.cursor)
        return self._selected[1]

    def heading_lines(self, width: int) -> Sequence[Line]:
        log, (started_at, size) = self.opened.log, self._rate_start
        per_second = 0.0 if log.is_complete else (log.index.size - size) / max(self._now() - started_at, 0.001)
        position = (self.logs.index(self.opened), len(self.logs))
        return log_heading(self.opened, keymap_of(self.app).key, width, position=position, per_second=per_second)

    def nothing_lines(self, width: int) -> Sequence[Line]:
        return [] if len(self.opened) else empty_log_lines(self.opened, keymap_of(self.app).key, width)

    def show_found(self) -> None:
        self.table.follow = False
        self.refresh_view()
        self.table.move_to(self.table.cursor if self.opened.found is None else 0)

    def go_to(self, text: str) -> None:
        start_worker(self, partial(self._go_to, self.opened, text), group="go", exclusive=True)

    def draw_table(self) -> None:
        self.opened.refresh()
        self.set_class(not len(self.opened), "-empty")
        self.table.show(self.opened)

    def refresh_view(self) -> None:
        """Resume reading and redraw, after another log or another filter was selected."""
        self._wake.set()
        is_filtered, words = self.opened.found is not None, self.opened.query.words
        expression = re.compile("|".join(map(re.escape, words)), re.IGNORECASE) if is_filtered and words else None
        self.table.found = expression
        self.payload.mark(expression)
        if is_filtered and self._restore_keys is None:
            self._restore_keys = add_bindings(self, bindings("match"))
            self.query_one(KeyBar).set_first("match")
        elif not is_filtered and self._restore_keys is not None:
            self._restore_keys()
            self._restore_keys = None
            self.query_one(KeyBar).set_first("")
        self.show_all()

    def action_filter(self) -> None:
        self.opened.in_context = False
        self.show_all()
        super().action_filter()

    def action_match(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line that matches the filter, among all lines."""
        if (number := self.opened.match_beyond(self.opened.number(self.table.cursor), by)) is not None:
            self.opened.in_context = True
            self.table.follow = False
            self.draw_table()
            self.table.move_to(number)
            self.show_texts()

    def line_selected(self) -> None:
        super().line_selected()
        self.show_texts()

    def action_reload(self) -> None:
        start_worker(self, partial(self._reload, self.opened.log), group="reload", exclusive=True)

    @on(LineList.FollowChanged, "#lines")
    def _follow_changed(self) -> None:
        self.opened.follow = self.table.follow
        self.show_texts()

    async def _start_reading(self) -> None:
        if self.is_attached:  # else the screen was closed before the first paint
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
            if (signature := self.opened.signature) != self._drawn_signature:
                self._drawn_signature = signature
                if reading and not more:
                    self.show_all()
                else:
                    self.draw_soon(DRAW_INTERVAL_S if self.opened.log.is_complete else DRAW_WHILE_READING_S)
            if not more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), None if self._suspended else POLL_INTERVAL_S)
                self._rate_start = (self._now(), self.opened.log.index.size)

    async def _go_to(self, opened: OpenedLog, text: str) -> None:
        target = await asyncio.to_thread(_line_of, opened.log, text)
        if not self.is_attached or opened is not self.opened:
            return
        if isinstance(target, str):
            self.toast(target, failed=True)
        elif target < 0:
            self.table.action_bottom()
        else:
            self.table.move_to(opened.row(target))
            if target >= (n := len(opened.log.index)):
                self.toast(f"the log has {pluralize(n, 'line')}{'' if opened.log.is_complete else ' so far'}")

    async def _reload(self, log: LogFile) -> None:
        await asyncio.to_thread(log.reopen)
        self.refresh_view()

    def action_neighbor(self, by: int) -> None:
        if len(self.logs) == 1:
            self.toast("no other log is open")
        else:
            self._show_log(self.logs[(self.logs.index(self.opened) + by) % len(self.logs)])

    def show_path(self, path: Path) -> None:
        found = next((opened for opened in self.logs if opened.log.path == path), None)
        if found is not None and found is not self.opened:
            self._show_log(found)

    def _show_log(self, opened: OpenedLog) -> None:
        self.opened.line_number, self.opened.follow = self.opened.number(self.table.cursor), self.table.follow
        self.opened = opened
        self.filter.text = opened.query_text
        self.table.follow = opened.follow
        self.refresh_view()
        if not opened.follow:
            self.table.move_to(opened.row(opened.line_number))


def _line_of(log: LogFile, text: str) -> int | str:
    """Return the line number that ``text`` refers to, from 0; -1 for the end; an error, untrusted text, if invalid."""
    newest = find_last_time(log)
    match parse_start(text, newest or datetime.now(UTC)):
        case None:
            return f"{text[:100]!r} is not a line number or a time; examples: {LogScreen.GO_TO_HINT}"
        case "all":
            return 0
        case "now":
            return -1
        case int(number):
            return max(number - 1, 0)
        case moment if newest is None or (line_number := find_line_at(log, moment)) is None:
            return "no timestamps found in this log"
    return line_number
