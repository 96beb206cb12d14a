"""A list with columns and a header; columns that have no room are left out by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from agentgym_tui.presenters.cells import Column, Source, Tone
from agentgym_tui.presenters.column_layout import Places, arrange, fitted
from agentgym_tui.widgets.line_list import LineView


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
        self._layout: tuple[int, Places] = (-1, ())

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The titles."""
        return self._fitted([(column.title, "head") for column in self._columns], width)

    def pieces(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """The cells that have room, each as wide as its column."""
        return self._fitted(self.source.line(index, width), width)

    def arranged(self, width: int) -> Places:
        """The columns that have room in ``width``."""
        if self._layout[0] != width:
            self._layout = (width, arrange(self._columns, width))
        return self._layout[1]

    def _fitted(self, texts: Sequence[tuple[str, Tone]], width: int) -> Iterator[tuple[str, Tone]]:
        return fitted(texts, self._columns, self.arranged(width), width)
