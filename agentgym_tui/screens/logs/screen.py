"""The screen of a log: a file of events or other lines, however large, while it is written or afterwards."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from agentgym_tui.commands.availability import hidden_commands
from agentgym_tui.commands.keymap import bindings
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.logs.log_search import find_last_time, find_line_at
from agentgym_tui.presenters.log_rows import line_info
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.payload import unsafe_text
from agentgym_tui.safe_text import sanitize_line, trusted
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS
from agentgym_tui.screens.logs.live_updates import LiveLogScreen, OpenedLog
from agentgym_tui.services.clipboard import copy_to_clipboard
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import toast
from agentgym_tui.widgets.cached_widgets import CachedContainer
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.pane_layouts import LOG
from agentgym_tui.widgets.pane_sizes import PaneSizes
from agentgym_tui.widgets.static_lines import StatusText

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widgets import Input

    from agentgym_tui.sessions.protocols import Session
    from agentgym_tui.widgets.inputs import EntryInput, FilterInput

GO_TO: Final = "a line (1200), 14:30, 10m before the end, 2026-05-01 14:30, all, now"


class LogScreen(LiveLogScreen):
    """Shows the logs of a session, one at a time.

    Args:
        session: what is looked at; it has logs.
        kept: sizes as they were left.
        now: a monotonic clock, seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("log")]
    CSS_PATH = "../../styles/log.tcss"
    AUTO_FOCUS = "#lines"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    _words: FilterInput
    _place: EntryInput

    def __init__(
        self, session: Session, kept: UiState | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(session, now=now)
        self._sizes = PaneSizes(self, kept or UiState(), LOG)

    def compose(self) -> ComposeResult:
        """Heading, lines, keys."""
        yield StatusText(self.heading_lines, id="summary")
        with CachedContainer(id="log"):
            yield self.table
        yield KeyBar("log", without=hidden_commands(self.session))

    async def complete(self) -> None:
        """All of one line, what one types, what is said where there are no lines: lines come first."""
        from agentgym_tui.widgets.inputs import MAX_QUERY_CHARS, EntryInput, FilterInput
        from agentgym_tui.widgets.payload_view import PayloadView

        self._words = FilterInput(placeholder="words that a line must hold", id="filter", max_length=MAX_QUERY_CHARS)
        self._place = EntryInput(id="entry", max_length=MAX_QUERY_CHARS)
        self.payload = PayloadView(("formatted", "raw", "hex"), line_info, command="log.view", id="message")
        mounting = (
            self.mount(self._words, self._place, after="#summary"),
            self.mount(StatusText(self.nothing_lines, id="nothing"), after="#log"),
            self.query_one("#log").mount(self.payload),
        )
        for each in mounting:
            await each
        self._fit()

    def zoom(self) -> None:
        """The focused part alone, or both again."""
        if self.has_class("-alone"):
            self.remove_class("-alone", "-lines", "-message")
        else:
            self.add_class("-alone", "-lines" if self.table.has_focus else "-message")
        self._fit()

    def resize(self, direction: str) -> bool:
        """Change the size of the focused part; False where that cannot be."""
        focused = self.focused.id if self.focused is not None else None
        if self.has_class("-alone") or not self._sizes.resize(LOG, focused, direction):
            return False
        self._fit()
        return True

    def hostile_text(self) -> str | None:
        """What is behind the selected line where cleaning changes it."""
        return unsafe_text(self.message)

    def action_filter(self) -> None:
        """Ask for words."""
        self.add_class("-filtering")
        self.set_focus(self._words)

    def action_go_to(self) -> None:
        """Ask for a place."""
        self.add_class("-asking")
        self._place.prompt(GO_TO)

    def action_clear(self) -> None:
        """All lines; what was looked for is forgotten."""
        self._words.action_clear()

    def action_next_view(self) -> None:
        """The line in another way."""
        self.payload.next_view()

    def action_next_log(self) -> None:
        """Another one of the opened logs."""
        self._beside(1)

    def action_previous_log(self) -> None:
        """The one before."""
        self._beside(-1)

    def action_copy(self) -> None:
        """Copy what is shown, with control characters made visible."""
        copy_to_clipboard(self.app, self.payload.text(), raw=False)

    def action_copy_raw(self) -> None:
        """Copy what is shown, as it came."""
        copy_to_clipboard(self.app, self.payload.text(), raw=True)

    def action_reload(self) -> None:
        """Read the file anew."""
        start_worker(self, partial(self._reload, self.opened.log), group="reload", exclusive=True)

    @on(LineList.Selected, "#lines")
    def _chosen(self) -> None:
        if self.accepts_keys:
            self.set_focus(self.payload.query_one(LineList))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look for other words; by its name, as decorators would need what is imported after the first paint."""
        if event.input.id != "filter" or not self.is_ready or event.value.split() == self.opened.text.split():
            return
        self.opened.search(event.value)
        self.table.follow = False
        self.changed()
        self.table.move_to(self.table.cursor if self.opened.rows.search is None else 0)

    def on_filter_input_closed(self, event: FilterInput.Closed) -> None:
        """Back to the lines."""
        self.set_class(not event.cleared, "-filtering")

    def on_entry_input_closed(self, event: EntryInput.Closed) -> None:
        """Go to what was typed."""
        self.remove_class("-asking")
        if event.text is not None:
            start_worker(self, partial(self._go, self.opened, event.text), group="go", exclusive=True)

    def _fit(self) -> None:
        """The parts take their share of another size, or all of it."""
        self._sizes.apply(None if self.has_class("-alone") else LOG)

    async def _go(self, opened: OpenedLog, text: str) -> None:
        to = await asyncio.to_thread(_place_of, opened.log, text)
        if not self.is_ready or opened is not self.opened:
            return
        if isinstance(to, str):
            toast(self.app, sanitize_line(to, 300), failed=True)
        elif to < 0:
            self.table.action_bottom()
        else:
            self.table.move_to(opened.rows.row(to))
            self._tell_what_lacks(opened.log, to)

    def _tell_what_lacks(self, log: LogFile, number: int) -> None:
        if number >= (n := len(log.index)):
            more = "" if log.is_complete else " so far"
            toast(self.app, trusted(f"there are {pluralize(n, 'line')}{more}"))

    async def _reload(self, log: LogFile) -> None:
        await asyncio.to_thread(log.reopen)
        self.changed()

    def _beside(self, by: int) -> None:
        """Show another log as it was left."""
        if len(self.logs) == 1:
            toast(self.app, trusted("no other log was opened"))
            return
        left = self.opened
        left.line, left.follows = left.rows.number(self.table.cursor), self.table.follow
        self.opened = self.logs[(self.logs.index(left) + by) % len(self.logs)]
        self.set_class(bool(self.opened.text), "-filtering")
        self._words.value = self.opened.text
        self.table.follow = self.opened.follows
        self.changed()
        if not self.opened.follows:
            self.table.move_to(self.opened.rows.row(self.opened.line))


def _place_of(log: LogFile, text: str) -> int | str:
    """The line that a person means, from 0, or -1 for the end; else what is wrong, hostile text."""
    from agentgym_tui.state.event_query import parse_start

    newest = find_last_time(log)
    match parse_start(text, newest or datetime.now(UTC)):
        case None:
            return f"{text[:100]!r} is no line and no time; such as: {GO_TO}"
        case "all":
            return 0
        case "now":
            return -1
        case int(number):
            return max(number - 1, 0)
        case at if newest is None or (found := find_line_at(log, at)) is None:
            return "the lines of this log do not say when, as far as was looked"
    return found
