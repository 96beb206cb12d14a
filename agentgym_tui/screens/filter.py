"""Where one types what to look for."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.widgets.words import WordsInput


class FilterInput(WordsInput):
    """The words that rows of a list must hold."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filter")]

    class Left(Message):
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
        self.go_back()
        self.post_message(self.Left(cleared))
