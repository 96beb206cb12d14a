"""Base of the screens with a filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Line
from agentgym_tui.screens.base import ScreenContext, SessionScreen
from agentgym_tui.textual_compat import add_bindings

if TYPE_CHECKING:
    from textual.widget import Widget
    from textual.widgets import Input

    from agentgym_tui.state.query import Completion, Searchable
    from agentgym_tui.widgets.query_input import FilterInput, FilterNote
    from runner.query.fields import Field
    from runner.query.syntax import QueryError


class FilteredScreen(SessionScreen):
    """A list with a filter above it; the heading has the id ``summary``, the text of an empty list ``nothing``.

    Attributes:
        list_key: name of the list in the UI state.
    """

    FILTER_HINT: ClassVar[str]
    """Placeholder of the filter."""

    KEEPS_FILTER: ClassVar[bool] = True
    """Whether the filter is kept in the UI state."""

    list_key: str
    _filter: FilterInput
    _note: FilterNote
    _error: QueryError | None = None

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        add_bindings(self, bindings("queries"))

    @property
    def searchable(self) -> Searchable[Any]:
        """The list that the filter searches."""
        raise NotImplementedError

    def heading_lines(self, width: int) -> Sequence[Line]:
        """Return the lines above the list."""
        raise NotImplementedError

    def nothing_lines(self, width: int) -> Sequence[Line]:
        """Return the lines that replace an empty list."""
        raise NotImplementedError

    def show_found(self) -> None:
        """Show the rows that match the filter."""
        raise NotImplementedError

    @property
    def kept_filter(self) -> str:
        """The filter of this list in the UI state; "" if there is none or none is kept."""
        return self.ui_state.filters.get(self.list_key, "") if self.KEEPS_FILTER else ""

    def make_filter(self, text: str) -> Sequence[Widget]:
        """Return the filter, which contains a query, and its note."""
        from agentgym_tui.widgets.query_input import FilterInput, FilterNote

        self.set_class(bool(text), "-filtering")
        self._filter = FilterInput(text, self.FILTER_HINT, self._complete, self._recall)
        self._note = FilterNote(self._note_lines, id="filter-note")
        return self._filter, self._note

    def set_filter(self, text: str) -> None:
        """Replace the query in the filter; an empty one hides it."""
        self.set_class(bool(text), "-filtering")
        self._filter.value = text

    def search(self, text: str) -> None:
        """Show only the rows that match a query; one with an error leaves the rows as they are."""
        found = self.searchable
        if text.strip() == found.query_text:
            self._show_error(None)
            return
        self._show_error(found.search(text))
        if self._error is None:
            if self.KEEPS_FILTER:
                self.ui_state.set_filter(self.list_key, text.strip())
            self.show_found()

    def action_filter(self) -> None:
        """Open the filter."""
        self.add_class("-filtering")
        self.set_focus(self._filter)

    def action_clear(self) -> None:
        """Clear the filter and show all lines."""
        self._filter.action_clear()

    def action_queries(self) -> None:
        """Open a saved query of this list, or save the query in the filter."""
        from agentgym_tui.screens.dialogs.saved_queries import SavedQueries

        def closed(query: str | None) -> None:
            if query:
                self.set_filter(query)

        query = self._filter.value.strip() if self._error is None else ""
        self.app.push_screen(SavedQueries(self.ui_state, self.list_key, query), closed)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search for the new query. ``@on`` is not possible because the log screen imports the inputs late."""
        # only the last of several queued keystrokes counts
        if event.input.id == "filter" and self.is_ready and event.value == event.input.value:
            self.search(event.value)

    def on_filter_input_closed(self, event: FilterInput.Closed) -> None:
        """Hide a filter without a query; remember a valid query. After Enter, one with an error is corrected first."""
        self.set_class(not event.cleared, "-filtering")
        if event.cleared:
            return
        if self._error is None:
            self.ui_state.remember_query(self.list_key, self._filter.value.strip())
        elif event.taken:
            self._filter.correct(self._error)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show what the query may become while the filter has the focus."""
        self._show_note()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Hide the note unless the query has an error."""
        self._show_note()

    def query_fields(self) -> list[Field]:
        return list(self.searchable.query_fields.values())

    def show_texts(self) -> None:
        """Redraw the heading and the text that replaces an empty list."""
        self.show_lines("summary", "nothing")

    def _recall(self) -> Sequence[str]:
        return self.ui_state.queries.get(self.list_key, ())

    def _complete(self, text: str) -> Completion:
        from agentgym_tui.state.query import complete

        found = self.searchable
        return complete(text, found.query_fields, found.values_of)

    def _show_error(self, error: QueryError | None) -> None:
        self._error = error
        self._filter.mark(error)
        self._show_note()

    def _show_note(self) -> None:
        if self.is_ready:
            self._note.display = self.focused is self._filter or self._error is not None
            if self._note.display:
                self._note.show()

    def _note_lines(self, width: int) -> Sequence[Line]:
        from agentgym_tui.presenters.query_note import query_note

        completion = self._complete(self._filter.value) if self.focused is self._filter else None
        return query_note(self._error, completion, width)
