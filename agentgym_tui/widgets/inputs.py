"""Text inputs: a field that handles keys in order, a search field, and a one-line prompt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.textual_compat import bindings_of_key


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
