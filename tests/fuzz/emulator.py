"""A terminal emulator that knows which cells belong to a widget, and the output of an app for it.

Each character has its own width, as in most terminals; a few draw some sequences of characters in fewer columns.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import pyte
from pyte.screens import Char
from rich.cells import get_character_cell_size
from textual.drivers.headless_driver import HeadlessDriver
from wcwidth import wcwidth

from tests.support.escapes import foreign_characters, mark_stacks

GUARD: Final = "#"
"""What every cell outside of the widgets shows."""

_REGIONAL_INDICATORS: Final = range(0x1F1E6, 0x1F200)


class Emulator(pyte.Screen):
    """A screen whose cells can be compared; characters without a width join the cell before them."""

    def draw(self, data: str) -> None:
        for char in data:
            width = character_width(char)
            if width == 0:
                self._join(char)
                continue
            if self.cursor.x + width > self.columns:
                self.carriage_return()
                self.linefeed()
            line, x = self.buffer[self.cursor.y], self.cursor.x
            if not line[x].data and x:
                line[x - 1] = line[x - 1]._replace(data=" ")  # the first half of a character whose second is replaced
            line[x] = Char(char)
            if width == 2:
                line[x + 1] = Char("")
            elif x + 1 < self.columns and not line[x + 1].data:
                line[x + 1] = Char(" ")
            self.cursor.x = x + width

    def _join(self, char: str) -> None:
        line, x = self.buffer[self.cursor.y], max(self.cursor.x - 1, 0)
        x -= not line[x].data and x > 0
        line[x] = Char(line[x].data + char)

    def row(self, y: int) -> str:
        line = self.buffer[y]
        return "".join(line[x].data for x in range(self.columns))

    def cell(self, x: int, y: int) -> str:
        return str(self.buffer[y][x].data)

    def check_cells(self) -> None:
        """Check that no cell shows a control, invisible or private-use character, or a stack of marks."""
        for y in range(self.lines):
            row = self.row(y)
            if not row.isascii():
                assert foreign_characters(row) == [], ascii(row)
                assert mark_stacks(row) == [], ascii(row)


def character_width(char: str) -> int:
    if char.isascii():
        return 1
    if ord(char) in _REGIONAL_INDICATORS:
        return 1
    if unicodedata.category(char) == "Cn":  # terminals know different versions of Unicode
        return get_character_cell_size(char)
    return max(wcwidth(char), 0)


class RecordingDriver(HeadlessDriver):
    """A driver that keeps what the app writes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Textual's arguments
        super().__init__(*args, **kwargs)
        self.output: list[str] = []

    @property
    def is_headless(self) -> bool:
        """Return False, because Textual draws nothing without a terminal."""
        return False

    def write(self, data: str) -> None:
        self.output.append(data)

    def flush(self) -> None:
        pass

    def take(self) -> str:
        """Return the output since the last call."""
        output = "".join(self.output)
        self.output.clear()
        return output
