"""The filter of a list: its field, which marks errors, completes and recalls queries, its note, and saved queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from rich.highlighter import Highlighter
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from agentgym_tui.commands import bindings
from agentgym_tui.config import MAX_NAME_CHARS, UiState
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.listing import query_note
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.state.query import MAX_CHARS, Completion, Searchable, complete
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.lists import LineList, StaticLines

if TYPE_CHECKING:
    from rich.text import Text

    from runner.query.syntax import QueryError

ERROR_STYLE: Final = "bold underline"
_TYPED: Final = -1
_NAME_WIDTH: Final = 20


class ErrorMark(Highlighter):
    """Underlines the part of a query that is wrong."""

    error: QueryError | None = None

    def highlight(self, text: Text) -> None:
        if self.error is not None:
            text.stylize(ERROR_STYLE, self.error.start, self.error.end)


class QuerySuggester(Suggester):
    """Suggests the rest of a field or value."""

    def __init__(self, complete: Callable[[str], Completion]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        best = self._complete(value).best
        return best if best.casefold().startswith(value.casefold()) else None


class FilterInput(SearchInput):
    """The field of the query; ``recall`` returns the last queries, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filter")]

    @dataclass
    class Closed(Message):
        """The user has left the filter; ``cleared`` is True if it has no query, ``taken`` if Enter ended it."""

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
        """Mark an error in the query; None removes the mark."""
        self._mark.error = error
        self.refresh()

    def action_clear(self) -> None:
        """Clear the filter and leave it."""
        self.value = ""
        self._close(cleared=True)

    def action_leave(self) -> None:
        self._close(cleared=not self.value.strip(), taken=True)

    def action_complete(self) -> None:
        """Complete the field or value at the end; return to the list if nothing can be completed."""
        best = self._complete(self.value).best if self.cursor_at_end else ""
        if best:
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
    def searchable(self) -> Searchable[Any]:
        """The list that the filter searches."""

    def search(self, text: str) -> None:
        """Search for a query, by default with ``ListFilter.search``."""

    def show_found(self) -> None:
        """Show the rows that match the filter."""


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
        self._input = FilterInput(self.kept, self._host.FILTER_HINT, self._complete, self._recall)
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
        """Show only the rows that match a query; one with an error leaves the rows as they are."""
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
        """Open a saved query of this list, or save the query in the filter."""

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

    def on_descendant_focus(self) -> None:
        """Show what the query may become while the filter has the focus."""
        self._show_note()

    def on_descendant_blur(self) -> None:
        """Hide the note unless the query has an error."""
        self._show_note()

    def _recall(self) -> Sequence[str]:
        return self._host.ui_state.queries.get(self._host.list_key, ())

    def _complete(self, text: str) -> Completion:
        found = self._host.searchable
        return complete(text, found.query_fields, found.values_of)

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
        """Without a filter to save, start in the list."""
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
