"""A list with columns and a header; columns that have no room are left out by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from agentgym_tui.views.cells import Column, Source, Tone
from agentgym_tui.views.widths import fit
from agentgym_tui.widgets.lines import LineView

BETWEEN: Final = "  "


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

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The titles."""
        return self._fitted([(column.title, "head") for column in self._columns], width)

    def pieces(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """The cells that have room, each as wide as its column."""
        return self._fitted(self.source.line(index, width), width)

    def arranged(self, width: int) -> list[tuple[int, int, bool]]:
        """Number, width and alignment of the columns that have room in ``width``."""
        if self._layout[0] != width:
            self._layout = (width, arrange(self._columns, width))
        return self._layout[1]

    def _fitted(self, texts: Sequence[tuple[str, Tone]], width: int) -> Iterator[tuple[str, Tone]]:
        last = len(texts) - 1 if 0 < len(texts) < len(self._columns) else -1
        between, room = "", width
        for number, size, right in self.arranged(width):
            text, tone = texts[number] if number < len(texts) else ("", "plain")
            room -= len(between)
            if number == last:
                yield between + fit(text, max(room, size)), tone
                return
            yield between + fit(text, size, right=right), tone
            between, room = BETWEEN, room - size


def arrange(columns: Sequence[Column], width: int) -> list[tuple[int, int, bool]]:
    """Number, width and alignment of the columns that have room in ``width``; those of the highest rank go first."""
    kept = list(enumerate(columns))
    while len(kept) > 1 and _needed(column for _, column in kept) > width:
        last = max(kept, key=lambda item: (item[1].rank, item[0]))
        if not last[1].rank:
            break
        kept.remove(last)
    free = width - _needed(column for _, column in kept)
    return [
        (n, max(column.least + free, 1) if column.width is None else column.width, column.right) for n, column in kept
    ]


def _needed(columns: Iterable[Column]) -> int:
    widths = [column.least if column.width is None else column.width for column in columns]
    return sum(widths) + len(BETWEEN) * (len(widths) - 1)
