"""A list of rows that a filter and a sort order select from all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from agentgym_tui.state.query import FieldSet, Query, word_test
from agentgym_tui.state.sorting import Rank, Sorting, sort_by_rank

if TYPE_CHECKING:
    from runner.query.fields import Field
    from runner.query.syntax import QueryError

Row = TypeVar("Row")


class FilteredList(Generic[Row]):
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
        self.query: Query[Row] = Query(fields)
        self.sorting: Sorting | None = None
        self._key_of, self._text_of, self._ranks, self._fields = key_of, text_of, ranks, fields
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
        self._arrange()

    def search(self, text: str) -> QueryError | None:
        """Show only the rows that match a query; return its error, with which the shown rows stay."""
        query = Query(self._fields, text, word_test=word_test(lambda row: self._text_of(row).casefold()))
        if query.error is None:
            self.query = query
            self._arrange()
        return query.error

    @property
    def query_text(self) -> str:
        """The query that the shown rows match."""
        return self.query.text

    @property
    def query_fields(self) -> Mapping[str, Field]:
        """The fields that a query can name, by name."""
        return self._fields.fields

    def values_of(self, field: str) -> list[str]:
        """Return the values that a field has in all rows, the most frequent first."""
        return self._fields.values_of(field, self._rows)

    def sort(self, sorting: Sorting | None) -> None:
        """Sort the rows; None restores the default order."""
        self.sorting = sorting if sorting is not None and sorting.column in self._ranks else None
        self._arrange()

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

    def _arrange(self) -> None:
        rows = [row for row in self._rows if self.query.matches(row)]
        if self.sorting is not None:
            rows = sort_by_rank(rows, self._ranks[self.sorting.column], descending=self.sorting.descending)
        self.shown = rows
        self._places = {self.key(place): place for place in range(len(rows))}
