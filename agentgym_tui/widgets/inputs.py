"""Fields of forms and prompts: texts whose keys act in order, lists with check marks, choices of a few options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from agentgym_tui.commands import bindings
from agentgym_tui.presenters.cells import Cell, Line, TextSource
from agentgym_tui.presenters.text_width import cut_middle, shorten_environment
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.textual_compat import bindings_of_key
from agentgym_tui.widgets.lists import LineList, StaticLines


class TextField(Input):
    """An input that handles keys in the order in which they were pressed.

    Textual's ``Input`` inserts a letter at once but resolves other keys only after every ancestor has seen them. When
    keys arrive together, as over a slow connection, a letter would overtake the backspace before it.

    A character that ``restrict`` does not allow is a key like any other, so that ``?`` opens the help in a field of
    numbers.
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
    """A one-line prompt; its text has no effect until the user submits it."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("entry")]

    @dataclass
    class Closed(Message):
        """The prompt was closed; ``text`` is None if it was cancelled."""

        text: str | None

    def prompt(self, placeholder: str) -> None:
        """Open the prompt; it is empty but for the ``placeholder``."""
        self.value, self.placeholder = "", placeholder
        self.screen.set_focus(self)

    def action_take(self) -> None:
        """Submit the text."""
        self.leave(self.Closed(self.value))

    def action_leave(self) -> None:
        """Cancel the prompt."""
        self.leave(self.Closed(None))


class CheckRows(TextSource):
    """Rows that each consist of a check mark and a name; ``chosen``: indices of the checked rows."""

    def __init__(self, names: Sequence[str], chosen: set[int]) -> None:
        self._names, self._chosen = names, chosen

    def __len__(self) -> int:
        return len(self._names)

    def line(self, index: int, width: int) -> Line:
        mark = Cell("[x] ", "accent") if index in self._chosen else Cell("[ ] ", "dim")
        return [mark, Cell(cut_middle(shorten_environment(self._names[index], width - 4), width - 4))]


class CheckList(LineList):
    """Lets the user check any number of names; ``chosen``: indices of the rows that are checked at first."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("checks")]

    def __init__(self, names: Sequence[str], chosen: set[int], *, id: str) -> None:
        self.chosen = chosen
        super().__init__(CheckRows(names, chosen), id=id)

    def on_mount(self) -> None:
        super().on_mount()
        self.move_to(min(self.chosen, default=0))

    def action_check(self) -> None:
        """Toggle the row under the cursor."""
        if len(self.source):
            self.chosen ^= {self.cursor}
            self.refresh()

    def action_all(self) -> None:
        """Check all rows; uncheck all rows if all are checked."""
        everything = set(range(len(self.source)))
        self.chosen ^= everything if self.chosen in (everything, set()) else everything - self.chosen
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.chain == 1:
            super().on_click(event)
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
        """Replace the options; if the new options differ from the old options, select the first option."""
        if list(names) != list(self._names):
            self._names, self.index = names, 0
            self.show()

    def mark(self, index: int) -> str:
        return "▌" if self.has_focus and index == 0 else " "

    def on_click(self) -> None:
        """Select the next option."""
        self.action_step(1)

    def action_step(self, by: int) -> None:
        """Select the option ``by`` positions further, wrapping around."""
        self.index = (self.index + by) % len(self._names)
        self.show()
        self.post_message(self.Changed())

    def _lines(self, width: int) -> list[Line]:
        name = Cell(cut_middle(self._names[self.index], width - 4))
        return [[name] if len(self._names) < 2 else [Cell("◂ ", "accent"), name, Cell(" ▸", "accent")]]
