"""Lists and tables: the visible lines are drawn and styled by their tones, a cursor moves, a list can follow its end.

- ``LineRenderer`` draws lines and scrolls wide ones sideways; ``StaticLines`` is one that takes no keys.
- ``LineList`` adds a cursor; ``WrappedText`` is prose; a ``Table`` has columns, and hides the least important ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Self, TypeAlias, get_args

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.color import BLACK, WHITE, Color
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from agentgym_tui.commands import bindings
from agentgym_tui.presenters.cells import (
    COLUMN_GAP,
    LIST_MARGIN,
    Column,
    ColumnLayout,
    FixedLines,
    FoldedText,
    KeyLookup,
    Line,
    TextSource,
    Tone,
    WorldTone,
    arrange_columns,
    display_width,
    fit_row,
    header_row,
    next_sorting,
    sorting_after_click,
)
from agentgym_tui.state.query import Sorting
from agentgym_tui.textual_compat import add_bindings

_TONE_CLASS: Final[dict[Tone, str]] = {tone: f"tone--{tone.partition('-')[0]}" for tone in get_args(Tone)}
_CURSOR_CLASS: Final = {True: "tone--cursor-focused", False: "tone--cursor"}
TONE_CLASSES: Final = {*_TONE_CLASS.values(), *_CURSOR_CLASS.values()}
"""Component classes that an app with line lists must declare."""
_SHADE: Final = 0.12
"""Share of the text's color in a shaded background."""
MIN_CONTRAST: Final = 4.5
"""Smallest contrast of a text to its background (WCAG 2.2, level AA)."""
SCROLL_COLUMNS: Final = 8
"""Columns that one key press scrolls sideways."""
FOUND_TONE: Final[Tone] = "yellow-shade"
"""Tone of words that are searched for."""
CACHED_ROWS: Final = 50
"""Strips cached beyond those on the screen, so that scrolled rows need not be drawn again."""
SEARCHED_WIDTH: Final = 400
"""Columns of a row that are searched where the row depends on the width."""

CursorType: TypeAlias = Literal["line", "none"]
"""``none`` is for prose: keys scroll, and the invisible cursor only marks the current part of the visible text."""
RowCells: TypeAlias = Iterable[tuple[str, Tone]]
LineFactory: TypeAlias = Callable[[int], Sequence[Line]]
"""Makes the lines for a number of columns."""


def tone_style(widget: Widget, tone: Tone, background: Color) -> Style:
    """Return the style of ``tone`` on ``background``; Textual looks the tone up once per app, not once per list."""
    styles = widget.app.get_component_styles(_TONE_CLASS[tone])
    color = background.get_contrast_text(styles.color.a) if styles.auto_color else styles.color
    name, _, fill = tone.partition("-")
    if background.ansi is not None and tone in get_args(WorldTone):
        if name not in ("plain", "dim"):
            color = Color.parse("ansi_magenta" if name == "purple" else f"ansi_{name}")
    elif fill == "shade":
        background = background.blend(background.get_contrast_text(1), _SHADE)
    color = readable(background + color, background)
    style = Style.from_color(color.rich_color, background.rich_color) + styles.text_style
    return style + Style(reverse=True, bold=True) if fill == "solid" else style


def readable(color: Color, background: Color) -> Color:
    """Return the color, mixed with black or white until its contrast to the background is ``MIN_CONTRAST``.

    Colors that the terminal defines (themes ``ansi-…``) stay as they are.
    """
    if color.ansi is not None or background.ansi is not None:
        return color
    target = max((BLACK, WHITE), key=lambda end: contrast(end, background))
    mixed = (color.blend(target, percent / 100) for percent in range(0, 101, 5))
    return next((each for each in mixed if contrast(each, background) >= MIN_CONTRAST), target)


def contrast(first: Color, second: Color) -> float:
    """Return the contrast ratio of two opaque colors, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


class LineRenderer(ScrollView, inherit_bindings=False):
    ALLOW_SELECT = False
    DEFAULT_CSS = """
    LineRenderer { overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    """
    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    found: Reactive[re.Pattern[str] | None] = Reactive(None)
    """What is marked in the lines."""
    N_HEADER: ClassVar[int] = 0
    """Lines above the list that do not scroll."""

    def __init__(self, source: TextSource | None, *, id: str | None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.source: TextSource = FixedLines(()) if source is None else source
        self._left = self._top = 0
        self._width = LIST_MARGIN
        self._screen_strips: dict[int, Strip] = {}
        self._strip_cache: dict[tuple[object, ...], Strip] = {}
        self._style_cache: dict[tuple[Tone, bool], Style] = {}
        self._background_color: Color | None = None
        self._unmeasured: tuple[int, int] | None = None  # what ``scroll_to_found`` was to show before the first layout

    def scroll_to_found(self, index: int, number: int = 0) -> None:
        """Scroll sideways until this place in line ``index`` is visible; without a width yet, once there is one."""
        self._unmeasured = None if self.outer_size.width else (index, number)
        if self._unmeasured is not None:
            return
        self._measure()
        room, columns = self._width - LIST_MARGIN, self._found_columns(index)
        if columns:
            start, stop = columns[min(number, len(columns) - 1)]
            if not self._left <= start <= stop <= self._left + room:
                self._left = 0 if stop <= room else max(start - room // 2, 0)
                self.refresh()

    def found_beyond(self, index: int, by: int) -> int | None:
        """Return the number of the next (1) or previous (-1) found place that is not visible, if any."""
        right = self._left + self._width - LIST_MARGIN
        columns = list(enumerate(self._found_columns(index)))[::by]
        hidden = (n for n, (start, stop) in columns if (stop > right if by > 0 else start < self._left))
        return next(hidden, None)

    def _found_columns(self, index: int) -> list[tuple[int, int]]:
        row_cells = tuple(self.row_cells(index, self._width - LIST_MARGIN))
        text = "".join(text for text, _ in row_cells)
        places = self._found_in(index, row_cells)
        return [(display_width(text[:start]), display_width(text[:stop])) for start, stop in places]

    def _found_in(self, index: int, row_cells: RowCells) -> list[tuple[int, int]]:
        """Return start and end of what is marked in a row, counted in its joined texts."""
        if (found := self.found) is None:
            return []
        if isinstance(self.source, FoldedText):
            return self.source.found_in(index, found)
        return [match.span() for match in found.finditer("".join(text for text, _ in row_cells))]

    def is_highlighted(self, index: int) -> bool:
        return False

    def mark(self, index: int) -> str:
        """Return the one-column mark left of line ``index``."""
        return "▸" if self.is_highlighted(index) else " "

    def row_cells(self, index: int, width: int) -> RowCells:
        return self.source.line(index, width)

    def header(self, width: int, row: int = 0) -> RowCells:
        return ()

    def unsafe_text(self) -> str | None:
        return self._raw_text(self._in_view())

    def _raw_text(self, rows: Iterable[int]) -> str | None:
        lines = (self.source.line(row, self._width - LIST_MARGIN) for row in rows)
        return "\n".join(cell.raw for line in lines for cell in line if cell.raw) or None

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        for row in (row for region in regions for row in region.line_range):
            self._screen_strips.pop(row, None)
        if repaint and not regions:
            self._clear_caches()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        self._clear_caches()
        super().notify_style_update()

    def _clear_caches(self) -> None:
        self._screen_strips.clear()
        self._strip_cache.clear()
        self._style_cache.clear()
        self._background_color = None

    def grow_to(self, height: int) -> None:
        """Set the number of lines, with the header.

        Textual would lay out the screen for every line; here, it does only when a scroll bar appears. One that is no
        longer needed stays until the next resize.
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
        if self._unmeasured is not None:
            self.scroll_to_found(*self._unmeasured)

    def refresh_changed(self) -> None:
        """Repaint only the rows whose content has changed since the last repaint."""
        if self._measure() or not self._screen_strips:
            if self.is_on_screen:  # else it is painted when it is shown
                self.refresh(self.outer_size.region)
            return
        rows = ((row, self._draw_row(row)) for row in range(self.outer_size.height - self.styles.gutter.height))
        if changed := {row: strip for row, strip in rows if strip is not self._screen_strips.get(row)}:
            self.refresh(*(Region(0, row, self.outer_size.width, 1) for row in changed))
            self._screen_strips |= changed  # the repaint need not draw them again

    def render_lines(self, crop: Region) -> list[Strip]:
        self._measure()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        if (strip := self._screen_strips.get(y)) is None:
            strip = self._screen_strips[y] = self._draw_row(y)
        return strip

    def _measure(self) -> bool:
        before = self._width, self._top
        self._width = max(self.outer_size.width - self.gutter.width, LIST_MARGIN)
        self._top = self.scroll_offset.y
        if changed := before != (self._width, self._top):
            self._screen_strips.clear()
        if before[0] != self._width:
            self._strip_cache.clear()
        return changed

    def _draw_row(self, y: int) -> Strip:
        width, index = self._width - LIST_MARGIN, self._top + y - self.N_HEADER
        row_cells: tuple[tuple[str, Tone], ...] = ()
        mark, highlighted = "", False
        if y < self.N_HEADER:
            row_cells, mark = tuple(self.header(width, y)), " "
        elif index < len(self.source):
            row_cells = tuple(self.row_cells(index, width))
            if places := self._found_in(index, row_cells):
                row_cells = tuple(mark_places(row_cells, places))
            mark, highlighted = self.mark(index), self.is_highlighted(index)
        content = row_cells, mark, highlighted
        if (strip := self._strip_cache.get(content)) is None:
            if len(self._strip_cache) >= len(self._screen_strips) + CACHED_ROWS:
                shown = set(map(id, self._screen_strips.values()))
                self._strip_cache = {key: each for key, each in self._strip_cache.items() if id(each) in shown}
            strip = self._strip_cache[content] = self._strip(*content)
        return strip

    def _strip(self, row_cells: RowCells, mark: str, highlighted: bool) -> Strip:
        if not mark:  # below the last line
            return Strip.blank(self._width, self._style("plain", False))
        segments = [Segment(text, self._style(tone, highlighted)) for text, tone in row_cells if text]
        room, used = self._width - LIST_MARGIN, sum(display_width(segment.text) for segment in segments)
        blank = self._style("plain", highlighted)
        if self._left or used > room:
            segments = [*Strip(segments, used).crop_extend(self._left, self._left + room, blank)]
            used = room
        first, rest = Segment(mark, self._style("accent", highlighted)), Segment(" " * (room - used + 1), blank)
        return Strip([first, *segments, rest], self._width)

    def _style(self, tone: Tone, highlighted: bool) -> Style:
        if (style := self._style_cache.get((tone, highlighted))) is None:
            if self._background_color is None:
                self._background_color = self.background_colors[1]
            style = tone_style(self, tone, self._background_color)
            if highlighted:
                style += self.app.get_component_styles(_CURSOR_CLASS[self.has_focus]).partial_rich_style
            self._style_cache[tone, highlighted] = style
        return style

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        if event.shift:
            self.action_right()
            event.stop().prevent_default()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if event.shift:
            self.action_left()
            event.stop().prevent_default()

    def action_left(self) -> None:
        self._left = max(self._left - SCROLL_COLUMNS, 0)
        self.refresh()

    def action_right(self) -> None:
        """Scroll wide lines right, at most to the end of the widest visible line."""
        width = self._width - LIST_MARGIN
        lines = (self.row_cells(row, width) for row in self._in_view())
        if max((sum(display_width(text) for text, _ in line) for line in lines), default=0) > self._left + width:
            self._left += SCROLL_COLUMNS
            self.refresh()

    def _page(self) -> int:
        return max(self.scrollable_content_region.height - self.N_HEADER, 1)

    def _scroll(self, y: int) -> None:
        self.scroll_to(y=y, animate=False, force=True)

    def _in_view(self) -> range:
        return range(self._top, min(self._top + self._page(), len(self.source)))


def mark_places(
    row_cells: RowCells, places: Sequence[tuple[int, int]], mark: Tone = FOUND_TONE
) -> Iterator[tuple[str, Tone]]:
    """Yield the texts of a row with the characters from ``start`` to ``stop`` of each place in the tone ``mark``."""
    at = 0
    for text, tone in row_cells:
        done = 0
        for start, stop in ((max(start - at, 0), min(stop - at, len(text))) for start, stop in places):
            if start < stop:
                yield text[done:start], tone
                yield text[start:stop], mark
                done = stop
        yield text[done:], tone
        at += len(text)


class LineList(LineRenderer, can_focus=True, inherit_bindings=False):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]

    @dataclass
    class ListMessage(Message):
        view: LineList

        @property
        def control(self) -> LineList:
            return self.view

    @dataclass
    class LineMessage(ListMessage):
        index: int
        key: str

    class CursorMoved(LineMessage):
        """The cursor has moved to another line, or the line under the cursor was replaced."""

    class Selected(LineMessage):
        """The user pressed Enter or double-clicked a line."""

    @dataclass
    class FollowChanged(ListMessage):
        following: bool

    def __init__(
        self, source: TextSource | None = None, *, cursor_type: CursorType = "line", id: str | None = None
    ) -> None:
        super().__init__(source, id=id)
        self.cursor_type = cursor_type
        self._n_lines = self.cursor = self._n_visible = 0
        self.key = ""
        self._can_follow = self._follow = False
        self.handles_enter = True  # False leaves the key to the screen

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "choose" or self.handles_enter

    @property
    def follow(self) -> bool:
        """Whether the list stays at its end; True also lets ``action_bottom`` follow it."""
        return self._follow

    @follow.setter
    def follow(self, follow: bool) -> None:
        self._can_follow |= follow
        if follow != self._follow:
            self._follow = follow
            self.post_message(self.FollowChanged(self, follow))
            self._sync()

    def show(self, source: TextSource, *, follow: bool | None = None) -> None:
        self.source = source
        if follow is not None:
            self.follow = follow
        self._sync()

    def refresh_lines(self, y_start: int = 0, line_count: int | None = None) -> None:
        if line_count is None:
            self._sync()
        else:
            super().refresh_lines(y_start, line_count)

    def move_to(self, index: int) -> None:
        """Move the cursor to the line nearest to ``index``, and scroll it into view."""
        self._sync_if_stale()
        index = max(0, min(index, self._n_lines - 1))
        if index < self._n_lines - 1:
            self.follow = False
        self._scroll_into_view(index)
        self._set_cursor(index)

    def reveal(self, first: int, last: int) -> None:
        """Scroll the lines from ``first`` to ``last`` into view, or as many of them from ``first`` on as have room."""
        self._sync_if_stale()
        self._scroll_into_view(min(last, first + self._page() - 1))

    def select(self, key: str) -> bool:
        self._sync()  # the source may have changed since it was drawn
        if (index := self._find(key)) is not None:
            self.move_to(index)
        return index is not None

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        if isinstance(self.source, FoldedText):
            return self.source.find_rows(expression)
        texts = ("".join(text for text, _ in self.row_cells(row, SEARCHED_WIDTH)) for row in range(len(self.source)))
        return [row for row, text in enumerate(texts) for _ in expression.finditer(text)]

    def is_highlighted(self, index: int) -> bool:
        return index == self.cursor and self.cursor_type == "line"

    def unsafe_text(self) -> str | None:
        rows = [self.cursor] if self.cursor < len(self.source) and self.cursor_type == "line" else []
        return self._raw_text(rows) or super().unsafe_text()

    def _sync_if_stale(self) -> None:
        if len(self.source) != self._n_lines or (self._n_lines and self.source.key(self.cursor) != self.key):
            self._sync()

    def _sync(self) -> None:
        before, self._n_lines = self.cursor, len(self.source)
        self.cursor = self._cursor_after_change()
        self.grow_to(self._n_lines + self.N_HEADER)
        if self._follow:
            self._scroll(self.max_scroll_y)
        elif top := self.scroll_offset.y:
            self._scroll(top + self.cursor - before)
        elif self.cursor_type == "line" and before < self._page():  # the cursor was visible
            self._scroll_into_view(self.cursor)
        self.refresh_changed()
        self._report_cursor()

    def _cursor_after_change(self) -> int:
        last = max(self._n_lines - 1, 0)
        guess = last if self._follow else min(self.cursor, last)
        if self._follow or not self.key or not self._n_lines or self.source.key(guess) == self.key:
            return guess
        return guess if (index := self._find(self.key)) is None else index

    def _find(self, key: str) -> int | None:
        if isinstance(self.source, KeyLookup):
            return self.source.row_of(key)
        return next((index for index in range(self._n_lines) if self.source.key(index) == key), None)

    def _set_cursor(self, index: int) -> None:
        old, self.cursor = self.cursor, index
        if self.cursor_type == "line":
            super().refresh_lines(old + self.N_HEADER)
            super().refresh_lines(index + self.N_HEADER)
        else:
            self.refresh()
        self._report_cursor()

    def _report_cursor(self) -> None:
        key = self.source.key(self.cursor) if self.cursor < len(self.source) else ""
        if key != self.key:
            self.key = key
            self.post_message(self.CursorMoved(self, self.cursor, key))

    def _scroll_into_view(self, index: int) -> None:
        top, page = self.scroll_offset.y, self._page()
        if not top <= index < top + page:
            self._scroll(index if index < top else index - page + 1)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y:
            self.follow = False
        if self.cursor_type == "none" and self._n_lines:
            top = round(new_value)
            self._set_cursor(min(max(top, min(self.cursor, top + self._page() - 1)), self._n_lines - 1))

    def on_mount(self) -> None:
        self._sync()

    def on_resize(self) -> None:
        before, self._n_visible = self._n_visible, self._page()
        if self._follow:
            self._scroll(self.max_scroll_y)
        elif self.cursor_type == "none":
            if self.found is not None:  # the line of the search below has taken a row
                self._scroll_into_view(self.cursor)
        elif self._n_visible > before and self.cursor == self.scroll_offset.y + before - 1:
            # lines that lack of room had pushed out above the cursor scroll back
            self._scroll(max(self.cursor - self._n_visible + 1, 0))
        else:
            self._scroll_into_view(self.cursor)

    def row_at(self, event: events.Click) -> int | None:
        """Return the clicked line; None for the header, and below the last line."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y < self.N_HEADER:
            return None
        row = self.scroll_offset.y + offset.y - self.N_HEADER
        return row if row < len(self.source) else None

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked line; a double click selects it."""
        if (row := self.row_at(event)) is not None:
            self.move_to(row)
            if event.chain == 2:
                self.action_choose()

    def action_move(self, by: int) -> None:
        """Move the cursor by ``by`` lines; without a visible cursor, scroll as long as there is more to show."""
        self._sync_if_stale()
        room = self.max_scroll_y - self.scroll_offset.y if by > 0 else self.scroll_offset.y
        if self.cursor_type == "none" and room:
            self._scroll(self.scroll_offset.y + by)
        else:
            self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.action_move(by * self._page())

    def action_top(self) -> None:
        self.move_to(0)

    def action_bottom(self) -> None:
        self.move_to(len(self.source) - 1)
        self.follow = self._can_follow

    def action_choose(self) -> None:
        if self._n_lines:
            self.post_message(self.Selected(self, self.cursor, self.key))


class GeneratedLines(TextSource):
    """Lines that are made again when the width changes."""

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
    """Lines that can neither be focused nor scrolled."""

    DEFAULT_CSS = """
    StaticLines { height: 1; overflow: hidden hidden; scrollbar-gutter: auto; }
    """

    def __init__(
        self, make_lines: LineFactory = lambda width: (), *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(GeneratedLines(make_lines), id=id, classes=classes)
        self._make_lines = make_lines

    def show(self, make_lines: LineFactory | None = None) -> None:
        self._make_lines = make_lines or self._make_lines
        self.source = GeneratedLines(self._make_lines)
        self.refresh_changed()

    def on_hide(self) -> None:
        """Drop the drawn rows: without them, ``refresh_changed`` makes no lines until the widget is shown again."""
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1


class WrappedText(LineList):
    def __init__(self, make_lines: LineFactory, *, id: str) -> None:
        super().__init__(cursor_type="none", id=id)
        self._make_lines = make_lines
        self._cached: Sequence[Line] = ()

    def set_lines(self, make_lines: LineFactory) -> None:
        self._make_lines = make_lines
        self.on_resize()

    def on_resize(self) -> None:
        lines = self._make_lines(max(self.scrollable_content_region.width - LIST_MARGIN, 0))
        if lines != self._cached:
            self._cached = lines
            self.show(FixedLines(lines))


class Table(LineList):
    """A list whose lines have one cell per column; it posts which order the user wants, and does not sort itself."""

    N_HEADER: ClassVar[int] = 1
    _columns: tuple[Column, ...] = ()
    _fitted: Sequence[int] = ()
    _is_stale = False

    @dataclass
    class Sorted(LineList.ListMessage):
        """The user has requested another order; None is the default order."""

        sorting: Sorting | None

    def __init__(
        self,
        columns: Sequence[Column],
        source: TextSource | None = None,
        *,
        can_follow: bool = False,
        can_sort: bool = False,
        sorting: Sorting | None = None,
        default_sorting: Sorting | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(source, id=id)
        self._can_follow, self._can_sort = can_follow, can_sort
        self.set_columns(columns)
        self.clicked: Column | None = None  # by the last click
        self.sorting, self._default_sorting = sorting, default_sorting
        if can_sort:
            add_bindings(self, bindings("table"))

    def set_columns(self, columns: Sequence[Column]) -> None:
        if self._columns != (columns := tuple(columns)):
            self._columns = columns
            is_fitted = any(column.most for column in columns)
            self._fitted = [n for n, each in enumerate(columns) if is_fitted and (each.most or each.width is None)]
            self.fit_again()

    def fit_again(self) -> None:
        """Forget what the rows that were drawn needed; columns never become narrower otherwise, so that they rest."""
        self._needed = [0] * len(self._columns)
        self._layout: tuple[int, ColumnLayout] = (-1, ())

    def header(self, width: int, row: int = 0) -> Iterable[tuple[str, Tone]]:
        return header_row(self._columns, self.visible_columns(width), self.sorting or self._default_sorting)

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        line = self.source.line(index, width)
        if self._fitted and self._needs_more(line):
            before, self._layout = self.visible_columns(width), (-1, ())
            self._is_stale |= before != self.visible_columns(width)
        return fit_row(line, self._columns, self.visible_columns(width), width)

    def render_lines(self, crop: Region) -> list[Strip]:
        strips = super().render_lines(crop)
        return super().render_lines(crop) if self._draw_again() else strips

    def refresh_changed(self) -> None:
        super().refresh_changed()
        self._draw_again()

    def _draw_again(self) -> bool:
        """Draw all rows again if one of them has widened the columns."""
        if was_stale := self._is_stale:
            self._is_stale = False
            self.refresh()
        return was_stale

    def _needs_more(self, line: Line) -> bool:
        """Note the widths of cells, but not of the last one of a short row, and return whether any is a new maximum."""
        before, n_cells = self._needed[:], len(line) - (len(line) < len(self._columns))
        for n in self._fitted:
            if n < n_cells and (needed := display_width(line[n].text)) > self._needed[n]:
                self._needed[n] = min(needed, self._columns[n].most or needed)
        return before != self._needed

    def visible_columns(self, width: int) -> ColumnLayout:
        if self._layout[0] != width:
            self._layout = (width, arrange_columns(self._columns, width, self._needed if self._fitted else ()))
        return self._layout[1]

    def _column_at(self, x: int) -> Column | None:
        start = 1 - self._left
        for number, size, _ in self.visible_columns(self._width - LIST_MARGIN):
            if start <= x < start + size + len(COLUMN_GAP):
                return self._columns[number]
            start += size + len(COLUMN_GAP)
        return None

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        self.clicked = self._column_at(offset.x) if offset is not None else None
        if self._can_sort and self.clicked is not None and offset is not None and offset.y == 0:
            self._sort(sorting_after_click(self.sorting, self.clicked))

    def action_sort(self) -> None:
        width = self._width - LIST_MARGIN
        visible = [self._columns[number] for number, _, _ in self.visible_columns(width)] if width else self._columns
        self._sort(next_sorting(self.sorting or self._default_sorting, visible))

    def action_reverse(self) -> None:
        if (sorting := self.sorting or self._default_sorting) is not None:
            self._sort(Sorting(sorting.column, not sorting.descending))

    def _sort(self, sorting: Sorting | None) -> None:
        self.sorting = sorting
        self.post_message(self.Sorted(self, sorting))
        self.refresh()


class SideTable(Table):
    """A table without wide lines, whose arrows left and right choose, as in a tree or between two sides."""

    @dataclass
    class SideChosen(LineList.ListMessage):
        by: int  # -1 to the left, 1 to the right

    def action_left(self) -> None:
        self.post_message(self.SideChosen(self, -1))

    def action_right(self) -> None:
        self.post_message(self.SideChosen(self, 1))
