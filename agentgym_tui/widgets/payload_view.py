"""Views of one payload: a long text, and a bus message or log line in several representations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.payload import TextRows, payload_rows, payload_text
from agentgym_tui.safe_text import unsafe_excerpt
from agentgym_tui.state.event_log import LogEntry
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.tab_bar import Tab, TabBar


class TextView(LineList):
    """Numbered lines of a long text, such as the JSON of an episode; each line is sanitized when it is drawn."""

    class TextShown(Message):
        """Another text is shown."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="none", id=id)

    def show_text(self, rows: TextRows) -> None:
        """Show an untrusted text."""
        self.show(rows)
        self.post_message(self.TextShown())

    def unsafe_text(self) -> str | None:
        rows = self.source
        if not isinstance(rows, TextRows):
            return None
        return next((unsafe_excerpt(text) for index in self._in_view() if (text := rows.unsafe_text(index))), None)


class PayloadView(Vertical):
    """The selected bus message or log line in one of several representations.

    Args:
        views: names of the representations, in tab order.
        about: makes the note beside the tabs from the shown message or line and the name of the representation.
        command: id of the command that shows the next representation.
    """

    def __init__(
        self, views: Sequence[str], about: Callable[[LogEntry | None, str], Line], *, command: str, id: str
    ) -> None:
        super().__init__(id=id)
        self._command = command
        self._about = about
        self._entry: LogEntry | None = None
        self._views = tuple(views)
        self._view = self._views[0]

    def compose(self) -> ComposeResult:
        yield TabBar([Tab(name, name.capitalize(), self._command) for name in self._views], id="tabs")
        yield TextView(id="payload")

    def show(self, entry: LogEntry | None) -> None:
        """Show a bus message or log line; None empties the view."""
        if entry is not self._entry:
            self._entry = entry
            self._fill()

    def mark(self, expression: re.Pattern[str] | None) -> None:
        """Mark what an expression finds in the text; None marks nothing."""
        self.query_one(TextView).found = expression

    def next_view(self) -> None:
        """Show the next representation; the first representation follows the last."""
        self.select_view(self._views[(self._views.index(self._view) + 1) % len(self._views)])

    def select_view(self, view: str) -> None:
        """Show the representation named ``view``."""
        self._view = view
        self.query_one(TabBar).select_tab(view)
        self._fill()

    def text(self) -> str:
        """Return the raw, untrusted text of the shown representation."""
        return payload_text(self._entry, self._view)

    @on(TabBar.TabSelected)
    def _tab_selected(self, event: TabBar.TabSelected) -> None:
        self.select_view(event.tab)

    def _fill(self) -> None:
        view = self.query_one(TextView)
        view.show(payload_rows(self._entry, self._view))
        view.move_to(0)
        self.query_one(TabBar).set_note(self._about(self._entry, self._view))
