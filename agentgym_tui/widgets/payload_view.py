"""All of the selected message of a bus, or line of a log, in one of some views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.payload import rows_of, text_of
from agentgym_tui.safe_text import own
from agentgym_tui.state.bus_message import LogEntry
from agentgym_tui.widgets.tab_bar import Tab, TabLine
from agentgym_tui.widgets.text_view import TextView


class PayloadView(Vertical):
    """All of one message.

    Args:
        views: the ways of looking at it, of those that there are.
        about: what is said of it in one of them, beside their names.
        command: goes to the next view.
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
        """The names of the views, and the text."""
        yield TabLine([Tab(name, own(name.capitalize()), self._command) for name in self._views], id="tabs")
        yield TextView(id="payload")

    def show(self, entry: LogEntry | None) -> None:
        """Show another one."""
        if entry is not self._entry:
            self._entry = entry
            self._fill()

    def next_view(self) -> None:
        """Another one of the views, after the last the first."""
        self.pick(self._views[(self._views.index(self._view) + 1) % len(self._views)])

    def pick(self, view: str) -> None:
        """One of the views."""
        self._view = view
        self.query_one(TabLine).pick(view)
        self._fill()

    def text(self) -> str:
        """What is shown, hostile as it came."""
        return text_of(self._entry, self._view)

    @on(TabLine.Picked)
    def _picked(self, event: TabLine.Picked) -> None:
        self.pick(event.tab)

    def _fill(self) -> None:
        view = self.query_one(TextView)
        view.show(rows_of(self._entry, self._view))
        view.move_to(0)
        self.query_one(TabLine).note(self._about(self._entry, self._view))
