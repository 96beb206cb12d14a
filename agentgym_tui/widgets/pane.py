"""The lines around a screen's lists: the title of a pane, and the keys that can be pressed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from agentgym_tui.commands.keymap import COMMANDS, Command, Keys, Place, keys_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.text_width import cells
from agentgym_tui.safe_text import own
from agentgym_tui.widgets.line_list import LineView
from agentgym_tui.widgets.static_lines import Heading, Lines, MadeLines

LEAST: Final = ("app.help", "app.quit")
"""What is shown however narrow it is."""

PALETTE: Final = "app.palette"

_GAP: Final = "  "


class News(Heading):
    """A heading that is drawn again only when it says something else."""

    def show(self, make: Lines) -> None:
        """Show other lines."""
        self.source = MadeLines(make)
        self.refresh_changed()


class PaneTitle(News):
    """The line above a list; a bar at its left end says that the keys go there."""

    def mark(self, index: int) -> str:
        """The bar."""
        return "▌" if isinstance(self.parent, Pane) and self.parent.has_class("-focused") else " "


class Pane(Vertical):
    """A list under a title.

    Args:
        view: the list.
        id: of the pane.
    """

    DEFAULT_CSS = """
    Pane > LineView { height: 1fr; }
    """
    BLANK = True  # all of it is covered, and the framework draws also what is behind

    def __init__(self, view: LineView, *, id: str) -> None:
        super().__init__(id=id)
        self._view = view
        self._title = PaneTitle()

    def compose(self) -> ComposeResult:
        """Title and list."""
        yield self._title
        yield self._view

    def title(self, make: Lines) -> None:
        """Set the title."""
        self._title.show(make)

    def on_descendant_focus(self) -> None:
        """Mark it."""
        self.add_class("-focused")
        self._title.refresh()

    def on_descendant_blur(self) -> None:
        """Take the mark away."""
        self.remove_class("-focused")
        self._title.refresh()


class _Key(NamedTuple):
    command: Command
    key: str

    @property
    def width(self) -> int:
        return cells(self.key) + 1 + cells(self.command.title)


class KeyLine(Heading):
    """What can be pressed; a click does the same. What has no room is in the help.

    Args:
        place: whose commands come first, at the left; at the right those that work everywhere.
        without: ids of commands that are of no use here.
    """

    def __init__(self, place: Place, *, without: Collection[str] = ()) -> None:
        super().__init__(self._line)
        self._place, self._without = place, without
        self._here: list[_Key] = []
        self._everywhere: list[_Key] = []

    def on_mount(self) -> None:
        """Learn which keys hold."""
        keys = keys_of(self.app)
        self._here = [key for key in _keys(self._place, keys) if key.command.id not in self._without]
        without = {*self._without, f"app.{self._place}"}  # nobody goes where one is
        self._everywhere = [key for key in _keys("everywhere", keys) if key.command.id not in without]
        self.refresh()

    async def on_click(self, event: events.Click) -> None:
        """Do what is under the pointer."""
        for start, key in self._places(max(self.size.width - 2, 0)):
            if start <= event.x - 1 < start + key.width:
                await self.app.run_action(
                    key.command.action, self.app if key.command.place == "everywhere" else self.screen
                )

    def _line(self, width: int) -> Sequence[Line]:
        line: list[Cell] = []
        at = 0
        for start, key in self._places(width):
            name = Cell(own(f" {key.command.title}"), "dim")
            line += [Cell(own(" " * (start - at))), Cell(own(key.key), "accent"), name]
            at = start + key.width
        return [line]

    def _places(self, width: int) -> Iterator[tuple[int, _Key]]:
        """Where each key stands: the screen's at the left, help and quit at the right, more if there is room.

        Other screens come before the palette, which finds them all.
        """
        least = [key for key in self._everywhere if key.command.id in LEAST]
        here = _fitting(self._here, width - _width(least) - 2 * len(_GAP))
        room = width - _width(here) - 2 * len(_GAP)
        ranked = sorted(self._everywhere, key=lambda key: key.command.id == PALETTE)
        more = {key.command.id for key in _fitting([*least, *ranked], room)}
        right = [key for key in self._everywhere if key.command.id in more]
        yield from _row(here, 0)
        yield from _row(right, width - _width(right))


def _keys(place: Place, keys: Keys) -> Iterator[_Key]:
    for command in COMMANDS:
        if command.place == place and command.footer:
            yield _Key(command, keys.shown(command)[0])


def _fitting(keys: Sequence[_Key], width: int) -> list[_Key]:
    kept: list[_Key] = []
    for key in keys:
        if key not in kept and _width([*kept, key]) <= width:
            kept.append(key)
    return kept


def _row(keys: Sequence[_Key], start: int) -> Iterator[tuple[int, _Key]]:
    for key in keys:
        yield start, key
        start += key.width + len(_GAP)


def _width(keys: Sequence[_Key]) -> int:
    return sum(key.width for key in keys) + len(_GAP) * max(len(keys) - 1, 0)
