"""Where one types words to look for."""

from __future__ import annotations

from typing import Final

from textual.widget import Widget

from agentgym_tui.safe_text import line
from agentgym_tui.widgets.inputs import TextField

MAX_WORDS: Final = 200
"""Characters of what is looked for."""


class WordsInput(TextField):
    """A line of words; what is pasted is from outside too, and is made safe."""

    def replace(self, text: str, start: int, end: int) -> None:
        """All that is typed or pasted comes through here."""
        super().replace(line(text, MAX_WORDS), start, end)

    def go_back(self) -> None:
        """To what its screen is about, at once: the next key is for that."""
        self.screen.set_focus(self.screen.query_one(self.screen.AUTO_FOCUS or "", Widget))
