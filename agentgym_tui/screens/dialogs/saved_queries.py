"""The dialog in which queries of a list are saved under a name and opened again."""

from __future__ import annotations

from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from agentgym_tui.config.ui_state import MAX_NAME_CHARS, UiState
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines

_NAME_WIDTH: Final = 20


class SavedQueries(DialogScreen[str]):
    """A dialog with the saved queries of a list; its result is the query that the user has opened.

    Args:
        ui_state: holds the queries; updated in place.
        list_key: name of the list in the UI state.
        query: the query that a name saves; "" without one.
    """

    SCOPE = "saved"
    AUTO_FOCUS = "#words"

    def __init__(self, ui_state: UiState, list_key: str, query: str) -> None:
        super().__init__()
        self._ui_state, self._list_key, self._query = ui_state, list_key, query
        self._saved = list(ui_state.saved_queries.get(list_key, {}).items())

    def compose(self) -> ComposeResult:
        with DialogFrame("Saved queries", keys="{field.submit} saves or opens · {saved.close} closes"):
            yield SearchInput(placeholder="a name", id="words", compact=True, max_length=MAX_NAME_CHARS)
            yield StaticLines(self._about, id="note")
            yield LineList(FixedLines([_line(name, query) for name, query in self._saved]), id="queries")

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


def _line(name: str, query: str) -> Line:
    shown = f"{name[:_NAME_WIDTH]:<{_NAME_WIDTH + 1}}"
    return [Cell(shown, "accent"), Cell(query)]
