"""Text inputs: a field that keeps keys in order, search words, the filter of a list, and a one-line prompt."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.safe_text import sanitize_line


class TextField(Input):
    """An input that handles keys in the order they were pressed.

    Textual's ``Input`` inserts a letter at once but resolves other keys only after every ancestor has seen them. When
    keys arrive together, as over a slow connection, a letter would overtake the backspace before it.
    """

    async def on_key(self, event: events.Key) -> None:
        """Run the key's binding here or on the screen; forward the key if an earlier one has moved the focus."""
        if self.app.focused is not self:
            self.app.post_message(events.Key(event.key, event.character))
        elif event.is_printable or not await self._run_binding(event.key):
            return
        event.stop().prevent_default()

    async def _run_binding(self, key: str) -> bool:
        for node in (self, self.screen):
            for binding in node._bindings.key_to_bindings.get(key, ()):
                if not binding.priority and await self.app.run_action(binding.action, node):
                    return True
        return False


MAX_QUERY_CHARS: Final = 200
"""Characters in a search text."""


class SearchInput(TextField):
    """A line of search words; pasted text is untrusted and is made safe."""

    def replace(self, text: str, start: int, end: int) -> None:
        """Insert ``text`` after making it safe; all typed and pasted text comes through here."""
        super().replace(sanitize_line(text, MAX_QUERY_CHARS), start, end)

    def focus_main_widget(self) -> None:
        """Focus the screen's main widget at once, so that the next key goes there."""
        self.screen.set_focus(self.screen.query_one(self.screen.AUTO_FOCUS or "", Widget))


class FilterInput(SearchInput):
    """The words that the rows of a list must contain."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filter")]

    class Closed(Message):
        """The user has left the filter; ``cleared`` if no words remain."""

        def __init__(self, cleared: bool) -> None:
            super().__init__()
            self.cleared = cleared

    def action_clear(self) -> None:
        """Clear the filter and leave it."""
        self.value = ""
        self._leave(cleared=True)

    def action_leave(self) -> None:
        """Return to the list and keep the filter; without words the filter is closed."""
        self._leave(cleared=not self.value.strip())

    def _leave(self, *, cleared: bool) -> None:
        self.focus_main_widget()
        self.post_message(self.Closed(cleared))


class EntryInput(SearchInput):
    """A one-line prompt whose text counts once it is submitted."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("entry")]

    class Closed(Message):
        """The prompt was closed; ``text`` is None if it was canceled."""

        def __init__(self, text: str | None) -> None:
            super().__init__()
            self.text = text

    def prompt(self, placeholder: str) -> None:
        """Open the prompt; ``placeholder`` is trusted text."""
        self.value, self.placeholder = "", placeholder
        self.screen.set_focus(self)

    def action_take(self) -> None:
        """Submit the text."""
        self._leave(self.value)

    def action_leave(self) -> None:
        """Cancel the prompt."""
        self._leave(None)

    def _leave(self, text: str | None) -> None:
        self.focus_main_widget()
        self.post_message(self.Closed(text))
