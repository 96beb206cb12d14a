"""How lines are drawn: only those in view are asked for, in the colours of their tones, and wide ones move sideways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, get_args

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

from agentgym_tui.clean import own
from agentgym_tui.views.cells import Cell, Line, Source, Tone
from agentgym_tui.views.widths import cells

SIDEWAYS = 8
"""Columns that one key press moves a wide line."""

_TONES: Final = get_args(Tone)
_PARTS: Final = {tone: f"line-view--{tone}" for tone in _TONES}
"""The component classes of the tones."""

EDGES: Final = 2
"""Columns left of a line, where the cursor's mark is, and right of it, before the scroll bar."""


class NoLines:
    """A list with nothing in it."""

    def __len__(self) -> int:
        """None."""
        return 0

    def line(self, index: int, width: int) -> Line:
        """Never asked for."""
        return [Cell(own(""))]

    def key(self, index: int) -> str:
        """Never asked for."""
        return ""


class DrawnLines(ScrollView, inherit_bindings=False):
    """The visible lines of a ``Source``."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"line-view--cursor", *_PARTS.values()}
    DEFAULT_CSS = """
    DrawnLines { overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    """
    N_HEADER: ClassVar[int] = 0
    """Lines above the list that do not scroll."""

    def __init__(self, source: Source | None, *, name: str | None, id: str | None, classes: str | None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.source: Source = NoLines() if source is None else source
        self._left = self._top = 0
        self._width = EDGES

    def is_marked(self, index: int) -> bool:
        """Whether a line is drawn as the one of the cursor."""
        return False

    def mark(self, index: int) -> str:
        """What stands left of a line, a column wide."""
        return "▸" if self.is_marked(index) else " "

    def pieces(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """The texts of a line and their tones."""
        return self.source.line(index, width)

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The texts above the list, when ``N_HEADER`` says that there is such a line."""
        return ()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Look up once what all lines of a drawing need."""
        self._width, self._top = max(self.scrollable_content_region.width, EDGES), self.scroll_offset.y
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """One row of the widget."""
        width = self._width - EDGES
        if y < self.N_HEADER:
            return self._strip(self.header(width), " ", False)
        index = self._top + y - self.N_HEADER
        if index >= len(self.source):
            return Strip.blank(self._width, self.get_component_rich_style(_PARTS["plain"]))
        return self._strip(self.pieces(index, width), self.mark(index), self.is_marked(index))

    def _strip(self, pieces: Iterable[tuple[str, Tone]], mark: str, marked: bool) -> Strip:
        segments = [Segment(text, self._style(tone, marked)) for text, tone in pieces if text]
        room, used = self._width - EDGES, sum(cells(segment.text) for segment in segments)
        blank = self._style("plain", marked)
        if self._left or used > room:
            segments = [*Strip(segments, used).crop_extend(self._left, self._left + room, blank)]
            used = room
        rest = Segment(" " * (room - used + 1), blank)
        return Strip([Segment(mark, self._style("accent", marked)), *segments, rest], self._width)

    def _style(self, tone: Tone, marked: bool) -> Style:
        style = self.get_component_rich_style(_PARTS[tone])
        return style + self.get_component_rich_style("line-view--cursor", partial=True) if marked else style

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """With shift, the wheel goes sideways."""
        if event.shift:
            self.action_right()
            event.stop().prevent_default()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """With shift, the wheel goes sideways."""
        if event.shift:
            self.action_left()
            event.stop().prevent_default()

    def action_left(self) -> None:
        """The part of wide lines further left."""
        self._left = max(self._left - SIDEWAYS, 0)
        self.refresh()

    def action_right(self) -> None:
        """The part of wide lines further right, as far as a visible line goes."""
        if self._widest() > self._left + self._width - EDGES:
            self._left += SIDEWAYS
            self.refresh()

    def _page(self) -> int:
        return max(self.scrollable_content_region.height - self.N_HEADER, 1)

    def _scroll(self, y: int) -> None:
        self.scroll_to(y=y, animate=False, force=True)

    def _in_view(self) -> range:
        return range(self._top, min(self._top + self._page(), len(self.source)))

    def _widest(self) -> int:
        width = self._width - EDGES
        return max((sum(cells(text) for text, _ in self.pieces(row, width)) for row in self._in_view()), default=0)
