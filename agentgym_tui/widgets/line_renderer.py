"""How lines are drawn: only those in view are asked for, in the colours of their tones, and wide ones move sideways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, Self, get_args

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget

from agentgym_tui.presenters.cells import FixedLines, TextSource, Tone
from agentgym_tui.presenters.text_width import LIST_MARGIN, display_width
from agentgym_tui.widgets.cached_widgets import CachedScrollBar

_TONE_CLASS: Final[dict[Tone, str]] = {tone: f"tone--{tone}" for tone in get_args(Tone)}


_CURSOR_CLASS: Final = {True: "tone--cursor-focused", False: "tone--cursor"}


TONE_CLASSES: Final = {*_TONE_CLASS.values(), *_CURSOR_CLASS.values()}
"""The component classes that an app with lists must have."""


def tone_style(widget: Widget, tone: Tone, background: Color) -> Style:
    """How text of a tone looks on a background."""
    styles = widget.app.get_component_styles(_TONE_CLASS[tone])
    color = background.get_contrast_text(styles.color.a) if styles.auto_color else styles.color
    return Style.from_color((background + color).rich_color, background.rich_color) + styles.text_style


def cursor_style(widget: Widget) -> Style:
    """What the cursor's line has besides."""
    return widget.app.get_component_styles(_CURSOR_CLASS[widget.has_focus]).partial_rich_style


SCROLL_COLUMNS = 8
"""Columns that one key press moves a wide line."""

CACHED_ROWS: Final = 50
"""Rows that are known beside those on the screen, so that those that move are not made again."""


class LineRenderer(ScrollView, inherit_bindings=False):
    """The visible lines of a ``TextSource``."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    DrawnLines { overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    """
    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    N_HEADER: ClassVar[int] = 0
    """Lines above the list that do not scroll."""

    def __init__(self, source: TextSource | None, *, name: str | None, id: str | None, classes: str | None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.source: TextSource = FixedLines(()) if source is None else source
        self._left = self._top = 0
        self._width = LIST_MARGIN
        self._inner_size = Size(0, 0)
        self._measured_size: tuple[Size, bool] | None = None
        self._geometry: tuple[int, ...] = ()
        self._screen_strips: dict[int, Strip] = {}
        self._rendered_crop: tuple[Region, list[Strip]] | None = None
        self._strip_cache: dict[tuple[object, ...], Strip] = {}
        self._background_color: Color | None = None
        self._style_cache: dict[tuple[Tone, bool], Style] = {}

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The framework's own would take longer to draw than the lines."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = CachedScrollBar(thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def is_highlighted(self, index: int) -> bool:
        """Whether a line is drawn as the one of the cursor."""
        return False

    def mark(self, index: int) -> str:
        """What stands left of a line, a column wide."""
        return "▸" if self.is_highlighted(index) else " "

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """The texts of a line and their tones."""
        return self.source.line(index, width)

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The texts above the list, when ``N_HEADER`` says that there is such a line."""
        return ()

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Draw again some rows, or all of it, also in other colours."""
        if repaint and regions:
            self._rendered_crop = None
            for region in regions:
                for row in region.line_range:
                    self._screen_strips.pop(row, None)
        elif repaint:
            self._clear_caches()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        """The colours may be others."""
        self._clear_caches()
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
        if self._update_geometry() or not self._screen_strips:
            self.refresh(self._inner_size.region)
            return
        changed = [row for row, strip in self._screen_strips.items() if self.render_line(row) is not strip]
        if changed:
            self.refresh(*(Region(0, row, self._inner_size.width, 1) for row in changed))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The visible lines; where nothing is around them, those that are as before are not made again."""
        self._update_geometry()
        if self.styles.gutter:
            return super().render_lines(crop)
        if self._rendered_crop is None or self._rendered_crop[0] != crop:
            self._rendered_crop = crop, self._draw_rows(crop)
        return self._rendered_crop[1]

    def render_line(self, y: int) -> Strip:
        """One row of the widget; what says the same is the same object."""
        width, index = self._width - LIST_MARGIN, self._top + y - self.N_HEADER
        if y >= self.N_HEADER and index >= len(self.source):
            return self._blank()
        if y < self.N_HEADER:
            row_cells, mark, highlighted = tuple(self.header(width)), " ", False
        else:
            row_cells, mark, highlighted = tuple(self.row_cells(index, width)), self.mark(index), self.is_highlighted(index)
        if (strip := self._strip_cache.get((row_cells, mark, highlighted))) is None:
            if len(self._strip_cache) >= len(self._screen_strips) + CACHED_ROWS:
                shown = set(map(id, self._screen_strips.values()))
                self._strip_cache = {content: strip for content, strip in self._strip_cache.items() if id(strip) in shown}
            strip = self._strip_cache[(row_cells, mark, highlighted)] = self._strip(row_cells, mark, highlighted)
        return strip

    def _draw_rows(self, crop: Region) -> list[Strip]:
        found = ((row, self._screen_strips.get(row)) for row in crop.line_range)
        strips = [self._draw_row(row) if strip is None else strip for row, strip in found]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, self._background()) for strip in strips]
        start, stop = crop.column_span
        return strips if (start, stop) == (0, self._geometry[3]) else [strip.crop(start, stop) for strip in strips]

    def _draw_row(self, row: int) -> Strip:
        strip = self._screen_strips[row] = self.render_line(row)
        return strip

    def _update_geometry(self) -> bool:
        """Look up once what all rows of a drawing need; whether it is something else than the last time."""
        measured = self.outer_size, self.show_vertical_scrollbar
        if measured != self._measured_size:  # what follows from these takes the framework long
            self._measured_size, edges = measured, self.styles.gutter
            self._inner_size = Size(max(measured[0].width - edges.width, 0), max(measured[0].height - edges.height, 0))
            self._width = max(measured[0].width - self.gutter.width, LIST_MARGIN)
        self._top, before = self.scroll_offset.y, self._geometry
        self._geometry = (self._width, self._top, self._left, *self._inner_size)
        if changed := self._geometry != before:
            self._screen_strips.clear()
            self._rendered_crop = None
            if before[:1] != (self._width,) or before[2:] != self._geometry[2:]:
                self._strip_cache.clear()
        return changed

    def _clear_caches(self) -> None:
        self._screen_strips.clear()
        self._strip_cache.clear()
        self._style_cache.clear()
        self._background_color = self._measured_size = self._rendered_crop = None

    def _strip(self, row_cells: Iterable[tuple[str, Tone]], mark: str, highlighted: bool) -> Strip:
        segments = [Segment(text, self._style(tone, highlighted)) for text, tone in row_cells if text]
        room, used = self._width - LIST_MARGIN, sum(display_width(segment.text) for segment in segments)
        blank = self._style("plain", highlighted)
        if self._left or used > room:
            segments = [*Strip(segments, used).crop_extend(self._left, self._left + room, blank)]
            used = room
        rest = Segment(" " * (room - used + 1), blank)
        return self._pad_to_widget(Strip([Segment(mark, self._style("accent", highlighted)), *segments, rest], self._width))

    def _pad_to_widget(self, strip: Strip) -> Strip:
        """With what is under the scroll bar."""
        return strip.adjust_cell_length(self._geometry[3], Style.from_color(None, self._background().rich_color))

    def _blank(self) -> Strip:
        key = ((), "", False)
        if (blank := self._strip_cache.get(key)) is None:
            blank = self._strip_cache[key] = self._pad_to_widget(Strip.blank(self._width, self._style("plain", False)))
        return blank

    def _background(self) -> Color:
        if self._background_color is None:
            self._background_color = self.background_colors[1]
        return self._background_color

    def _style(self, tone: Tone, highlighted: bool) -> Style:
        if (style := self._style_cache.get((tone, highlighted))) is None:
            style = tone_style(self, tone, self._background())
            if highlighted:
                style += cursor_style(self)
            self._style_cache[tone, highlighted] = style
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
        self._left = max(self._left - SCROLL_COLUMNS, 0)
        self.refresh()

    def action_right(self) -> None:
        """The part of wide lines further right, as far as a visible line goes."""
        if self._widest() > self._left + self._width - LIST_MARGIN:
            self._left += SCROLL_COLUMNS
            self.refresh()

    def _page(self) -> int:
        return max(self.scrollable_content_region.height - self.N_HEADER, 1)

    def _scroll(self, y: int) -> None:
        self.scroll_to(y=y, animate=False, force=True)

    def _in_view(self) -> range:
        return range(self._top, min(self._top + self._page(), len(self.source)))

    def _widest(self) -> int:
        width = self._width - LIST_MARGIN
        return max((sum(display_width(text) for text, _ in self.row_cells(row, width)) for row in self._in_view()), default=0)
