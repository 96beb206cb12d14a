"""Widgets whose text is generated for the available width: static lines and scrollable text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from textual.geometry import Size

from agentgym_tui.presenters.cells import FixedLines, Line, TextSource
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.line_renderer import LineRenderer

LineFactory: TypeAlias = Callable[[int], Sequence[Line]]
"""Makes the lines for a number of columns."""


class GeneratedLines(TextSource):
    """Lines that are generated again when the width changes."""

    def __init__(self, make_lines: LineFactory) -> None:
        self._make_lines = make_lines
        self._cached: tuple[int, Sequence[Line]] = (-1, ())

    def __len__(self) -> int:
        return 1 << 16  # missing lines read as empty

    def line(self, index: int, width: int) -> Line:
        if self._cached[0] != width:
            self._cached = width, self._make_lines(width)
        lines = self._cached[1]
        return lines[index] if index < len(lines) else ()


class StaticLines(LineRenderer, can_focus=False):
    """Lines of safe text that can neither be focused nor scrolled; lines that do not fit into the widget are hidden."""

    DEFAULT_CSS = """
    StaticLines { height: 1; overflow: hidden hidden; scrollbar-gutter: auto; }
    """

    def __init__(
        self, make_lines: LineFactory = lambda width: (), *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(GeneratedLines(make_lines), id=id, classes=classes)
        self._factory = make_lines

    def show(self, make_lines: LineFactory | None = None) -> None:
        """Show the lines that ``make_lines``, by default the last one, makes; only changed rows are repainted."""
        self._factory = make_lines or self._factory
        self.source = GeneratedLines(self._factory)
        self.refresh_changed()

    def on_hide(self) -> None:
        """Drop the drawn rows: without them, ``refresh_changed`` makes no lines until the widget is shown again."""
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1


class WrappedText(LineList):
    """A list without a cursor whose lines are generated again when the width changes.

    Args:
        make_lines: makes the lines for a width in columns.
    """

    def __init__(self, make_lines: LineFactory, *, id: str) -> None:
        super().__init__(cursor_type="none", id=id)
        self._make_lines = make_lines
        self._cached: Sequence[Line] = ()

    def set_lines(self, make_lines: LineFactory) -> None:
        """Show the lines that ``make_lines`` makes."""
        self._make_lines = make_lines
        self.on_resize()

    def on_resize(self) -> None:
        lines = self._make_lines(max(self.scrollable_content_region.width - LIST_MARGIN, 0))
        if lines != self._cached:
            self._cached = lines
            self.show(FixedLines(lines))
