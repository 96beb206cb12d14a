"""Tables: lists with columns and a header, some with a chosen order. Narrow ones hide the least important columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events

from agentgym_tui.commands import bindings
from agentgym_tui.presenters.cells import (
    COLUMN_GAP,
    Column,
    ColumnLayout,
    TextSource,
    Tone,
    arrange_columns,
    fit_row,
    header_row,
    next_sorting,
    sorting_after_click,
)
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.state.query import Sorting
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.lists import LineList


class Table(LineList):
    """A list whose lines have one cell per column.

    Args:
        columns: the columns from left to right.
        source: the lines shown at first.
        can_follow: whether the user can make the list follow its end.
        can_sort: whether the table posts ``Sorted`` when the user requests an order; it does not sort its lines itself.
        sorting: the initial order; None for the default order.
        default_sorting: the default order; None if the lines are not sorted by a column.

    Attributes:
        clicked: the column of the last click; None beside the columns.
    """

    N_HEADER: ClassVar[int] = 1

    @dataclass
    class Sorted(LineList.ListMessage):
        """The user has requested another order; None requests the default order."""

        sorting: Sorting | None

    def __init__(
        self,
        columns: Sequence[Column],
        source: TextSource | None = None,
        *,
        can_follow: bool = False,
        can_sort: bool = False,
        sorting: Sorting | None = None,
        default_sorting: Sorting | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(source, id=id)
        self._can_follow, self._can_sort = can_follow, can_sort
        self._columns = tuple(columns)
        self._layout: tuple[int, ColumnLayout] = (-1, ())
        self.clicked: Column | None = None
        self.sorting, self._default_sorting = sorting, default_sorting
        if can_sort:
            add_bindings(self, bindings("table"))

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Use other columns from the next drawing on."""
        if self._columns != (columns := tuple(columns)):
            self._columns, self._layout = columns, (-1, ())

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        return header_row(self._columns, self.visible_columns(width), self.sorting or self._default_sorting)

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        return fit_row(self.source.line(index, width), self._columns, self.visible_columns(width), width)

    def visible_columns(self, width: int) -> ColumnLayout:
        """Return the columns that fit into ``width``."""
        if self._layout[0] != width:
            self._layout = (width, arrange_columns(self._columns, width))
        return self._layout[1]

    def _column_at(self, x: int) -> Column | None:
        start = 1 - self._left
        for number, size, _ in self.visible_columns(self._width - LIST_MARGIN):
            if start <= x < start + size + len(COLUMN_GAP):
                return self._columns[number]
            start += size + len(COLUMN_GAP)
        return None

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        self.clicked = self._column_at(offset.x) if offset is not None else None
        if self._can_sort and self.clicked is not None and offset is not None and offset.y == 0:
            self._sort(sorting_after_click(self.sorting, self.clicked))

    def action_sort(self) -> None:
        width = self._width - LIST_MARGIN
        visible = [self._columns[number] for number, _, _ in self.visible_columns(width)] if width else self._columns
        self._sort(next_sorting(self.sorting or self._default_sorting, visible))

    def action_reverse(self) -> None:
        if (sorting := self.sorting or self._default_sorting) is not None:
            self._sort(Sorting(sorting.column, not sorting.descending))

    def _sort(self, sorting: Sorting | None) -> None:
        self.sorting = sorting
        self.post_message(self.Sorted(self, sorting))
        self.refresh()
