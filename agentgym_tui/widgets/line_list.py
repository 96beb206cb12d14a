"""The base of all lists: draws only the visible lines, moves a cursor, and can follow the end of a growing list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from textual import events
from textual.binding import BindingType
from textual.message import Message

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import FoldedText, KeyLookup, TextSource
from agentgym_tui.widgets.line_renderer import LineRenderer

CursorType: TypeAlias = Literal["line", "none"]
"""``none`` is for prose: keys scroll, and the invisible cursor only marks the current part of the visible text."""


SEARCHED_WIDTH: Final = 400
"""Columns of a row that are searched where the row depends on the width."""


class LineList(LineRenderer, can_focus=True, inherit_bindings=False):
    """A list of lines from a ``TextSource``.

    Args:
        source: the lines shown at first.
        cursor_type: whether the cursor is visible.

    Attributes:
        handles_enter: whether Enter posts ``Selected``; False leaves the key to the screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]

    @dataclass
    class ListMessage(Message):
        """A message of a list."""

        view: LineList

        @property
        def control(self) -> LineList:
            return self.view

    @dataclass
    class LineMessage(ListMessage):
        """A message about one line of a list."""

        index: int
        key: str

    class CursorMoved(LineMessage):
        """The cursor has moved to another line, or the line under the cursor was replaced."""

    class Selected(LineMessage):
        """The user pressed Enter or double-clicked a line."""

    @dataclass
    class FollowChanged(ListMessage):
        """The list started or stopped following its end."""

        following: bool

    def __init__(
        self, source: TextSource | None = None, *, cursor_type: CursorType = "line", id: str | None = None
    ) -> None:
        super().__init__(source, id=id)
        self.cursor_type = cursor_type
        self._n_lines = self._cursor = self._n_visible = 0
        self._key = ""
        self._can_follow = self._follow = False
        self.handles_enter = True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "choose" or self.handles_enter

    @property
    def cursor(self) -> int:
        """Index of the line under the cursor, 0 in an empty list."""
        return self._cursor

    @property
    def key(self) -> str:
        """Key of the line under the cursor, "" in an empty list."""
        return self._key

    @property
    def follow(self) -> bool:
        """Whether the list stays at its end; setting it to True also enables following for ``action_bottom``."""
        return self._follow

    @follow.setter
    def follow(self, follow: bool) -> None:
        self._can_follow |= follow
        if follow != self._follow:
            self._follow = follow
            self.post_message(self.FollowChanged(self, follow))
            self._sync()

    def show(self, source: TextSource, *, follow: bool | None = None) -> None:
        """Show another source; the cursor stays on the line with the same key if the new source has that key.

        Args:
            source: the lines.
            follow: whether to stay at the end; None keeps the user's choice.
        """
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
        """Move the cursor to ``index``, clamped to the list, and scroll it into view."""
        self._sync_if_stale()
        index = max(0, min(index, self._n_lines - 1))
        if index < self._n_lines - 1:
            self.follow = False
        self._scroll_into_view(index)
        self._set_cursor(index)

    def reveal(self, first: int, last: int) -> None:
        """Scroll the lines from ``first`` to ``last`` into view, or as many of them from ``first`` on as have room."""
        self._sync_if_stale()
        self._scroll_into_view(min(last, first + max(self._page(), 1) - 1))

    def select(self, key: str) -> bool:
        """Move the cursor to the line with ``key``; return False if there is none."""
        self._sync()  # the source may have changed since it was drawn
        index = self._find(key)
        if index is not None:
            self.move_to(index)
        return index is not None

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        """Return the row of each match of an expression, so that a row with several matches comes several times."""
        if isinstance(self.source, FoldedText):
            return self.source.find_rows(expression)
        texts = ("".join(text for text, _ in self.row_cells(row, SEARCHED_WIDTH)) for row in range(len(self.source)))
        return [row for row, text in enumerate(texts) for _ in expression.finditer(text)]

    def is_highlighted(self, index: int) -> bool:
        return index == self._cursor and self.cursor_type == "line"

    def unsafe_text(self) -> str | None:
        """Return the original text of the line under the cursor, else of all visible lines, if it was made safe."""
        rows = [self._cursor] if self._cursor < len(self.source) and self.cursor_type == "line" else []
        return self._raw_text(rows) or super().unsafe_text()

    def _sync_if_stale(self) -> None:
        if len(self.source) != self._n_lines or (self._n_lines and self.source.key(self._cursor) != self._key):
            self._sync()

    def _sync(self) -> None:
        """Adopt the source's current length, cursor key and content."""
        before, self._n_lines = self._cursor, len(self.source)
        self._cursor = self._cursor_after_change()
        self.grow_to(self._n_lines + self.N_HEADER)
        if self._follow:
            self._scroll(self.max_scroll_y)
        elif top := self.scroll_offset.y:
            self._scroll(top + self._cursor - before)
        elif self.cursor_type == "line" and before < self._page():  # the cursor was visible
            self._scroll_into_view(self._cursor)
        self.refresh_changed()
        self._report_cursor()

    def _cursor_after_change(self) -> int:
        """Return the cursor's index in the changed source: the index of its key, else the old index, clamped."""
        last = max(self._n_lines - 1, 0)
        guess = last if self._follow else min(self._cursor, last)
        if self._follow or not self._key or not self._n_lines or self.source.key(guess) == self._key:
            return guess
        index = self._find(self._key)
        return guess if index is None else index

    def _find(self, key: str) -> int | None:
        if isinstance(self.source, KeyLookup):
            return self.source.row_of(key)
        return next((index for index in range(self._n_lines) if self.source.key(index) == key), None)

    def _set_cursor(self, index: int) -> None:
        old, self._cursor = self._cursor, index
        if self.cursor_type == "line":
            super().refresh_lines(old + self.N_HEADER)
            super().refresh_lines(index + self.N_HEADER)
        else:
            self.refresh()
        self._report_cursor()

    def _report_cursor(self) -> None:
        key = self.source.key(self._cursor) if self._cursor < len(self.source) else ""
        if key != self._key:
            self._key = key
            self.post_message(self.CursorMoved(self, self._cursor, key))

    def _scroll_into_view(self, index: int) -> None:
        top, page = self.scroll_offset.y, self._page()
        if not top <= index < top + page:
            self._scroll(index if index < top else index - page + 1)

    def _keep_cursor_visible(self) -> None:
        # when the list grows, lines that lack of room had pushed out above it scroll back
        before, self._n_visible = self._n_visible, self._page()
        if self._n_visible > before and self._cursor == self.scroll_offset.y + before - 1:
            self._scroll(max(self._cursor - self._n_visible + 1, 0))
        else:
            self._scroll_into_view(self._cursor)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y:
            self.follow = False
        if self.cursor_type == "none" and self._n_lines:
            top = round(new_value)
            self._set_cursor(min(max(top, min(self._cursor, top + self._page() - 1)), self._n_lines - 1))

    def on_mount(self) -> None:
        self._sync()

    def on_resize(self) -> None:
        if self._follow:
            self._scroll(self.max_scroll_y)
        elif self.cursor_type == "line":
            self._keep_cursor_visible()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked line; a double click selects it."""
        offset = event.get_content_offset(self)
        index = self.scroll_offset.y + offset.y - self.N_HEADER if offset else -1
        if offset is None or offset.y < self.N_HEADER or index >= self._n_lines:
            return
        self.move_to(index)
        if event.chain == 2:
            self.action_choose()

    def action_move(self, by: int) -> None:
        """Move the cursor by ``by`` lines; without a visible cursor, scroll as long as there is more to show."""
        self._sync_if_stale()
        room = self.max_scroll_y - self.scroll_offset.y if by > 0 else self.scroll_offset.y
        if self.cursor_type == "none" and room:
            self._scroll(self.scroll_offset.y + by)
        else:
            self.move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move by ``by`` pages."""
        self.action_move(by * self._page())

    def action_top(self) -> None:
        """Move to the first line."""
        self.move_to(0)

    def action_bottom(self) -> None:
        """Move to the last line; also follow the end if following is enabled."""
        self.move_to(len(self.source) - 1)
        self.follow = self._can_follow

    def action_choose(self) -> None:
        """Post ``Selected`` for the line under the cursor."""
        if self._n_lines:
            self.post_message(self.Selected(self, self._cursor, self._key))
