"""Fields of forms and prompts, whose keys act in order: texts, check marks, options; and the search in a view."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.presenters.cells import Cell, Line, TextSource, cut_middle, join_parts, shorten_environment
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.textual_compat import bindings_of_key
from agentgym_tui.widgets.lists import LineList, StaticLines


class TextField(Input):
    """An input that handles keys in order, and one that ``restrict`` does not allow, such as ``?``, as any other key.

    Textual's ``Input`` inserts a letter at once but resolves other keys only after every ancestor has seen them. When
    keys arrive together, as over a slow connection, a letter would overtake the backspace before it.
    """

    def validate_placeholder(self, text: str) -> str:
        return sanitize_line(text)

    def validate_value(self, text: str) -> str:
        return sanitize_line(text, len(text) + MAX_CHARS)

    async def on_key(self, event: events.Key) -> None:
        """Run the key's binding of this input or of the screen; if an earlier key moved the focus, forward this key."""
        if self.app.focused is not self:
            self.app.post_message(events.Key(event.key, event.character))
        elif self._is_typed(event) or not await self._run_binding(event.key):
            return
        event.stop().prevent_default()

    def _is_typed(self, event: events.Key) -> bool:
        if not event.is_printable or event.character is None:
            return False
        start, end = sorted(self.selection)
        value = self.value[:start] + event.character + self.value[end:]
        return self.restrict is None or re.fullmatch(self.restrict, value) is not None

    async def _run_binding(self, key: str) -> bool:
        for node in (self, self.screen):
            for binding in bindings_of_key(node, key):
                if not binding.priority and await self.app.run_action(binding.action, node):
                    return True
        return False


class SearchInput(TextField):
    """An input for search words; it sanitizes pasted text, which is untrusted."""

    def replace(self, text: str, start: int, end: int) -> None:
        super().replace(self._sanitized_after(self.value[: min(start, end)], text), start, end)

    def _sanitized_after(self, before: str, text: str) -> str:
        """Return ``text`` sanitized as the continuation of ``before``, whose last character may bear its first mark."""
        whole = sanitize_line(f"{before}{text[:MAX_CHARS]}", len(before) + MAX_CHARS)
        return whole[len(before) :] if whole.startswith(before) else sanitize_line(text, MAX_CHARS)

    def leave(self, closed: Message) -> None:
        """Focus the screen's main widget immediately, so that it gets the next key, and post ``closed``."""
        self.screen.set_focus(self.screen.query_one(self.screen.AUTO_FOCUS or "", Widget))
        self.post_message(closed)


class EntryInput(SearchInput):
    """A prompt, whose text has no effect until the user submits it."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("entry")]

    @dataclass
    class Closed(Message):
        text: str | None

    def prompt(self, placeholder: str, text: str) -> None:
        self.value, self.placeholder = text, placeholder
        self.screen.set_focus(self)

    def action_take(self) -> None:
        self.leave(self.Closed(self.value))

    def action_leave(self) -> None:
        self.leave(self.Closed(None))


class CheckRows(TextSource):
    def __init__(self, names: Sequence[str], chosen: set[int]) -> None:
        self._names, self._chosen = names, chosen

    def __len__(self) -> int:
        return len(self._names)

    def line(self, index: int, width: int) -> Line:
        mark = Cell("[x] ", "accent") if index in self._chosen else Cell("[ ] ", "dim")
        return [mark, Cell(cut_middle(shorten_environment(self._names[index], width - 4), width - 4))]


class CheckList(LineList):
    """Lets the user check any number of names; ``chosen`` has the indices of the checked rows."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("checks")]

    def __init__(self, names: Sequence[str], chosen: set[int], *, id: str) -> None:
        self.chosen = chosen
        super().__init__(CheckRows(names, chosen), id=id)
        self.handles_enter = False  # it leads to the button of the form

    def on_mount(self) -> None:
        self.move_to(min(self.chosen, default=0))

    def action_check(self) -> None:
        if len(self.source):
            self.chosen ^= {self.cursor}
            self.refresh()

    def action_all(self) -> None:
        """Check all rows; uncheck all rows if all are checked."""
        everything = set(range(len(self.source)))
        self.chosen ^= everything if self.chosen in (everything, set()) else everything - self.chosen
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()  # the second click of two unchecks the row, and chooses nothing
        if (row := self.row_at(event)) is not None:
            self.move_to(row)
            self.action_check()


class OptionStepper(StaticLines, can_focus=True):
    """A field that shows one of a few options; the keys left and right step through them."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("choice")]

    class Changed(Message):
        """Another option was selected."""

    def __init__(self, names: Sequence[str], index: int = 0, *, id: str) -> None:
        super().__init__(self._lines, id=id)
        self._names, self.index = names, index

    def set_options(self, names: Sequence[str]) -> None:
        if list(names) != list(self._names):
            self._names, self.index = names, 0
            self.show()

    def mark(self, index: int) -> str:
        return "▌" if self.has_focus and index == 0 else " "

    def on_click(self) -> None:
        self.action_step(1)

    def action_step(self, by: int) -> None:
        self.index = (self.index + by) % len(self._names)
        self.show()
        self.post_message(self.Changed())

    def _lines(self, width: int) -> list[Line]:
        name = Cell(cut_middle(self._names[self.index], width - 4))
        return [[name] if len(self._names) < 2 else [Cell("◂ ", "accent"), name, Cell(" ▸", "accent")]]


MAX_SHOWN: Final = 60
"""Characters shown of the words."""


class FindInput(SearchInput):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("find")]

    @dataclass
    class Left(Message):
        cancelled: bool

    def action_take(self) -> None:
        self.post_message(self.Left(False))

    def action_leave(self) -> None:
        self.post_message(self.Left(True))


class FindBar(Vertical):
    """Searches a view for words; ``rows_with`` marks an expression in its list, and returns the rows with it."""

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
        return self.has_class("-open")

    def open(self) -> None:
        self._start = self._view().cursor
        self.add_class("-open", "-typing")
        self.screen.set_focus(self._input)

    def end(self) -> None:
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
        words = Cell(f"/{self._input.value}", "accent" if n_rows else "bad").cut(MAX_SHOWN)
        hints = {"match.next": "next", "match.previous": "previous", "episode.back": "ends"}
        hint = " · ".join([f"{key(command)} {what}" for command, what in hints.items()])
        return [join_parts([[words], [Cell(count)], [Cell(hint, "dim")]], width)]


def words_expression(words: str) -> re.Pattern[str]:
    """Return an expression that finds the words; in any case, unless they have a capital letter."""
    parts = map(re.escape, words.split())
    return re.compile(r"\s+".join(parts), re.NOFLAG if words != words.lower() else re.IGNORECASE)
