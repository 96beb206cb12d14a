"""A long text as lines that are cleaned when they are looked at."""

from __future__ import annotations

import contextlib

import msgspec

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.safe_text import MAX_LINE, is_hostile, lines, own


class TextRows:
    """Numbered lines of an outside text; a line that cleaning changes has a warning sign for its number.

    Args:
        text: as it is.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._digits = len(str(len(self._lines)))

    def __len__(self) -> int:
        """How many lines."""
        return len(self._lines)

    def line(self, index: int, width: int) -> Line:
        """The number and the text, cut to what can be laid out."""
        raw = self._lines[index]
        (text,), changed = lines(raw[:MAX_LINE])
        sign = "⚠" if changed else index + 1
        number = Cell(own(f"{sign:>{self._digits}} "), "warn" if changed else "dim")
        if len(raw) <= MAX_LINE:
            return number, Cell(text)
        return number, Cell(text), Cell(own(f"… (+{len(raw) - MAX_LINE})"), "dim")

    def key(self, index: int) -> str:
        """The number."""
        return str(index)

    def raw(self, index: int) -> str:
        """The line as it came."""
        return self._lines[index]

    def is_hostile(self, index: int) -> bool:
        """Whether cleaning changes what is shown of the line."""
        return is_hostile(self._lines[index][:MAX_LINE])


def json_text(data: bytes) -> str:
    """JSON with indentation; what is no JSON as it is."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        data = msgspec.json.format(data, indent=2)
    return data.decode("utf-8", "replace")
