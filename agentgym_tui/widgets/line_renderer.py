"""Line rendering: draws only the visible lines, styles each text by its tone, and scrolls wide lines sideways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final, Self, get_args

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import BLACK, WHITE, Color
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from agentgym_tui.presenters.cells import FixedLines, FoldedText, TextSource, Tone, WorldTone
from agentgym_tui.presenters.text_width import LIST_MARGIN, display_width

_TONE_CLASS: Final[dict[Tone, str]] = {tone: f"tone--{tone.partition('-')[0]}" for tone in get_args(Tone)}
_SHADE: Final = 0.12
"""Share of the text's color in a shaded background."""
_ANSI: Final = {"purple": "magenta"}
"""Names of colors that differ from those of terminals."""

_CURSOR_CLASS: Final = {True: "tone--cursor-focused", False: "tone--cursor"}


MIN_CONTRAST: Final = 4.5
"""Smallest contrast of a text to its background (WCAG 2.2, level AA)."""
TONE_CLASSES: Final = {*_TONE_CLASS.values(), *_CURSOR_CLASS.values()}
"""Component classes that an app with line lists must declare."""


def tone_style(widget: Widget, tone: Tone, background: Color) -> Style:
    """Return the style of ``tone`` on ``background``; Textual looks the tone up once per app, not once per list."""
    styles = widget.app.get_component_styles(_TONE_CLASS[tone])
    color = background.get_contrast_text(styles.color.a) if styles.auto_color else styles.color
    name, _, fill = tone.partition("-")
    if background.ansi is not None and tone in get_args(WorldTone):
        color = _ansi_color(name, color)
    elif fill == "shade":
        background = background.blend(background.get_contrast_text(1), _SHADE)
    color = readable(background + color, background)
    style = Style.from_color(color.rich_color, background.rich_color) + styles.text_style
    return style + Style(reverse=True, bold=True) if fill == "solid" else style


def _ansi_color(name: str, default: Color) -> Color:
    return default if name in ("plain", "dim") else Color.parse(f"ansi_{_ANSI.get(name, name)}")


def readable(color: Color, background: Color) -> Color:
    """Return the color, mixed with black or white until its contrast to the background is ``MIN_CONTRAST``.

    Colors that the terminal defines (themes ``ansi-…``) stay as they are.
    """
    if color.ansi is not None or background.ansi is not None:
        return color
    target = max((BLACK, WHITE), key=lambda end: contrast(end, background))
    shares = (percent / 100 for percent in range(0, 101, 5))
    mixed = (color.blend(target, share) for share in shares)
    return next((each for each in mixed if contrast(each, background) >= MIN_CONTRAST), target)


def contrast(first: Color, second: Color) -> float:
    """Return the contrast ratio of two opaque colors, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def cursor_style(widget: Widget) -> Style:
    """Return the style that is added to the line under the cursor."""
    return widget.app.get_component_styles(_CURSOR_CLASS[widget.has_focus]).partial_rich_style


SCROLL_COLUMNS = 8
"""Columns that one key press scrolls sideways."""

FOUND_TONE: Final[Tone] = "yellow-shade"
"""Tone of words that are searched for."""

CACHED_ROWS: Final = 50
"""Strips cached beyond those on the screen, so that scrolled rows need not be drawn again."""


class LineRenderer(ScrollView, inherit_bindings=False):
    """Draws the visible lines of a ``TextSource``."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    LineRenderer { overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    """
    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    N_HEADER: ClassVar[int] = 0
    """Lines above the list that do not scroll."""

    def __init__(self, source: TextSource | None, *, id: str | None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.source: TextSource = FixedLines(()) if source is None else source
        self._left = self._top = 0
        self._width = LIST_MARGIN
        self._inner_size = Size(0, 0)
        self._measured_size: tuple[Size, bool] | None = None
        self._geometry: tuple[int, ...] = ()
        self._screen_strips: dict[int, Strip] = {}
        self._rendered_crop: tuple[Region, list[Strip]] | None = None
        self._strip_cache: dict[tuple[object, ...], Strip] = {}
        self._found: re.Pattern[str] | None = None
        self._background_color: Color | None = None
        self._style_cache: dict[tuple[Tone, bool], Style] = {}

    @property
    def found(self) -> re.Pattern[str] | None:
        """What is marked in the lines; None for nothing."""
        return self._found

    @found.setter
    def found(self, expression: re.Pattern[str] | None) -> None:
        if expression != self._found:
            self._found = expression
            self.refresh()

    def scroll_to_found(self, index: int, number: int = 0) -> None:
        """Scroll sideways until the found place with this number in line ``index`` is visible."""
        room, columns = self._width - LIST_MARGIN, self._found_columns(index)
        if columns:
            start, stop = columns[min(number, len(columns) - 1)]
            if not self._left <= start <= stop <= self._left + room:
                self._left = 0 if stop <= room else max(start - room // 2, 0)
                self.refresh()

    def found_beyond(self, index: int, by: int) -> int | None:
        """Return the number of the next (1) or previous (-1) found place of a line that is not visible, if any."""
        right = self._left + self._width - LIST_MARGIN
        columns = list(enumerate(self._found_columns(index)))[::by]
        hidden = (n for n, (start, stop) in columns if (stop > right if by > 0 else start < self._left))
        return next(hidden, None)

    def _found_columns(self, index: int) -> list[tuple[int, int]]:
        """Return the first column and the end of each found place of a line."""
        row_cells = tuple(self.row_cells(index, self._width - LIST_MARGIN))
        text = "".join(text for text, _ in row_cells)
        places = self._found_in(index, row_cells)
        return [(display_width(text[:start]), display_width(text[:stop])) for start, stop in places]

    def is_highlighted(self, index: int) -> bool:
        """Return whether line ``index`` is drawn as the line under the cursor."""
        return False

    def mark(self, index: int) -> str:
        """Return the one-column mark left of line ``index``."""
        return "▸" if self.is_highlighted(index) else " "

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """Return the texts of line ``index`` with their tones."""
        return self.source.line(index, width)

    def unsafe_text(self) -> str | None:
        """Return the original texts of the visible lines in which unsafe characters were replaced; None without any."""
        return self._raw_text(self._in_view())

    def _raw_text(self, rows: Iterable[int]) -> str | None:
        lines = (self.source.line(row, self._width - LIST_MARGIN) for row in rows)
        return "\n".join(cell.raw for line in lines for cell in line if cell.raw) or None

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """Return the texts of the header with their tones; called only if ``N_HEADER`` is not 0."""
        return ()

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        if repaint and regions:
            self._rendered_crop = None
            for region in regions:
                for row in region.line_range:
                    self._screen_strips.pop(row, None)
        elif repaint:
            self._clear_caches()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        self._clear_caches()
        super().notify_style_update()

    def grow_to(self, height: int) -> None:
        """Set the number of lines, including the header. Textual lays out the screen only if a scroll bar appears.

        This method sets ``virtual_size`` itself because Textual would lay out the screen for every added line. For the
        same reason a scroll bar that is no longer needed stays until the next resize.
        """
        if height == self.virtual_size.height:
            return
        self.virtual_size = Size(1, height)
        needed = 0 < self.scrollable_content_region.height < height  # a height of 0 means no layout yet
        if self.styles.overflow_y == "auto" and (needed or self.show_vertical_scrollbar):
            self.styles.overflow_y = "scroll"
        if self.styles.overflow_y == "scroll":
            self.vertical_scrollbar.window_virtual_size = height
        if self.scroll_offset.y > self.max_scroll_y:
            self._scroll(self.max_scroll_y)

    def on_resize(self) -> None:
        """Hide a scroll bar that is no longer needed; a resize lays out the screen in any case."""
        if self.styles.overflow_y == "scroll" and self.virtual_size.height <= self.scrollable_content_region.height:
            self.styles.overflow_y = "auto"

    def refresh_changed(self) -> None:
        """Repaint only the rows whose content has changed since the last repaint."""
        if self._update_geometry() or not self._screen_strips:
            if self.is_on_screen:  # else it is painted when it is shown
                self.refresh(self._inner_size.region)
            return
        rows = ((row, strip, self.render_line(row)) for row, strip in self._screen_strips.items())
        if changed := {row: drawn for row, strip, drawn in rows if drawn is not strip}:
            self.refresh(*(Region(0, row, self._inner_size.width, 1) for row in changed))
            if self.is_on_screen:
                self._screen_strips |= changed  # the repaint need not draw them again

    def render_lines(self, crop: Region) -> list[Strip]:
        self._update_geometry()
        if self.styles.gutter:
            return super().render_lines(crop)
        if self._rendered_crop is None or self._rendered_crop[0] != crop:
            self._rendered_crop = crop, self._draw_rows(crop)
        return self._rendered_crop[1]

    def render_line(self, y: int) -> Strip:
        width, index = self._width - LIST_MARGIN, self._top + y - self.N_HEADER
        if y >= self.N_HEADER and index >= len(self.source):
            return self._blank()
        if y < self.N_HEADER:
            row_cells, mark, highlighted = tuple(self.header(width)), " ", False
        else:
            row_cells = tuple(self.row_cells(index, width))
            if self._found is not None:
                row_cells = tuple(mark_places(row_cells, self._found_in(index, row_cells)))
            mark, highlighted = self.mark(index), self.is_highlighted(index)
        content = (row_cells, mark, highlighted)
        if (strip := self._strip_cache.get(content)) is None:
            if len(self._strip_cache) >= len(self._screen_strips) + CACHED_ROWS:
                shown = set(map(id, self._screen_strips.values()))
                self._strip_cache = {key: each for key, each in self._strip_cache.items() if id(each) in shown}
            strip = self._strip_cache[content] = self._strip(row_cells, mark, highlighted)
        return strip

    def _found_in(self, index: int, row_cells: Sequence[tuple[str, Tone]]) -> list[tuple[int, int]]:
        """Return start and end of what is marked in a row, counted in its joined texts."""
        if self._found is None:
            return []
        if isinstance(self.source, FoldedText):
            return self.source.found_in(index, self._found)
        return [match.span() for match in self._found.finditer("".join(text for text, _ in row_cells))]

    def _draw_rows(self, crop: Region) -> list[Strip]:
        cached = ((row, self._screen_strips.get(row)) for row in crop.line_range)
        strips = [self._draw_row(row) if strip is None else strip for row, strip in cached]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, self._background()) for strip in strips]
        start, stop = crop.column_span
        return strips if (start, stop) == (0, self._geometry[3]) else [strip.crop(start, stop) for strip in strips]

    def _draw_row(self, row: int) -> Strip:
        strip = self._screen_strips[row] = self.render_line(row)
        return strip

    def _update_geometry(self) -> bool:
        """Measure the widget's size and scroll offset, once per repaint; return whether either has changed."""
        measured = self.outer_size, self.show_vertical_scrollbar
        if measured != self._measured_size:  # deriving the rest from Textual is slow
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
        first = Segment(mark, self._style("accent", highlighted))
        return self._pad_to_widget(Strip([first, *segments, rest], self._width))

    def _pad_to_widget(self, strip: Strip) -> Strip:
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
        """Scroll right if the shift key is held."""
        if event.shift:
            self.action_right()
            event.stop().prevent_default()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll left if the shift key is held."""
        if event.shift:
            self.action_left()
            event.stop().prevent_default()

    def action_left(self) -> None:
        """Scroll wide lines left."""
        self._left = max(self._left - SCROLL_COLUMNS, 0)
        self.refresh()

    def action_right(self) -> None:
        """Scroll wide lines right, at most to the end of the widest visible line."""
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
        return max(
            (sum(display_width(text) for text, _ in self.row_cells(row, width)) for row in self._in_view()), default=0
        )


def mark_places(row_cells: Sequence[tuple[str, Tone]], places: Sequence[tuple[int, int]]) -> Iterator[tuple[str, Tone]]:
    """Yield the texts of a row with the characters from ``start`` to ``stop`` of each place in ``FOUND_TONE``."""
    at = 0
    for text, tone in row_cells:
        done = 0
        for start, stop in ((max(start - at, 0), min(stop - at, len(text))) for start, stop in places):
            if start < stop:
                yield text[done:start], tone
                yield text[start:stop], FOUND_TONE
                done = stop
        yield text[done:], tone
        at += len(text)
