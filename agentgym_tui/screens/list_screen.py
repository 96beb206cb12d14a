"""The screens of one list: a heading, a filter, a table, and what is known of the selected row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Final, Generic

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_rows import reading_progress, unreadable_line
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ScreenContext, SessionScreen
from agentgym_tui.screens.list_filter import ListFilter
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.nodes import READING_FILES, BusLink
from agentgym_tui.state.query import FilteredList, Row
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines
from agentgym_tui.widgets.table import Table
from runner.errors import StoreError
from runner.query.fields import Field

READ_INTERVAL_S: Final = 1.0
READ_WHILE_FILLING_S: Final = 0.1
"""Seconds between two reads of a library, at least ten times as long as a read, and while it is still being filled."""


class ListScreen(SessionScreen, Generic[Row]):
    """A table of rows, with a filter if there is a hint for one. Enter and a double click open the selected row.

    What comes from the library is read outside the event loop, and again when episodes have ended.

    Attributes:
        rows: the rows, their filter and their order.
        table: shows them, and posts in which order.
        list_key: name of the list in the UI state.
        failure: why the library cannot be read; "" if it can.
    """

    AUTO_FOCUS = "Table"
    FILTER_HINT: ClassVar[str] = ""
    """Placeholder of the filter."""
    NOTHING: ClassVar[tuple[str, str]] = ("", "")
    """What replaces an empty table, with a filter and without one."""
    READS_LIBRARY: ClassVar[bool] = False

    keeps_filter = True

    def __init__(self, context: ScreenContext, list_key: str, rows: FilteredList[Row], table: Table) -> None:
        super().__init__(context)
        self.context = context
        self.list_key, self.rows, self.table = list_key, rows, self.open_from(table)
        self.failure: str = ""
        self._n_read: int | None = None
        self._reading = self._has_read = False
        self._wake = asyncio.Event()
        self.filter = ListFilter(self)
        rows.sort(self.ui_state.sorting.get(list_key))
        table.sorting = rows.sorting
        if self.FILTER_HINT:
            rows.search(self.filter.kept)
            add_bindings(self, bindings("queries"))

    def compose(self) -> ComposeResult:
        yield StaticLines(self.heading_lines, id="summary")
        if self.FILTER_HINT:
            yield self.filter
        yield self.table
        yield StaticLines(self.nothing_lines, id="nothing")
        yield StaticLines(self.detail_lines, id="detail")
        yield StaticLines(self.status_lines, id="status")
        yield KeyBar(self.SCOPE, self.session)

    def heading_lines(self, width: int) -> Sequence[Line]:
        """Return the lines above the list."""
        raise NotImplementedError

    def nothing_lines(self, width: int) -> Sequence[Line]:
        """Return the lines that replace an empty list."""
        return [[Cell(self.NOTHING[not self.rows.query], "head")]]

    def detail_lines(self, width: int) -> Sequence[Line]:
        """Return the lines below the table."""
        return []

    def cursor_moved(self) -> None:
        """Describe the row under the cursor."""
        self.show_lines("detail")

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        return self.rows.get(self.table.key)

    def selected_env(self) -> str:
        return getattr(self.selected, "env", "")

    @property
    def searchable(self) -> FilteredList[Row]:
        return self.rows

    def query_fields(self) -> list[Field]:
        return list(self.rows.query_fields.values()) if self.FILTER_HINT else []

    def search(self, text: str) -> None:
        """Show only the rows that match a query."""
        self.filter.search(text)

    def show_found(self) -> None:
        self.show_rows()
        self.table.move_to(0)

    def action_filter(self) -> None:
        self.filter.open()

    def action_clear(self) -> None:
        """Clear the filter and show all rows."""
        self.filter.clear()

    def action_queries(self) -> None:
        self.filter.open_saved()

    def action_back(self) -> None:
        """Clear the filter; without one, go back."""
        if self.rows.query:
            self.action_clear()
        elif self.is_current:
            self.dismiss()

    def action_reload(self) -> None:
        self.read_again()

    def draw(self, store: RunStore) -> None:
        if self.is_ready:
            self.show_texts()
            self.read_changes()

    def show_rows(self) -> None:
        """Draw the rows, and the texts around them."""
        self.table.refresh_lines()
        self.show_texts()

    def show_texts(self) -> None:
        """Draw the texts around the rows."""
        self.set_class(not len(self.table.source) and not self.is_filling, "-empty")
        self.set_class(bool(self.failure_line), "-failed")
        self.show_lines("summary", "nothing", "detail", "status")

    @property
    def clear_key(self) -> str:
        """Label of the key that clears the filter."""
        return keymap_of(self.app).key("filter.clear")

    @property
    def reading_state(self) -> str:
        """How much of the library has been read; "" once it is complete."""
        return reading_progress(self.session.store.read_progress) if self.is_filling else ""

    @property
    def failure_line(self) -> Line:
        """Why the library cannot be read, or how many files of it, whose episodes are missing here."""
        if self.failure:
            return [Cell(self.failure, "bad")]
        return unreadable_line(self.session.library.unreadable if self.library and self.session.library else ())

    @on(LineList.CursorMoved)
    def _cursor_moved(self, event: LineList.CursorMoved) -> None:
        if event.view is self.table:
            self.cursor_moved()

    @on(Table.Sorted)
    def _sorted(self, event: Table.Sorted) -> None:
        self.ui_state.set_sorting(self.list_key, event.sorting)
        self.rows.sort(event.sorting)
        self.show_rows()

    @property
    def library(self) -> ResultLibrary | None:
        """What the screen reads; None if it reads nothing, or the session has no library."""
        return self.session.library or self.session.received if self.READS_LIBRARY else None

    async def read(self, library: ResultLibrary) -> None:
        """Read the library in a thread and keep what was read; raises ``StoreError``."""

    def show_read(self, *, first: bool) -> None:
        """Show what was read, or the failure."""
        self.show_rows()

    def read_changes(self) -> None:
        """Read the library in the background, unless no episode has ended since the last read."""
        if self.library is not None and self._n_read != self.session.store.n_ended and not self._reading:
            self._reading = True
            start_worker(self, self._read, group="read")

    def read_again(self) -> None:
        """Read the library at once, even if no episode has ended; a running read is followed by another one."""
        self._n_read = None
        self._wake.set()
        self.read_changes()

    @property
    def is_filling(self) -> bool:
        """Whether the library was not read yet, or is still being filled."""
        is_library, link = self.library is not None, self.session.store.link
        return is_library and (not self._has_read or link in (BusLink(), READING_FILES))

    async def _read(self) -> None:
        """Read the library; repeat as long as further episodes have ended since the previous read."""
        store = self.session.store
        try:
            while (library := self.library) is not None and self._n_read != store.n_ended and self.is_current:
                self._n_read, started_s = store.n_ended, self._now()
                self._wake.clear()
                try:
                    await self.read(library)
                except StoreError as exc:
                    self.failure = f"✗ {masked_line(exc)}"
                else:
                    self.failure = ""
                is_first, self._has_read = not self._has_read, True
                if self.is_ready:
                    self.show_read(first=is_first)
                await self._wait_to_read(10 * (self._now() - started_s))
        finally:
            self._reading = False

    async def _wait_to_read(self, least_s: float) -> None:
        """Wait until the next read or the user's wish; a library that was being filled is read once it is complete."""
        if not self.is_filling:
            await self._wait(max(READ_INTERVAL_S, least_s))
        for _ in range(max(round(least_s / READ_WHILE_FILLING_S), 1)):
            if self.is_filling and not self._wake.is_set():
                await self._wait(READ_WHILE_FILLING_S)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
