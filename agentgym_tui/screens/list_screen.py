"""The screens of one list, with a heading, a filter, a table, and what is known of the selected row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol

from rich.highlighter import Highlighter
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.config import MAX_NAME_CHARS, UiState
from agentgym_tui.presenters.cells import Cell, FixedLines, Line, Listing, ListingRows, query_note, wrap_text
from agentgym_tui.presenters.episode_rows import reading_progress, unreadable_line
from agentgym_tui.safe_text import mask_secrets, masked_line
from agentgym_tui.screens.base import DialogFrame, DialogScreen, ScreenContext, SessionScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.nodes import READING_FILES, BusLink
from agentgym_tui.state.query import MAX_CHARS, Completion, FilteredList, Row, Searchable, complete
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines, Table
from runner.errors import StoreError
from runner.query.fields import Field

if TYPE_CHECKING:
    from rich.text import Text

    from runner.query.syntax import QueryError


ERROR_STYLE: Final = "bold underline"
_TYPED: Final = -1
_NAME_WIDTH: Final = 20


class ErrorMark(Highlighter):
    error: QueryError | None = None

    def highlight(self, text: Text) -> None:
        if self.error is not None:
            text.stylize(ERROR_STYLE, self.error.start, self.error.end)


class QuerySuggester(Suggester):
    def __init__(self, complete: Callable[[str], Completion]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        best = self._complete(value).best
        return best if best.casefold().startswith(value.casefold()) and mask_secrets(best) == best else None


class FilterInput(SearchInput):
    """The field of the query; ``recall`` returns the last queries, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filter")]

    @dataclass
    class Closed(Message):
        """``cleared``: there is no query; ``taken``: Enter ended it."""

        cleared: bool
        taken: bool = False

    def __init__(
        self, text: str, placeholder: str, complete: Callable[[str], Completion], recall: Callable[[], Sequence[str]]
    ) -> None:
        self._mark = ErrorMark()
        suggester = QuerySuggester(complete)
        super().__init__(text, placeholder, self._mark, suggester=suggester, id="filter", max_length=MAX_CHARS)
        self._complete, self._recall = complete, recall
        self._draft, self._place = "", _TYPED

    def mark(self, error: QueryError | None) -> None:
        self._mark.error = error
        self.refresh()

    def action_clear(self) -> None:
        self.value = ""
        self._close(cleared=True)

    def action_leave(self) -> None:
        self._close(cleared=not self.value.strip(), taken=True)

    def action_complete(self) -> None:
        """Complete the field or value at the end; return to the list if nothing can be completed."""
        if self.cursor_at_end and (best := self._complete(self.value).best):
            self._replace(best)
        else:
            self._close(cleared=not self.value.strip())

    def action_older(self) -> None:
        if self._place == _TYPED:
            self._draft = self.value
        self._recall_at(self._place + 1)

    def action_newer(self) -> None:
        """Put the query after this one into the filter, and at last what was typed; from there, go to the list."""
        if self._place == _TYPED:
            self._close(cleared=not self.value.strip())
        else:
            self._recall_at(self._place - 1)

    def _recall_at(self, place: int) -> None:
        earlier = [text for text in self._recall() if text != self._draft.strip()]
        if place < len(earlier):
            self._place = place
            self._replace(self._draft if place == _TYPED else earlier[place])

    def _replace(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)

    def correct(self, error: QueryError) -> None:
        """Take the focus again, with the cursor behind an error and without a selection."""
        self.select_on_focus = False
        self.screen.set_focus(self)
        self.cursor_position = error.end

    def _close(self, *, cleared: bool, taken: bool = False) -> None:
        self._place, self.select_on_focus = _TYPED, True
        self.leave(self.Closed(cleared, taken))


class FilteredScreen(Protocol):
    """A screen with a filter; ``list_key`` is the name of its list in the UI state, which may keep the filter."""

    FILTER_HINT: ClassVar[str]
    list_key: str
    keeps_filter: bool
    ui_state: UiState

    @property
    def searchable(self) -> Searchable[Any]: ...

    def search(self, text: str) -> None:
        """Search for a query, by default with ``ListFilter.search``."""

    def show_found(self) -> None: ...


class ListFilter(Vertical):
    """The filter of a screen, hidden until it is opened, and its note."""

    DEFAULT_CSS = """
    ListFilter {
        height: auto;
        #filter { display: none; height: 1; border: none; padding: 0 1; background: $surface-lighten-1; }
        &.-open #filter { display: block; }
        #filter-note { display: none; height: 3; padding: 0 1; }
    }
    """

    _input: FilterInput

    def __init__(self, host: FilteredScreen) -> None:
        super().__init__()
        self._host = host
        self.kept = host.ui_state.filters.get(host.list_key, "") if host.keeps_filter else ""
        self._error: QueryError | None = None
        self._note = StaticLines(self._note_lines, id="filter-note")
        self.set_class(bool(self.kept), "-open")

    def compose(self) -> ComposeResult:
        # not earlier: a text in a field needs a screen, and the app's first one is still being made
        hint = keymap_of(self.app).expand(f"{self._host.FILTER_HINT} · in the list, {{queries.open}}: saved queries")
        self._input = FilterInput(self.kept, hint, self._complete, self._recall)
        yield self._input
        yield self._note

    @property
    def text(self) -> str:
        return self._input.value

    @text.setter
    def text(self, text: str) -> None:
        self.set_class(bool(text), "-open")
        self._input.value = text

    def open(self) -> None:
        self.add_class("-open")
        self.screen.set_focus(self._input)

    def clear(self) -> None:
        self._input.action_clear()

    def search(self, text: str) -> None:
        """Show only what matches a query; one with an error changes nothing."""
        found, host = self._host.searchable, self._host
        if text.strip() == found.query_text:
            self.show_error(None)
            return
        self.show_error(found.search(text))
        if self._error is None:
            if host.keeps_filter:
                host.ui_state.set_filter(host.list_key, text.strip())
            host.show_found()

    def open_saved(self) -> None:

        def closed(query: str | None) -> None:
            if query:
                self.text = query

        query = self.text.strip() if self._error is None else ""
        self.app.push_screen(SavedQueries(self._host.ui_state, self._host.list_key, query), closed)

    def show_error(self, error: QueryError | None) -> None:
        self._error = error
        self._input.mark(error)
        self._show_note()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        if event.value == event.input.value:  # only the last of several queued keystrokes counts
            self._host.search(event.value)

    @on(FilterInput.Closed)
    def _left(self, event: FilterInput.Closed) -> None:
        """Hide a filter without a query; remember a valid query. After Enter, one with an error is corrected first."""
        self.set_class(not event.cleared, "-open")
        if event.cleared:
            return
        if self._error is None:
            self._host.ui_state.remember_query(self._host.list_key, self.text.strip())
        elif event.taken:
            self._input.correct(self._error)

    def _recall(self) -> Sequence[str]:
        return self._host.ui_state.queries.get(self._host.list_key, ())

    def _complete(self, text: str) -> Completion:
        found = self._host.searchable
        return complete(text, found.query_fields, found.values_of)

    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    def _show_note(self) -> None:
        self._note.display = self._input.has_focus or self._error is not None
        if self._note.display:
            self._note.show()

    def _note_lines(self, width: int) -> Sequence[Line]:
        return query_note(self._error, self._complete(self.text) if self._input.has_focus else None, width)


class SavedQueries(DialogScreen[str]):
    """A dialog with the saved queries of a list, of which it returns one; a name saves ``query`` unless that is ""."""

    SCOPE = "saved"
    AUTO_FOCUS = "#words"

    def __init__(self, ui_state: UiState, list_key: str, query: str) -> None:
        super().__init__()
        self._ui_state, self._list_key, self._query = ui_state, list_key, query
        self._saved = list(ui_state.saved_queries.get(list_key, {}).items())

    def compose(self) -> ComposeResult:
        lines = [[Cell(f"{name[:_NAME_WIDTH]:<{_NAME_WIDTH + 1}}", "accent"), Cell(each)] for name, each in self._saved]
        with DialogFrame("Saved queries", keys="{field.submit} saves or opens · {saved.close} closes"):
            yield SearchInput(placeholder="a name", id="words", compact=True, max_length=MAX_NAME_CHARS)
            yield StaticLines(self._about, id="note")
            yield LineList(FixedLines(lines), id="queries")

    def on_mount(self) -> None:
        if self._saved and not self._query:
            self.set_focus(self.query_one("#queries"))

    @on(Input.Submitted)
    def _named(self, event: Input.Submitted) -> None:
        if self.accepts_keys and (name := event.value.strip()):
            self._ui_state.save_query(self._list_key, name, self._query)
            self.leave()

    @on(LineList.Selected)
    def _chosen(self, event: LineList.Selected) -> None:
        if self._saved:
            self.leave(self._saved[event.index][1])

    def _about(self, width: int) -> list[Line]:
        about = f"a name saves {self._query}" if self._query else "without a filter, a name removes its saved query"
        return [[Cell(row, "dim")] for row in wrap_text(about, width, 1)]


READ_INTERVAL_S: Final = 1.0
READ_WHILE_FILLING_S: Final = 0.1
"""Seconds between two reads of a library, at least ten times as long as a read, and while it is still being filled."""


def listed(listing: Listing[Row], *, id: str = "results", can_sort: bool = True) -> tuple[FilteredList[Row], Table]:
    rows = listing.rows()
    return rows, Table(listing.columns, ListingRows(listing, rows), can_sort=can_sort, id=id)


class ListScreen(SessionScreen, Generic[Row]):
    """A table of rows, with a filter if there is a hint for one. Enter and a double click open the selected row.

    What comes from the library is read outside the event loop, and again when episodes have ended.
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
        self.list_key, self.rows, self.table = list_key, rows, table
        table.handles_enter = False  # so that the key bar shows the screen's command for Enter
        self.failure = ""  # why the library cannot be read
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
        yield StaticLines(self.status_lines, id="status")
        yield StaticLines(self.heading_lines, id="summary")
        if self.FILTER_HINT:
            yield self.filter
        yield self.table
        yield StaticLines(self.nothing_lines, id="nothing")
        yield StaticLines(self.detail_lines, id="detail")
        yield KeyBar(self.SCOPE, self.session)

    def heading_lines(self, width: int) -> Sequence[Line]:
        raise NotImplementedError

    def nothing_lines(self, width: int) -> Sequence[Line]:
        return [[Cell(self.NOTHING[not self.rows.query], "head")]]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return []

    def cursor_moved(self) -> None:
        self.show_lines("detail")

    @property
    def selected(self) -> Row | None:
        return self.rows.get(self.table.key)

    def selected_env(self) -> str:
        return getattr(self.selected, "env", "")

    @property
    def searchable(self) -> FilteredList[Row]:
        return self.rows

    def query_fields(self) -> list[Field]:
        return list(self.rows.query_fields.values()) if self.FILTER_HINT else []

    def search(self, text: str) -> None:
        self.filter.search(text)

    def show_found(self) -> None:
        self.table.fit_again()
        self.show_rows()
        self.table.move_to(0)

    def action_filter(self) -> None:
        self.filter.open()

    def action_clear(self) -> None:
        self.filter.clear()

    def action_queries(self) -> None:
        self.filter.open_saved()

    def action_back(self) -> None:
        if self.rows.query:
            self.action_clear()
        elif self.is_current:
            self.dismiss()

    def draw(self, store: RunStore) -> None:
        self.show_texts()
        self.read_changes()

    def show_rows(self) -> None:
        self.table.refresh_lines()
        self.show_texts()

    def show_texts(self) -> None:
        self.set_class(not len(self.table.source) and not self.is_filling, "-empty")
        self.set_class(bool(self.failure_line), "-failed")
        self.show_lines("summary", "nothing", "detail", "status")

    @property
    def clear_key(self) -> str:
        return keymap_of(self.app).key("filter.clear")

    @property
    def reading_state(self) -> str:
        return reading_progress(self.session.store.read_progress) if self.is_filling else ""

    @property
    def failure_line(self) -> Line:
        """Why the library cannot be read, or how many files of it."""
        if self.failure:
            return [Cell(self.failure, "bad")]
        return unreadable_line(self.session.library.unreadable if self.library and self.session.library else ())

    @on(LineList.CursorMoved)
    def _cursor_moved(self, event: LineList.CursorMoved) -> None:
        if event.view is self.table:
            self.cursor_moved()

    @on(LineList.Selected)
    def _open_selected(self, event: LineList.Selected) -> None:
        if event.view is self.table and self.accepts_keys:
            self.action_open()

    def action_open(self) -> None:
        """Open what the selected row stands for."""

    @on(Table.Sorted)
    def _sorted(self, event: Table.Sorted) -> None:
        self.ui_state.set_sorting(self.list_key, event.sorting)
        self.rows.sort(event.sorting)
        self.show_rows()

    @property
    def library(self) -> ResultLibrary | None:
        return self.session.library or self.session.received if self.READS_LIBRARY else None

    async def read(self, library: ResultLibrary) -> None:
        """Read the library in a thread and keep what was read; raises ``StoreError``."""

    def show_read(self, *, first: bool) -> None:
        self.show_rows()

    def read_changes(self) -> None:
        """Read the library in the background, unless no episode has ended since the last read."""
        if self.library is not None and self._n_read != self.session.store.n_ended and not self._reading:
            self._reading = True
            start_worker(self, self._read, group="read")

    def action_reload(self) -> None:
        """Read the library at once, even if no episode has ended; a running read is followed by another one."""
        self._n_read = None
        self._wake.set()
        self.read_changes()

    @property
    def is_filling(self) -> bool:
        """Whether the library was not read yet, or is still being filled."""
        is_being_filled = self.session.store.link in (BusLink(), READING_FILES)
        return self.library is not None and (is_being_filled or not self._has_read)

    async def _read(self) -> None:
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
