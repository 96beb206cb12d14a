"""What a list shows, apart from how it is drawn: cells of safe text, each with a tone, in rows that have a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from agentgym_tui.safe_text import Safe, own

Tone: TypeAlias = Literal["plain", "dim", "good", "bad", "warn", "accent", "head"]
"""What a text means, for its colour; the text itself has to say it as well."""


class Cell(NamedTuple):
    """A piece of a line."""

    text: Safe
    tone: Tone = "plain"


Line: TypeAlias = Sequence[Cell]

BADGE: Final = Cell(own("⚠ hostile bytes"), "warn")
"""Stands beside a text that had to be changed to be shown."""


class Source(Protocol):
    """The lines of a list; only those that are visible are asked for."""

    def __len__(self) -> int:
        """How many lines there are."""
        ...

    def line(self, index: int, width: int) -> Line:
        """One line, for ``width`` columns of a terminal; for a table one cell per column.

        Of fewer cells than a table has columns the last one takes the rest of the line.
        """
        ...

    def key(self, index: int) -> str:
        """What stays the same when lines are added or removed, so that a cursor can stay on its line."""
        ...


@runtime_checkable
class Placing(Protocol):
    """A ``Source`` of so many lines that looking at each of their keys takes too long."""

    def place(self, key: str) -> int | None:
        """The line of a key, None where there is none."""
        ...


class FixedLines:
    """Lines that are there already, as a ``Source``; the key is the number.

    Args:
        lines: from the top.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        """How many."""
        return len(self._lines)

    def line(self, index: int, width: int) -> Line:
        """As given."""
        return self._lines[index]

    def key(self, index: int) -> str:
        """The number."""
        return str(index)


class Column(NamedTuple):
    """A column of a table; those of the highest ``rank`` are left out first where there is no room.

    ``width`` None: takes what is left (one column of a table), ``least`` columns or more as long as others can go.
    """

    title: str
    width: int | None
    right: bool = False
    rank: int = 0
    least: int = 12
