"""A few lines above a list, made for the width there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from textual.geometry import Size

from agentgym_tui.presenters.cells import Line
from agentgym_tui.widgets.line_renderer import DrawnLines

Lines: TypeAlias = Callable[[int], Sequence[Line]]
"""Lines for a number of columns."""


class MadeLines:
    """Lines that are made again when the width is another."""

    def __init__(self, make: Lines) -> None:
        """Nothing is made yet."""
        self._make = make
        self._made: tuple[int, Sequence[Line]] = (-1, ())

    def __len__(self) -> int:
        """As many as one likes; those that are not there are empty."""
        return 1 << 16

    def line(self, index: int, width: int) -> Line:
        """A line, or an empty one."""
        if self._made[0] != width:
            self._made = width, self._make(width)
        lines = self._made[1]
        return lines[index] if index < len(lines) else ()

    def key(self, index: int) -> str:
        """Its number."""
        return str(index)


class Heading(DrawnLines, can_focus=False):
    """Lines of safe text that cannot be focused or scrolled; as many as the style has room for."""

    DEFAULT_CSS = """
    Heading { height: 1; overflow: hidden hidden; scrollbar-gutter: auto; }
    """

    def __init__(self, make: Lines | None = None, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(MadeLines(make or _nothing), name=None, id=id, classes=classes)

    def show(self, make: Lines) -> None:
        """Show other lines."""
        self.source = MadeLines(make)
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Not by its content: that would be endless."""
        return 1


def _nothing(width: int) -> Sequence[Line]:
    return ()
