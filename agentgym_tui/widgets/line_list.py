"""The one base of all lists: draws only the lines that are visible, moves a cursor, and follows a growing end."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from textual import events
from textual.binding import BindingType
from textual.message import Message

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Placing, Source
from agentgym_tui.widgets.line_renderer import DrawnLines

CursorType: TypeAlias = Literal["line", "none"]
"""``none`` is for prose: keys scroll, and the cursor only says which part of the visible text is meant."""


class LineView(DrawnLines, can_focus=True, inherit_bindings=False):
    """A list of lines that come from a ``Source``.

    Args:
        source: what is shown at first.
        cursor_type: whether there is a visible cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]

    class _OfList(Message):
        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            """The list it came from, for ``@on(…, "#id")``."""
            return self.view

    class _OfLine(_OfList):
        def __init__(self, view: LineView, index: int, key: str) -> None:
            super().__init__(view)
            self.index = index
            self.key = key

    class Moved(_OfLine):
        """The cursor is on another line, or another line is where the cursor is."""

    class Chosen(_OfLine):
        """Enter or a double click on a line."""

    class Followed(_OfList):
        """It started or stopped staying at the end."""

        def __init__(self, view: LineView, following: bool) -> None:
            super().__init__(view)
            self.following = following

    def __init__(
        self,
        source: Source | None = None,
        *,
        cursor_type: CursorType = "line",
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(source, name=name, id=id, classes=classes)
        self.cursor_type = cursor_type
        self._n_lines = self._cursor = self._n_shown = 0
        self._key = ""
        self._tails = self._follow = False

    @property
    def cursor(self) -> int:
        """The line of the cursor, 0 in an empty list."""
        return self._cursor

    @property
    def key(self) -> str:
        """The key of the cursor's line, "" in an empty list."""
        return self._key

    @property
    def follow(self) -> bool:
        """Whether it stays at the end; setting it makes the list one that has an end to follow."""
        return self._follow

    @follow.setter
    def follow(self, follow: bool) -> None:
        self._tails |= follow
        if follow != self._follow:
            self._follow = follow
            self.post_message(self.Followed(self, follow))
            self._sync()

    def show(self, source: Source, *, follow: bool | None = None) -> None:
        """Show other lines; the cursor stays on its key where there is one.

        Args:
            source: the lines.
            follow: whether to stay at the end; None leaves that to what the user chose.
        """
        self.source = source
        if follow is not None:
            self.follow = follow
        self._sync()

    def refresh_lines(self, y_start: int = 0, line_count: int | None = None) -> None:
        """Draw again, all of it or some rows, after lines of the source changed, came or went."""
        if line_count is None:
            self._sync()
        else:
            super().refresh_lines(y_start, line_count)

    def move_to(self, index: int) -> None:
        """Put the cursor on a line, or on the nearest there is, and bring it into view."""
        self._catch_up()
        index = max(0, min(index, self._n_lines - 1))
        if index < self._n_lines - 1:
            self.follow = False
        self._reveal(index)
        self._put(index)

    def select(self, key: str) -> bool:
        """Put the cursor on the line of a key; False when there is none."""
        self._sync()  # the source may have changed since it was drawn
        found = self._find(key)
        if found is not None:
            self.move_to(found)
        return found is not None

    def is_marked(self, index: int) -> bool:
        """The cursor's line, where there is one to see."""
        return index == self._cursor and self.cursor_type == "line"

    def hostile_text(self) -> str | None:
        """What is behind the cursor's text where cleaning changed it, for a look at its bytes."""
        return None

    def _catch_up(self) -> None:
        """Know the lines there are, which may be others than when they were drawn."""
        if len(self.source) != self._n_lines or (self._n_lines and self.source.key(self._cursor) != self._key):
            self._sync()

    def _sync(self) -> None:
        """Take in what the source is now."""
        before, self._n_lines = self._cursor, len(self.source)
        self._cursor = self._place()
        self.grow_to(self._n_lines + self.N_HEADER)
        if self._follow:
            self._scroll(self.max_scroll_y)
        elif top := self.scroll_offset.y:
            self._scroll(top + self._cursor - before)
        self.refresh_changed()
        self._tell()

    def _place(self) -> int:
        """Where the cursor belongs: on its key, else where it was."""
        last = max(self._n_lines - 1, 0)
        guess = last if self._follow else min(self._cursor, last)
        if self._follow or not self._key or not self._n_lines or self.source.key(guess) == self._key:
            return guess
        found = self._find(self._key)
        return guess if found is None else found

    def _find(self, key: str) -> int | None:
        if isinstance(self.source, Placing):
            return self.source.place(key)
        return next((index for index in range(self._n_lines) if self.source.key(index) == key), None)

    def _put(self, index: int) -> None:
        old, self._cursor = self._cursor, index
        if self.cursor_type == "line":
            super().refresh_lines(old + self.N_HEADER)
            super().refresh_lines(index + self.N_HEADER)
        else:
            self.refresh()
        self._tell()

    def _tell(self) -> None:
        key = self.source.key(self._cursor) if self._cursor < len(self.source) else ""
        if key != self._key:
            self._key = key
            self.post_message(self.Moved(self, self._cursor, key))

    def _reveal(self, index: int) -> None:
        top, page = self.scroll_offset.y, self._page()
        if not top <= index < top + page:
            self._scroll(index if index < top else index - page + 1)

    def _fit(self) -> None:
        """Keep the cursor in view; lines that only a lack of room had pushed out above it come back with the room."""
        before, self._n_shown = self._n_shown, self._page()
        if self._n_shown > before and self._cursor == self.scroll_offset.y + before - 1:
            self._scroll(max(self._cursor - self._n_shown + 1, 0))
        else:
            self._reveal(self._cursor)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Going up by wheel or scroll bar leaves the end; the cursor of prose stays in view."""
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y:
            self.follow = False
        if self.cursor_type == "none" and self._n_lines:
            top = round(new_value)
            self._put(min(max(top, min(self._cursor, top + self._page() - 1)), self._n_lines - 1))

    def on_mount(self) -> None:
        """Take in what was given at first."""
        self._sync()

    def on_resize(self) -> None:
        """Keep the end or the cursor in view."""
        if self._follow:
            self._scroll(self.max_scroll_y)
        elif self.cursor_type == "line":
            self._fit()

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, a second one chooses."""
        offset = event.get_content_offset(self)
        index = self.scroll_offset.y + offset.y - self.N_HEADER if offset else -1
        if offset is None or offset.y < self.N_HEADER or index >= self._n_lines:
            return
        self.move_to(index)
        if event.chain == 2:
            self.action_choose()

    def action_down(self) -> None:
        """The next line."""
        self._step(1)

    def action_up(self) -> None:
        """The line before."""
        self._step(-1)

    def action_page_down(self) -> None:
        """A screenful on."""
        self._step(self._page())

    def action_page_up(self) -> None:
        """A screenful back."""
        self._step(-self._page())

    def action_top(self) -> None:
        """The first line."""
        self.move_to(0)

    def action_bottom(self) -> None:
        """The last line, and to stay there where there is something to follow."""
        self.move_to(len(self.source) - 1)
        self.follow = self._tails

    def action_choose(self) -> None:
        """Say that this line is meant."""
        if self._n_lines:
            self.post_message(self.Chosen(self, self._cursor, self._key))

    def _step(self, by: int) -> None:
        """Move the cursor; in prose scroll as long as there is something to scroll to."""
        self._catch_up()
        room = self.max_scroll_y - self.scroll_offset.y if by > 0 else self.scroll_offset.y
        if self.cursor_type == "none" and room:
            self._scroll(self.scroll_offset.y + by)
        else:
            self.move_to(self._cursor + by)
