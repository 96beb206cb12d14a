"""Base of the screens that browse lines: with a filter, a prompt, a table and the selected line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.timer import Timer

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Line
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, ScreenContext, SessionScreen
from agentgym_tui.screens.list_filter import ListFilter
from agentgym_tui.services import copy_to_clipboard
from agentgym_tui.state.event_log import LogEntry
from agentgym_tui.state.query import MAX_CHARS, Searchable
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.inputs import EntryInput
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines
from agentgym_tui.widgets.payload_view import PayloadView
from agentgym_tui.widgets.split import Split
from agentgym_tui.widgets.table import Table
from runner.query.fields import Field


class LineBrowser(SessionScreen):
    """A screen with a table of lines, a filter and a prompt above it, and the selected line below it."""

    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    FILTER_HINT: ClassVar[str]
    GO_TO_HINT: ClassVar[str]
    """Placeholder of the prompt for a place in the lines."""
    keeps_filter = True
    list_key: str

    def __init__(self, context: ScreenContext, table: Table, payload: PayloadView, panes: Split) -> None:
        super().__init__(context)
        self.table, self.payload, self._panes = table, payload, panes
        self.filter = ListFilter(self)
        add_bindings(self, bindings("queries"))
        self._prompt = EntryInput(id="entry", max_length=MAX_CHARS)
        self._use_entered: Callable[[str], None] = self.go_to
        self._draw_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield StaticLines(self.heading_lines, id="summary")
        yield self.filter
        yield self._prompt
        yield self._panes
        yield StaticLines(self.nothing_lines, id="nothing")
        yield KeyBar(self.SCOPE, self.session)

    @property
    def searchable(self) -> Searchable[Any]:
        """The lines that the filter searches."""
        raise NotImplementedError

    def heading_lines(self, width: int) -> Sequence[Line]:
        """Return the lines above the table."""
        raise NotImplementedError

    def nothing_lines(self, width: int) -> Sequence[Line]:
        """Return the lines that replace an empty table."""
        raise NotImplementedError

    @property
    def entry(self) -> LogEntry | None:
        """The selected line; None if there is none."""
        raise NotImplementedError

    def go_to(self, text: str) -> None:
        """Go to the place that the user entered."""
        raise NotImplementedError

    def draw_table(self) -> None:
        """Show the current lines in the table."""
        raise NotImplementedError

    def show_found(self) -> None:
        self.show_all()

    def search(self, text: str) -> None:
        self.filter.search(text)

    def query_fields(self) -> list[Field]:
        return list(self.searchable.query_fields.values())

    def action_filter(self) -> None:
        self.filter.open()

    def action_clear(self) -> None:
        self.filter.clear()

    def action_queries(self) -> None:
        self.filter.open_saved()

    def show_texts(self) -> None:
        self.show_lines("summary", "nothing")

    def open_prompt(self, hint: str, use: Callable[[str], None]) -> None:
        self._use_entered = use
        self.add_class("-prompting")
        self._prompt.prompt(hint)

    def action_go_to(self) -> None:
        self.open_prompt(self.GO_TO_HINT, self.go_to)

    def action_next_view(self) -> None:
        self.payload.next_view()

    def action_copy(self, raw: bool = False) -> None:
        copy_to_clipboard(self.app, self.payload.text(), raw=raw)

    @on(EntryInput.Closed)
    def _prompt_closed(self, event: EntryInput.Closed) -> None:
        self.remove_class("-prompting")
        if event.text is not None:
            self._use_entered(event.text)

    @on(LineList.CursorMoved)
    def _line_selected(self, event: LineList.CursorMoved) -> None:
        if event.view is self.table:
            self.line_selected()

    def line_selected(self) -> None:
        self.payload.show(self.entry)

    @on(LineList.Selected)
    def _line_opened(self, event: LineList.Selected) -> None:
        if event.view is self.table and self.accepts_keys:
            self.set_focus(self.payload.lines)

    def draw_soon(self, wait_s: float) -> None:
        """Redraw everything after ``wait_s`` seconds, unless that is already planned."""
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(wait_s, self.show_all)

    def show_all(self) -> None:
        if self._draw_timer is not None:
            self._draw_timer.stop()
            self._draw_timer = None
        if self.is_ready:
            self.draw_table()
            self.payload.show(self.entry)
            self.show_texts()
