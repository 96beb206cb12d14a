"""Where one types what to go to."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.widgets.words import WordsInput


class EntryInput(WordsInput):
    """A line that counts once it is taken."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("entry")]

    class Left(Message):
        """The person is done with it; ``text`` is None when nothing is to change."""

        def __init__(self, text: str | None) -> None:
            super().__init__()
            self.text = text

    def ask(self, placeholder: str) -> None:
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
        self.go_back()
        self.post_message(self.Left(text))
