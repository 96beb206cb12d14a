"""Tables: lists with columns and a header, plain or sortable. Narrow tables hide their least important columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from agentgym_tui.commands.keymap import bindings
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
from agentgym_tui.widgets.line_list import LineList


class Table(LineList):
    """A list whose lines have one cell per column.

    Args:
        columns: the columns from left to right.
        source: the lines shown at first.
        can_follow: whether the user can make the list follow its end.
    """

    N_HEADER: ClassVar[int] = 1

    def __init__(
        self,
        columns: Sequence[Column],
        source: TextSource | None = None,
        *,
        can_follow: bool = False,
        id: str | None = None,
    ) -> None:
        super().__init__(source, id=id)
        self._can_follow = can_follow
        self._columns = tuple(columns)
        self._layout: tuple[int, ColumnLayout] = (-1, ())

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Use other columns from the next drawing on."""
        if self._columns != (columns := tuple(columns)):
            self._columns, self._layout = columns, (-1, ())

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        return header_row(self._columns, self.visible_columns(width))

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        return self._fit_cells(self.source.line(index, width), width)

    def visible_columns(self, width: int) -> ColumnLayout:
        """Return the columns that fit into ``width``."""
        if self._layout[0] != width:
            self._layout = (width, arrange_columns(self._columns, width))
        return self._layout[1]

    def _fit_cells(self, texts: Sequence[tuple[str, Tone]], width: int) -> Iterator[tuple[str, Tone]]:
        return fit_row(texts, self._columns, self.visible_columns(width), width)


class SortableTable(Table, inherit_bindings=False):
    """A table that posts ``Sorted`` when the user requests a sort order; it does not sort its lines itself.

    Args:
        columns: the columns from left to right.
        source: the lines shown at first.
        sorting: the initial sort order; None for the default order.
        default_sorting: the default sort order; None if the lines are not sorted by a column.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list"), *bindings("table")]

    @dataclass
    class Sorted(LineList.ListMessage):
        """The user has requested another sort order; None requests the default order."""

        sorting: Sorting | None

    def __init__(
        self,
        columns: Sequence[Column],
        source: TextSource | None = None,
        *,
        sorting: Sorting | None = None,
        default_sorting: Sorting | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(columns, source, id=id)
        self.sorting, self._default_sorting = sorting, default_sorting

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        shown = self.sorting or self._default_sorting
        return header_row(self._columns, self.visible_columns(width), shown)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == 0 and (column := self._column_at(offset.x)) is not None:
            self._sort(sorting_after_click(self.sorting, column))

    def action_sort(self) -> None:
        """Request sorting by the next visible column; until the first layout, all columns count as visible."""
        width = self._width - LIST_MARGIN
        visible = [self._columns[number] for number, _, _ in self.visible_columns(width)] if width else self._columns
        self._sort(next_sorting(self.sorting or self._default_sorting, visible))

    def action_reverse(self) -> None:
        """Request the reverse of the current sort order."""
        if (sorting := self.sorting or self._default_sorting) is not None:
            self._sort(Sorting(sorting.column, not sorting.descending))

    def _sort(self, sorting: Sorting | None) -> None:
        self.sorting = sorting
        self.post_message(self.Sorted(self, sorting))
        self.refresh()

    def _column_at(self, x: int) -> Column | None:
        start = 1 - self._left
        for number, size, _ in self.visible_columns(self._width - LIST_MARGIN):
            if start <= x < start + size + len(COLUMN_GAP):
                return self._columns[number]
            start += size + len(COLUMN_GAP)
        return None
