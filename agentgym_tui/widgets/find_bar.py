"""The search in a view: a field for words, and which of the lines with them is shown."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.presenters.cells import Cell, Line, join_parts
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.lists import LineList, StaticLines

MAX_SHOWN: Final = 60
"""Number of characters shown of the words."""


class FindInput(SearchInput):
    """The field for the words."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("find")]

    @dataclass
    class Left(Message):
        """The user has left the field; ``cancelled`` if with Escape."""

        cancelled: bool

    def action_take(self) -> None:
        """Leave the field and go on with the words."""
        self.post_message(self.Left(False))

    def action_leave(self) -> None:
        """Leave the field and end the search."""
        self.post_message(self.Left(True))


class FindBar(Vertical):
    """Searches the lines of a view for words, upper and lower case alike unless a letter is upper case.

    ``rows_with`` marks an expression in the list that ``view`` returns, and returns the rows with it.
    """

    class Ended(Message):
        """The search has ended."""

    def __init__(
        self, view: Callable[[], LineList], rows_with: Callable[[re.Pattern[str] | None], list[int]], *, id: str
    ) -> None:
        super().__init__(id=id)
        self._view, self._rows_with = view, rows_with
        self._expression: re.Pattern[str] | None = None
        self._rows: list[int] = []
        self._searched: tuple[object, ...] = ()
        self._row = self._number = self._start = 0
        self._input, self._text = FindInput(placeholder="words in this view"), StaticLines(self._lines)

    def compose(self) -> ComposeResult:
        yield self._input
        yield self._text

    @property
    def is_open(self) -> bool:
        """Whether words are searched for."""
        return self.has_class("-open")

    def open(self) -> None:
        """Focus the field; the search starts at the line that the view shows first."""
        self._start = self._view().cursor
        self.add_class("-open", "-typing")
        self.screen.set_focus(self._input)

    def end(self) -> None:
        """Mark no words any more."""
        self.remove_class("-open", "-typing")
        self._input.value, self._expression = "", None
        self._rows_with(None)
        self.screen.set_focus(self._view())
        self.post_message(self.Ended())

    def go(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line with the words, from the last to the first one and back."""
        if self._state() != self._searched:
            self._search()
        if not self._rows:
            return
        if (number := self._view().found_beyond(self._row, by)) is not None:
            self._show(self._row, number)  # further words in the same line, beyond the edge of the view
            return
        before = bisect_left(self._rows, self._row) - 1
        after = bisect_right(self._rows, self._row) % len(self._rows)
        self._show(self._rows[after if by > 0 else before], 0 if by > 0 else -1)

    def search_again(self) -> None:
        """Search the view that is shown now, unless that has been done."""
        if self._state() != self._searched and self._search() and self._rows:
            self._show(self._rows[0])

    @on(FindInput.Changed)
    def _words_changed(self, event: FindInput.Changed) -> None:
        event.stop()
        self._expression = words_expression(event.value) if event.value.strip() else None
        if self._search() and self._rows:
            self._show(self._rows[bisect_left(self._rows, self._start) % len(self._rows)])

    @on(FindInput.Left)
    def _left(self, event: FindInput.Left) -> None:
        event.stop()
        if event.cancelled or self._expression is None:
            self.end()
        else:
            self.remove_class("-typing")
            self._text.show(self._lines)
            self.screen.set_focus(self._view())

    def _search(self) -> bool:
        self._rows = self._rows_with(self._expression)
        self._searched = self._state()
        self._text.show(self._lines)
        return self._expression is not None

    def _state(self) -> tuple[object, ...]:
        source = self._view().source
        return self._expression, source, len(source)

    def _show(self, row: int, number: int = 0) -> None:
        n_in_row = bisect_right(self._rows, row) - bisect_left(self._rows, row)
        self._row, self._number = row, number % max(n_in_row, 1)
        self._view().move_to(row)
        self._view().scroll_to_found(row, number)
        self._text.show(self._lines)

    def _lines(self, width: int) -> list[Line]:
        key, n_rows = keymap_of(self.app).key, len(self._rows)
        number = min(bisect_left(self._rows, self._row) + self._number + 1, n_rows)
        count = f"{format_count(number)} of {format_count(n_rows)}" if n_rows else "no line has this"
        words = f"/{sanitize_line(self._input.value, MAX_SHOWN)}"
        hints = {"match.next": "next", "match.previous": "previous", "episode.back": "ends"}
        hint = " · ".join([f"{key(command)} {what}" for command, what in hints.items()])
        return [join_parts([[Cell(words, "accent" if n_rows else "bad")], [Cell(count)], [Cell(hint, "dim")]], width)]


def words_expression(words: str) -> re.Pattern[str]:
    """Return an expression that finds the words; in any case, unless they have a capital letter."""
    parts = map(re.escape, words.split())
    return re.compile(r"\s+".join(parts), re.NOFLAG if words != words.lower() else re.IGNORECASE)
