"""How lines are drawn: only those in view are asked for, in the colours of their tones, and wide ones move sideways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, Self

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from agentgym_tui.presenters.cells import FixedLines, Source, Tone
from agentgym_tui.presenters.text_width import EDGES, cells
from agentgym_tui.widgets.cached_widgets import Bar
from agentgym_tui.widgets.theme_styles import cursor_style, tone_style

SIDEWAYS = 8
"""Columns that one key press moves a wide line."""

MANY: Final = 50
"""Rows that are known beside those on the screen, so that those that move are not made again."""


class DrawnLines(ScrollView, inherit_bindings=False):
    """The visible lines of a ``Source``."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    DrawnLines { overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    """
    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    N_HEADER: ClassVar[int] = 0
    """Lines above the list that do not scroll."""

    def __init__(self, source: Source | None, *, name: str | None, id: str | None, classes: str | None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.source: Source = FixedLines(()) if source is None else source
        self._left = self._top = 0
        self._width = EDGES
        self._inside = Size(0, 0)
        self._measured: tuple[Size, bool] | None = None
        self._room: tuple[int, ...] = ()
        self._on_screen: dict[int, Strip] = {}
        self._ready: tuple[Region, list[Strip]] | None = None
        self._drawn: dict[tuple[object, ...], Strip] = {}
        self._behind: Color | None = None
        self._colours: dict[tuple[Tone, bool], Style] = {}

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The framework's own would take longer to draw than the lines."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = Bar(thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

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

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Draw again some rows, or all of it, also in other colours."""
        if repaint and regions:
            self._ready = None
            for region in regions:
                for row in region.line_range:
                    self._on_screen.pop(row, None)
        elif repaint:
            self._forget_drawn()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        """The colours may be others."""
        self._forget_drawn()
        super().notify_style_update()

    def grow_to(self, height: int) -> None:
        """So many lines there are now, the header among them; only a scroll bar that comes moves other things.

        That is known here alone: for the framework each line that is added would be a reason to arrange all anew. So
        would be a scroll bar that goes: it stays until the list gets another size.
        """
        if height == self.virtual_size.height:
            return
        self.virtual_size = Size(1, height)
        needed = 0 < self.scrollable_content_region.height < height  # without room yet nobody knows
        if self.styles.overflow_y == "auto" and (needed or self.show_vertical_scrollbar):
            self.styles.overflow_y = "scroll"
        if self.styles.overflow_y == "scroll":
            self.vertical_scrollbar.window_virtual_size = height
        if self.scroll_offset.y > self.max_scroll_y:
            self._scroll(self.max_scroll_y)

    def on_resize(self) -> None:
        """Let a scroll bar go that shows nothing any more: now all is arranged anyway."""
        if self.styles.overflow_y == "scroll" and self.virtual_size.height <= self.scrollable_content_region.height:
            self.styles.overflow_y = "auto"

    def refresh_changed(self) -> None:
        """Draw again only the rows that say something else than those that are on the screen."""
        if self._look_at_room() or not self._on_screen:
            self.refresh(self._inside.region)
            return
        changed = [row for row, strip in self._on_screen.items() if self.render_line(row) is not strip]
        if changed:
            self.refresh(*(Region(0, row, self._inside.width, 1) for row in changed))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The visible lines; where nothing is around them, those that are as before are not made again."""
        self._look_at_room()
        if self.styles.gutter:
            return super().render_lines(crop)
        if self._ready is None or self._ready[0] != crop:
            self._ready = crop, self._draw_rows(crop)
        return self._ready[1]

    def render_line(self, y: int) -> Strip:
        """One row of the widget; what says the same is the same object."""
        width, index = self._width - EDGES, self._top + y - self.N_HEADER
        if y >= self.N_HEADER and index >= len(self.source):
            return self._blank()
        if y < self.N_HEADER:
            pieces, mark, marked = tuple(self.header(width)), " ", False
        else:
            pieces, mark, marked = tuple(self.pieces(index, width)), self.mark(index), self.is_marked(index)
        if (made := self._drawn.get((pieces, mark, marked))) is None:
            if len(self._drawn) >= len(self._on_screen) + MANY:
                shown = set(map(id, self._on_screen.values()))
                self._drawn = {said: strip for said, strip in self._drawn.items() if id(strip) in shown}
            made = self._drawn[(pieces, mark, marked)] = self._strip(pieces, mark, marked)
        return made

    def _draw_rows(self, crop: Region) -> list[Strip]:
        found = ((row, self._on_screen.get(row)) for row in crop.line_range)
        strips = [self._draw_row(row) if strip is None else strip for row, strip in found]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, self._background()) for strip in strips]
        start, stop = crop.column_span
        return strips if (start, stop) == (0, self._room[3]) else [strip.crop(start, stop) for strip in strips]

    def _draw_row(self, row: int) -> Strip:
        strip = self._on_screen[row] = self.render_line(row)
        return strip

    def _look_at_room(self) -> bool:
        """Look up once what all rows of a drawing need; whether it is something else than the last time."""
        measured = self.outer_size, self.show_vertical_scrollbar
        if measured != self._measured:  # what follows from these takes the framework long
            self._measured, edges = measured, self.styles.gutter
            self._inside = Size(max(measured[0].width - edges.width, 0), max(measured[0].height - edges.height, 0))
            self._width = max(measured[0].width - self.gutter.width, EDGES)
        self._top, before = self.scroll_offset.y, self._room
        self._room = (self._width, self._top, self._left, *self._inside)
        if changed := self._room != before:
            self._on_screen.clear()
            self._ready = None
            if before[:1] != (self._width,) or before[2:] != self._room[2:]:
                self._drawn.clear()
        return changed

    def _forget_drawn(self) -> None:
        self._on_screen.clear()
        self._drawn.clear()
        self._colours.clear()
        self._behind = self._measured = self._ready = None

    def _strip(self, pieces: Iterable[tuple[str, Tone]], mark: str, marked: bool) -> Strip:
        segments = [Segment(text, self._style(tone, marked)) for text, tone in pieces if text]
        room, used = self._width - EDGES, sum(cells(segment.text) for segment in segments)
        blank = self._style("plain", marked)
        if self._left or used > room:
            segments = [*Strip(segments, used).crop_extend(self._left, self._left + room, blank)]
            used = room
        rest = Segment(" " * (room - used + 1), blank)
        return self._whole(Strip([Segment(mark, self._style("accent", marked)), *segments, rest], self._width))

    def _whole(self, strip: Strip) -> Strip:
        """With what is under the scroll bar."""
        return strip.adjust_cell_length(self._room[3], Style.from_color(None, self._background().rich_color))

    def _blank(self) -> Strip:
        key = ((), "", False)
        if (blank := self._drawn.get(key)) is None:
            blank = self._drawn[key] = self._whole(Strip.blank(self._width, self._style("plain", False)))
        return blank

    def _background(self) -> Color:
        if self._behind is None:
            self._behind = self.background_colors[1]
        return self._behind

    def _style(self, tone: Tone, marked: bool) -> Style:
        if (style := self._colours.get((tone, marked))) is None:
            style = tone_style(self, tone, self._background())
            if marked:
                style += cursor_style(self)
            self._colours[tone, marked] = style
        return style

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
