"""A list of rows that a filter and a sort order select from all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from agentgym_tui.state.query import FieldSet, Query, Row, Searchable, word_test
from agentgym_tui.state.sorting import Rank, Sorting, sort_by_rank


class FilteredList(Searchable[Row], Generic[Row]):
    """Rows that are shown: those that match the filter, in the chosen order.

    Args:
        key_of: returns the key of a row, which stays the same when its numbers change.
        text_of: returns the text that is searched.
        ranks: function that returns the sort key of a row, by column title.
        fields: the fields that a query can name.

    Attributes:
        shown: the rows that match ``query``.
        sorting: order of the rows; None for the order in which they were given.
    """

    def __init__(
        self,
        key_of: Callable[[Row], str],
        text_of: Callable[[Row], str],
        ranks: Mapping[str, Callable[[Row], Rank | None]],
        fields: FieldSet[Row],
    ) -> None:
        self.shown: Sequence[Row] = ()
        super().__init__(fields)
        self.sorting: Sorting | None = None
        self._key_of, self._text_of, self._ranks = key_of, text_of, ranks
        self._rows: Sequence[Row] = ()
        self._places: dict[str, int] = {}

    @property
    def all_rows(self) -> Sequence[Row]:
        """All rows, also those that the filter hides."""
        return self._rows

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return len(self._rows)

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace all rows."""
        self._rows = rows
        self.show_matches()

    def parse(self, text: str) -> Query[Row]:
        return Query(self._fields, text, word_test=word_test(lambda row: self._text_of(row).casefold()))

    def sample_rows(self) -> Sequence[Row]:
        return self._rows

    def sort(self, sorting: Sorting | None) -> None:
        """Sort the rows; None restores the default order."""
        self.sorting = sorting if sorting is not None and sorting.column in self._ranks else None
        self.show_matches()

    def key(self, place: int) -> str:
        """Return the key of a shown row."""
        return self._key_of(self.shown[place])

    def place_of(self, key: str) -> int | None:
        """Return the index of the shown row with this key; None if there is none."""
        return self._places.get(key)

    def get(self, key: str) -> Row | None:
        """Return the shown row with this key; None if there is none."""
        place = self._places.get(key)
        return None if place is None else self.shown[place]

    def show_matches(self) -> None:
        rows = list(filter(self.query.matches, self._rows) if self.query else self._rows)
        if self.sorting is not None:
            rows = sort_by_rank(rows, self._ranks[self.sorting.column], descending=self.sorting.descending)
        self.shown = rows
        self._places = {self._key_of(row): place for place, row in enumerate(rows)}
