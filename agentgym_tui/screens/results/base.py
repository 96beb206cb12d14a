"""Base of the screens of results: a table with a filter above it, and details of the selected row below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_rows import reading_progress, unreadable_line
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.library_screen import LibraryScreen
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.query import FilteredList, Row, Sorting
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from agentgym_tui.widgets.table import SortableTable


class ResultsTableScreen(LibraryScreen[ResultLibrary]):
    """A table computed from the library; a subclass fills ``table`` and describes the selected row.

    Attributes:
        table: the table, with the id ``results``.
    """

    REQUIRED_WIDGETS = "#summary, #nothing, #detail, #status, SortableTable"
    AUTO_FOCUS = "#results"

    table: SortableTable

    @property
    def is_empty(self) -> bool:
        return not len(self.table.source)

    @property
    def library(self) -> ResultLibrary | None:
        return self.session.library or self.session.received

    def detail_lines(self, width: int) -> Sequence[Line]:
        """Return the lines below the table."""
        raise NotImplementedError

    def sort(self, sorting: Sorting | None) -> None:
        """Sort the rows; the caller draws them."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield StaticLines(self.heading_lines, id="summary")
        yield from self.make_filter(self.kept_filter)
        yield self.table
        yield StaticLines(self.nothing_lines, id="nothing")
        yield StaticLines(self.detail_lines, id="detail")
        yield StaticLines(self.status_lines, id="status")
        yield KeyBar(self.SCOPE, self.session)

    def draw(self, store: RunStore) -> None:
        if self.is_ready:
            self.show_texts()
            self.read_changes()

    def show_read(self, *, first: bool) -> None:
        self.show_rows()

    def show_found(self) -> None:
        self.show_rows()
        self.table.move_to(0)

    def show_rows(self) -> None:
        """Draw the rows, and the texts around them."""
        self.table.refresh_lines()
        self.show_texts()

    def show_texts(self) -> None:
        self.set_class(self.is_empty and not self.is_filling, "-empty")
        self.set_class(bool(self.failure_line), "-failed")
        super().show_texts()
        self.show_lines("detail", "status")

    @property
    def reading_state(self) -> str:
        """How much of the library has been read; "" once it is complete."""
        return reading_progress(self.session.store.read_progress) if self.is_filling else ""

    @property
    def clear_key(self) -> str:
        """Label of the key that clears the filter."""
        return keymap_of(self.app).key("filter.clear")

    @property
    def failure_line(self) -> Line:
        """Why the library cannot be read, or how many files of it, whose episodes are missing here."""
        if self.failure:
            return [Cell(self.failure, "bad")]
        return unreadable_line(self.session.library.unreadable if self.session.library else ())

    @on(LineList.CursorMoved, "#results")
    def _cursor_moved(self) -> None:
        if self.is_ready:
            self.cursor_moved()

    def cursor_moved(self) -> None:
        """Describe the row under the cursor."""
        self.show_lines("detail")

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        if self.is_ready:
            self.ui_state.set_sorting(self.list_key, event.sorting)
            self.sort(event.sorting)
            self.show_rows()


class TaskTableScreen(ResultsTableScreen, Generic[Row]):
    """A table of tasks that is opened from the Results screen, and starts without a filter.

    Args:
        context: see ``ScreenContext``.
        tasks: the tasks, an empty list at first.
    """

    NO_MATCH: ClassVar = "No task matches the filter."
    NO_ROW: ClassVar = "No task has been played."
    """What replaces an empty table, with a filter and without one."""

    def __init__(self, context: ScreenContext, list_key: str, tasks: FilteredList[Row]) -> None:
        super().__init__(context)
        self.list_key, self.tasks = list_key, tasks
        tasks.sort(self.ui_state.sorting.get(list_key))

    def action_back(self) -> None:
        """Clear the filter; without one, go back."""
        if self.tasks.query:
            self.action_clear()
        else:
            self.dismiss()

    @property
    def searchable(self) -> FilteredList[Row]:
        return self.tasks

    def sort(self, sorting: Sorting | None) -> None:
        self.tasks.sort(sorting)

    def nothing_lines(self, width: int) -> list[Line]:
        return [[Cell(self.NO_MATCH if self.tasks.query else self.NO_ROW, "head")]]
