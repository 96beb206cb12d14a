"""A line of tabs; the content of the selected tab is shown below the line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from textual import events
from textual.message import Message

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.presenters.cells import Cell, Line, cut_line
from agentgym_tui.presenters.text_width import display_width
from agentgym_tui.widgets.static_lines import StaticLines

_GAP = "  "


class Tab(NamedTuple):
    """A tab's id and title, and the command whose key selects it."""

    id: str
    title: str
    command: str


class TabBar(StaticLines):
    """Tabs that can be clicked; the screen handles the keys that select a tab.

    Args:
        tabs: the tabs from left to right; the first tab is selected at first.
    """

    @dataclass
    class TabSelected(Message):
        """A tab was clicked."""

        tab: str

    def __init__(self, tabs: Sequence[Tab], *, id: str | None = None) -> None:
        super().__init__(self._line, id=id)
        self._tabs = tabs
        self._shown = tabs[0].id
        self._note: Line = ()

    def select_tab(self, tab: str) -> None:
        """Mark the tab with id ``tab`` as selected."""
        self._shown = tab
        self.show(self._line)

    def set_tabs(self, tabs: Sequence[Tab]) -> None:
        """Replace the tabs; the selected tab must be among them."""
        if tabs != self._tabs:
            self._tabs = tabs
            self.show(self._line)

    def set_note(self, note: Line) -> None:
        """Set the text to the right of the tabs."""
        self._note = note
        self.show(self._line)

    def on_click(self, event: events.Click) -> None:
        """Post ``TabSelected`` for the tab under the pointer."""
        column = event.x - 1
        for tab in self._tabs:
            width = display_width(self._label(tab, False))
            if 0 <= column < width:
                self.post_message(self.TabSelected(tab.id))
            column -= width + len(_GAP)

    def _line(self, width: int) -> Sequence[Line]:
        names = [cell for tab in self._tabs for cell in self._cells(tab)]
        return [cut_line([*names, *self._note], width)]

    def _cells(self, tab: Tab) -> list[Cell]:
        shown = tab.id == self._shown
        return [Cell(self._label(tab, shown), "head" if shown else "dim"), Cell(_GAP)]

    def _label(self, tab: Tab, shown: bool) -> str:
        return f"{('● ' if shown else '○ ')}{tab.title} {keymap_of(self.app).key(tab.command)}"
