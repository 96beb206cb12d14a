"""The texts of lines, and a line list in an app of its own with its messages and drawn rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from textual.app import App, ComposeResult
from textual.pilot import Pilot

import agentgym_tui
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.widgets.lists import TONE_CLASSES, LineList

STYLES = Path(agentgym_tui.__file__).parent / "styles.tcss"
SIZE = (40, 10)


class NamedRows:
    """Rows that are their own keys."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    def line(self, index: int, width: int) -> Line:
        return [Cell(self.names[index]), Cell(f"second {index}", "bad")]

    def key(self, index: int) -> str:
        return self.names[index]


def numbered_rows(n: int) -> NamedRows:
    return NamedRows([f"line {number}" for number in range(n)])


class ListApp(App[None]):
    """An app with one list, which records the list's messages."""

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
async def list_pilot(view: LineList, size: tuple[int, int] = SIZE) -> AsyncIterator[tuple[ListApp, Pilot[None]]]:
    app = ListApp(view)
    async with app.run_test(size=size) as pilot:
        view.focus()
        await pilot.pause()
        yield app, pilot


def line_text(line: Line) -> str:
    return "".join(cell.text for cell in line)


def line_texts(lines: Iterable[Line]) -> list[str]:
    return [line_text(line) for line in lines]


def visible_rows(view: LineList) -> list[str]:
    """Return the drawn rows without the edge columns."""
    return [strip.text[1:].rstrip() for strip in view.render_lines(view.size.region)]


def scroll_top(view: LineList) -> int:
    return view.scroll_offset.y
