"""Views of one payload: a long text, a line of tabs, and a bus message or log line in several representations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.cells import Cell, Line, cut_line, display_width
from agentgym_tui.presenters.payload import TextRows, payload_rows, payload_text
from agentgym_tui.state.event_log import LogEntry
from agentgym_tui.widgets.lists import LineList, StaticLines

_GAP = "  "


class TextView(LineList):
    """Numbered lines of a long text, such as the JSON of an episode."""

    class TextShown(Message):
        """Another text is shown."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="none", id=id)

    def show_text(self, rows: TextRows) -> None:
        self.show(rows)
        self.post_message(self.TextShown())


class Tab(NamedTuple):
    id: str
    title: str
    command: str


class TabBar(StaticLines):
    """Tabs that can be clicked, the first selected at first; the screen handles the keys that select a tab."""

    @dataclass
    class TabSelected(Message):
        """A tab was clicked."""

        tab: str

    def __init__(self, tabs: Sequence[Tab], *, id: str | None = None) -> None:
        super().__init__(self._line, id=id)
        self._tabs, self._shown = tabs, tabs[0].id
        self._note: Line = ()

    def select_tab(self, tab: str) -> None:
        self._shown = tab
        self.show(self._line)

    def set_tabs(self, tabs: Sequence[Tab]) -> None:
        if tabs != self._tabs:
            self._tabs = tabs
            self.show(self._line)

    def set_note(self, note: Line) -> None:
        self._note = note
        self.show(self._line)

    def on_click(self, event: events.Click) -> None:
        column = event.x - 1
        for tab in self._tabs:
            width = display_width(self._label(tab))
            if 0 <= column < width:
                self.post_message(self.TabSelected(tab.id))
            column -= width + len(_GAP)

    def _line(self, width: int) -> Sequence[Line]:
        labels = [Cell(self._label(tab), "head" if tab.id == self._shown else "dim") for tab in self._tabs]
        return [cut_line([*(cell for label in labels for cell in (label, Cell(_GAP))), *self._note], width)]

    def _label(self, tab: Tab) -> str:
        return f"{'●' if tab.id == self._shown else '○'} {tab.title} {keymap_of(self.app).key(tab.command)}"


class PayloadView(Vertical):
    """The selected bus message or log line in one of several views; ``about`` makes the note beside the tabs."""

    def __init__(
        self, views: Sequence[str], about: Callable[[LogEntry | None, str], Line], *, command: str, id: str
    ) -> None:
        super().__init__(id=id)
        self._about, self._views, self._view = about, tuple(views), views[0]
        self._entry: LogEntry | None = None
        self._bar = TabBar([Tab(name, name.capitalize(), command) for name in views], id="tabs")
        self.lines = TextView(id="payload")

    def compose(self) -> ComposeResult:
        yield self._bar
        yield self.lines

    def show(self, entry: LogEntry | None) -> None:
        if entry != self._entry:
            self._entry = entry
            self._fill()

    def next_view(self) -> None:
        self._select_view(self._views[(self._views.index(self._view) + 1) % len(self._views)])

    def text(self) -> str:
        return payload_text(self._entry, self._view)

    @on(TabBar.TabSelected)
    def _tab_selected(self, event: TabBar.TabSelected) -> None:
        self._select_view(event.tab)

    def _select_view(self, view: str) -> None:
        self._view = view
        self._bar.select_tab(view)
        self._fill()

    def _fill(self) -> None:
        self.lines.show(payload_rows(self._entry, self._view))
        self.lines.move_to(0)
        self._bar.set_note(self._about(self._entry, self._view))
