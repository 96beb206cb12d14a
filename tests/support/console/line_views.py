"""A list in an app of its own, and what it draws and says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from textual.app import App, ComposeResult
from textual.pilot import Pilot

import agentgym_tui
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.line_renderer import TONE_CLASSES

STYLES = Path(agentgym_tui.__file__).parent / "styles" / "widgets.tcss"
SIZE = (40, 10)


class Names:
    """Lines that are their own keys."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    def line(self, index: int, width: int) -> Line:
        return [Cell(sanitize_line(self.names[index], 2_000)), Cell(sanitize_line(f"second {index}"), "bad")]

    def key(self, index: int) -> str:
        return self.names[index]


def numbered(n: int) -> Names:
    return Names([f"line {number}" for number in range(n)])


class Screenful(App[None]):
    """One list in the whole of the screen, and what it said."""

    CSS_PATH = STYLES
    COMPONENT_CLASSES = TONE_CLASSES

    def __init__(self, view: LineList) -> None:
        super().__init__()
        self.view = view
        self.moved: list[str] = []
        self.chosen: list[tuple[int, str]] = []
        self.followed: list[bool] = []

    def compose(self) -> ComposeResult:
        yield self.view

    def on_line_list_cursor_moved(self, event: LineList.CursorMoved) -> None:
        assert event.control is self.view
        self.moved.append(event.key)

    def on_line_list_selected(self, event: LineList.Selected) -> None:
        self.chosen.append((event.index, event.key))

    def on_line_list_follow_changed(self, event: LineList.FollowChanged) -> None:
        self.followed.append(event.following)


@asynccontextmanager
async def shown(view: LineList, size: tuple[int, int] = SIZE) -> AsyncIterator[tuple[Screenful, Pilot[None]]]:
    app = Screenful(view)
    async with app.run_test(size=size) as pilot:
        view.focus()
        await pilot.pause()
        yield app, pilot


def rows(view: LineList) -> list[str]:
    """What is drawn, without the columns at the edges."""
    region = view.size.region
    return [strip.text[1:].rstrip() for strip in view.render_lines(region)]


def top(view: LineList) -> int:
    return view.scroll_offset.y
