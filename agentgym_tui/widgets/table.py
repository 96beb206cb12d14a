"""A list with columns and a header; columns that have no room are left out by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from agentgym_tui.views.cells import Column, Source, Tone
from agentgym_tui.widgets.lines import LineView
from agentgym_tui.widgets.widths import fit

MIN_REST: Final = 12
"""Columns of the terminal that the column without a width gets at least, before others are left out."""

_BETWEEN: Final = "  "


class Table(LineView):
    """A list whose lines have one cell per column.

    Args:
        columns: what they are, from left to right.
        source: what is shown at first.
    """

    N_HEADER: ClassVar[int] = 1

    def __init__(
        self,
        columns: Sequence[Column],
        source: Source | None = None,
        *,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(source, name=name, id=id, classes=classes)
        self._columns = tuple(columns)
        self._layout: tuple[int, list[tuple[int, int, bool]]] = (-1, [])

    @property
    def columns(self) -> Sequence[Column]:
        """What the cells of a line are."""
        return self._columns

    @columns.setter
    def columns(self, columns: Sequence[Column]) -> None:
        self._columns, self._layout = tuple(columns), (-1, [])
        self.refresh()

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The titles."""
        return self._fitted([(column.title, "head") for column in self._columns], width)

    def pieces(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """The cells that have room, each as wide as its column."""
        return self._fitted(self.source.line(index, width), width)

    def _fitted(self, texts: Sequence[tuple[str, Tone]], width: int) -> Iterator[tuple[str, Tone]]:
        if self._layout[0] != width:
            self._layout = (width, arrange(self._columns, width))
        between = ""
        for number, size, right in self._layout[1]:
            text, tone = texts[number] if number < len(texts) else ("", "plain")
            yield between + fit(text, size, right=right), tone
            between = _BETWEEN


def arrange(columns: Sequence[Column], width: int) -> list[tuple[int, int, bool]]:
    """Number, width and alignment of the columns that have room in ``width``; those of the highest rank go first."""
    kept = list(enumerate(columns))
    while len(kept) > 1 and _needed(column for _, column in kept) > width:
        last = max(kept, key=lambda item: (item[1].rank, item[0]))
        if not last[1].rank:
            break
        kept.remove(last)
    rest = width - _needed(column for _, column in kept) + MIN_REST
    return [(number, max(rest, 1) if column.width is None else column.width, column.right) for number, column in kept]


def _needed(columns: Iterable[Column]) -> int:
    widths = [MIN_REST if column.width is None else column.width for column in columns]
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)
