"""Where one types what to look for."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from agentgym_tui.clean import line

MAX_WORDS = 200
"""Characters of what is looked for."""


class FilterInput(Input):
    """A line of words; what is pasted is from outside too, and is made safe."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "Clear", id="filter.clear"),
        Binding("down,tab", "leave", "List", show=False, id="filter.leave"),
    ]

    class Left(Message):
        """The person is done with it; ``cleared`` when nothing is looked for any more."""

        def __init__(self, cleared: bool) -> None:
            super().__init__()
            self.cleared = cleared

    def replace(self, text: str, start: int, end: int) -> None:
        """All that is typed or pasted comes through here."""
        super().replace(line(text, MAX_WORDS), start, end)

    def action_clear(self) -> None:
        """Look for nothing."""
        self.value = ""
        self.post_message(self.Left(True))

    def action_leave(self) -> None:
        """To the list, still filtered."""
        self.post_message(self.Left(False))

    async def action_submit(self) -> None:
        """As for Enter."""
        self.action_leave()
