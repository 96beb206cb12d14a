"""The log screen: shows a file of events or other lines, of any size, even while the file is being written."""

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
from agentgym_tui.screens.logs.live_updates import LogScreenBase, OpenedLog
from agentgym_tui.services.clipboard import copy_to_clipboard
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import toast
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.static_lines import StatusText

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widgets import Input

    from agentgym_tui.sessions.protocols import Session
    from agentgym_tui.widgets.inputs import EntryInput, FilterInput

GO_TO_HINT: Final = "a line (1200), 14:30, 10m before the end, 2026-05-01 14:30, all, now"
SHARES: Final = (Share("lines", "log.lines", "height", 20, 80),)


class LogScreen(LogScreenBase):
    """A screen that shows the logs of a session, one log at a time.

    Args:
        session: a session with logs.
        ui_state: saved pane sizes; updated in place.
        now: returns the time of a monotonic clock in seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("log")]
    CSS_PATH = "../../styles/log.tcss"
    AUTO_FOCUS = "#lines"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    _filter: FilterInput
    _prompt: EntryInput

    def __init__(
        self, session: Session, ui_state: UiState | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(session, now=now)
        self._sizes = (ui_state or UiState()).sizes

    def compose(self) -> ComposeResult:
        """Yield heading, lines and key bar."""
        yield StatusText(self.heading_lines, id="summary")
        with Split(SHARES, self._sizes, id="log"):
            yield self.table
        yield KeyBar("log", without=hidden_commands(self.session))

    async def mount_deferred(self) -> None:
        """Mount the payload, the inputs and the text for an empty list, after the first lines were painted."""
        from agentgym_tui.widgets.inputs import MAX_QUERY_CHARS, EntryInput, FilterInput
        from agentgym_tui.widgets.payload_view import PayloadView

        self._filter = FilterInput(placeholder="words the line must contain", id="filter", max_length=MAX_QUERY_CHARS)
        self._prompt = EntryInput(id="entry", max_length=MAX_QUERY_CHARS)
        self.payload = PayloadView(("formatted", "raw", "hex"), line_info, command="log.view", id="message")
        mounts = (
            self.mount(self._filter, self._prompt, after="#summary"),
            self.mount(StatusText(self.nothing_lines, id="nothing"), after="#log"),
            self.query_one("#log").mount(self.payload),
        )
        for each in mounts:
            await each

    def unsafe_text(self) -> str | None:
        """Return the raw text of the selected line if sanitizing changes it, else None."""
        return unsafe_text(self.message)

    def action_filter(self) -> None:
        """Open the filter."""
        self.add_class("-filtering")
        self.set_focus(self._filter)

    def action_go_to(self) -> None:
        """Prompt for the line number or the time to go to."""
        self.add_class("-prompting")
        self._prompt.prompt(GO_TO_HINT)

    def action_clear(self) -> None:
        """Clear the filter and show all lines."""
        self._filter.action_clear()

    def action_next_view(self) -> None:
        """Show the selected line in the next representation."""
        self.payload.next_view()

    def action_next_log(self) -> None:
        """Show the next opened log."""
        self._show_neighbor(1)

    def action_previous_log(self) -> None:
        """Show the previous opened log."""
        self._show_neighbor(-1)

    def action_copy(self) -> None:
        """Copy the shown text; visible symbols replace control characters."""
        copy_to_clipboard(self.app, self.payload.text(), raw=False)

    def action_copy_raw(self) -> None:
        """Copy the raw text, without sanitizing it."""
        copy_to_clipboard(self.app, self.payload.text(), raw=True)

    def action_reload(self) -> None:
        """Open the file at the log's path again."""
        start_worker(self, partial(self._reload, self.opened.log), group="reload", exclusive=True)

    @on(LineList.Selected, "#lines")
    def _line_opened(self) -> None:
        if self.accepts_keys:
            self.set_focus(self.payload.query_one(LineList))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search for the new words. ``@on`` is not possible because the inputs are imported after the first paint."""
        if event.input.id != "filter" or not self.is_ready or event.value.split() == self.opened.text.split():
            return
        self.opened.search(event.value)
        self.table.follow = False
        self.refresh_view()
        self.table.move_to(self.table.cursor if self.opened.rows.search is None else 0)

    def on_filter_input_closed(self, event: FilterInput.Closed) -> None:
        """Move the focus back to the lines."""
        self.set_class(not event.cleared, "-filtering")

    def on_entry_input_closed(self, event: EntryInput.Closed) -> None:
        """Go to the entered line or time."""
        self.remove_class("-prompting")
        if event.text is not None:
            start_worker(self, partial(self._go_to, self.opened, event.text), group="go", exclusive=True)

    async def _go_to(self, opened: OpenedLog, text: str) -> None:
        target = await asyncio.to_thread(_line_of, opened.log, text)
        if not self.is_ready or opened is not self.opened:
            return
        if isinstance(target, str):
            toast(self.app, sanitize_line(target, 300), failed=True)
        elif target < 0:
            self.table.action_bottom()
        else:
            self.table.move_to(opened.rows.row(target))
            self._report_missing_line(opened.log, target)

    def _report_missing_line(self, log: LogFile, number: int) -> None:
        if number >= (n := len(log.index)):
            more = "" if log.is_complete else " so far"
            toast(self.app, trusted(f"the log has {pluralize(n, 'line')}{more}"))

    async def _reload(self, log: LogFile) -> None:
        await asyncio.to_thread(log.reopen)
        self.refresh_view()

    def _show_neighbor(self, by: int) -> None:
        """Show the opened log ``by`` positions after the shown log, in its last view state."""
        if len(self.logs) == 1:
            toast(self.app, trusted("no other log is open"))
            return
        previous = self.opened
        previous.line, previous.follow = previous.rows.number(self.table.cursor), self.table.follow
        self.opened = self.logs[(self.logs.index(previous) + by) % len(self.logs)]
        self.set_class(bool(self.opened.text), "-filtering")
        self._filter.value = self.opened.text
        self.table.follow = self.opened.follow
        self.refresh_view()
        if not self.opened.follow:
            self.table.move_to(self.opened.rows.row(self.opened.line))


def _line_of(log: LogFile, text: str) -> int | str:
    """Return the line number that ``text`` refers to, from 0; -1 for the end; an error, untrusted text, if invalid."""
    from agentgym_tui.state.event_query import parse_start

    newest = find_last_time(log)
    match parse_start(text, newest or datetime.now(UTC)):
        case None:
            return f"{text[:100]!r} is not a line number or a time; examples: {GO_TO_HINT}"
        case "all":
            return 0
        case "now":
            return -1
        case int(number):
            return max(number - 1, 0)
        case moment if newest is None or (line_number := find_line_at(log, moment)) is None:
            return "no timestamps found in this log"
    return line_number
