"""A table whose rows can be put in the order of a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Column, Source, Tone
from agentgym_tui.presenters.column_layout import BETWEEN
from agentgym_tui.presenters.sorting import Sorting, by_click, by_next, titled
from agentgym_tui.presenters.text_width import EDGES
from agentgym_tui.widgets.table import Table


class Sortable(Table, inherit_bindings=False):
    """Says which order is wanted; its source has to have it.

    Args:
        columns: what they are, from left to right.
        source: what is shown at first.
        sorting: the order at first; None for the usual one.
        usual: the column of that one, if there is one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list"), *bindings("table")]

    class Sorted(Message):
        """Another order is wanted; None for the usual one."""

        def __init__(self, view: Sortable, sorting: Sorting | None) -> None:
            super().__init__()
            self.view = view
            self.sorting = sorting

        @property
        def control(self) -> Sortable:
            """The table it came from."""
            return self.view

    def __init__(
        self,
        columns: Sequence[Column],
        source: Source | None = None,
        *,
        sorting: Sorting | None = None,
        usual: Sorting | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(columns, source, id=id)
        self.sorting, self._usual = sorting, usual

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The titles, one of them with the direction."""
        widths = {number: size for number, size, _ in self.arranged(width)}
        shown = self.sorting or self._usual
        return self._fitted([(titled(c, shown, widths.get(n, 0)), "head") for n, c in enumerate(self._columns)], width)

    def on_click(self, event: events.Click) -> None:
        """On a title: sort by it."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == 0 and (column := self._column_at(offset.x)) is not None:
            self._sort(by_click(self.sorting, column))

    def action_sort(self) -> None:
        """By the next column that is visible; of a table that is about to be drawn for the first time all will be."""
        width = self._width - EDGES
        visible = [self._columns[number] for number, _, _ in self.arranged(width)] if width else self._columns
        self._sort(by_next(self.sorting or self._usual, visible))

    def action_reverse(self) -> None:
        """The other way round."""
        if (sorting := self.sorting or self._usual) is not None:
            self._sort(Sorting(sorting.column, not sorting.descending))

    def _sort(self, sorting: Sorting | None) -> None:
        self.sorting = sorting
        self.post_message(self.Sorted(self, sorting))
        self.refresh()

    def _column_at(self, x: int) -> Column | None:
        start = 1 - self._left
        for number, size, _ in self.arranged(self._width - EDGES):
            if start <= x < start + size + len(BETWEEN):
                return self._columns[number]
            start += size + len(BETWEEN)
        return None
