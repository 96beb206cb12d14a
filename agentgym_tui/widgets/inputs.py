"""Where one types, however fast."""

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
    """A line in which keys act in their order.

    The framework adds a letter at once, and looks for what another key does only when all that is around the field has
    seen it: of keys that come together, as over a slow line, a letter would overtake the backspace before it.
    """

    async def on_key(self, event: events.Key) -> None:
        """Do what a key does here or on this screen; once a key before it has gone elsewhere, it is for that part."""
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
"""Characters of what is looked for."""


class SearchInput(TextField):
    """A line of words; what is pasted is from outside too, and is made safe."""

    def replace(self, text: str, start: int, end: int) -> None:
        """All that is typed or pasted comes through here."""
        super().replace(sanitize_line(text, MAX_QUERY_CHARS), start, end)

    def focus_main_widget(self) -> None:
        """To what its screen is about, at once: the next key is for that."""
        self.screen.set_focus(self.screen.query_one(self.screen.AUTO_FOCUS or "", Widget))


class FilterInput(SearchInput):
    """The words that rows of a list must hold."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filter")]

    class Closed(Message):
        """The person is done with it; ``cleared`` when nothing is looked for any more."""

        def __init__(self, cleared: bool) -> None:
            super().__init__()
            self.cleared = cleared

    def action_clear(self) -> None:
        """Look for nothing."""
        self.value = ""
        self._leave(cleared=True)

    def action_leave(self) -> None:
        """To the list, still filtered; without words as if it had never been asked."""
        self._leave(cleared=not self.value.strip())

    def _leave(self, *, cleared: bool) -> None:
        self.focus_main_widget()
        self.post_message(self.Closed(cleared))


class EntryInput(SearchInput):
    """A line that counts once it is taken."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("entry")]

    class Closed(Message):
        """The person is done with it; ``text`` is None when nothing is to change."""

        def __init__(self, text: str | None) -> None:
            super().__init__()
            self.text = text

    def prompt(self, placeholder: str) -> None:
        """Ask for something; ``placeholder`` is of our own words."""
        self.value, self.placeholder = "", placeholder
        self.screen.set_focus(self)

    def action_take(self) -> None:
        """That is it."""
        self._leave(self.value)

    def action_leave(self) -> None:
        """Nothing."""
        self._leave(None)

    def _leave(self, text: str | None) -> None:
        self.focus_main_widget()
        self.post_message(self.Closed(text))
