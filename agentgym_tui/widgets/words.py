"""Where one types words to look for."""

from __future__ import annotations

from typing import Final

from textual.widgets import Input

from agentgym_tui.clean import line

MAX_WORDS: Final = 200
"""Characters of what is looked for."""


class WordsInput(Input):
    """A line of words; what is pasted is from outside too, and is made safe."""

    def replace(self, text: str, start: int, end: int) -> None:
        """All that is typed or pasted comes through here."""
        super().replace(line(text, MAX_WORDS), start, end)
