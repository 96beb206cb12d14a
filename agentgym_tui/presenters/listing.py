"""What is shown of a kind of row, declared once, its rows in a table, and the note below a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic

from agentgym_tui.presenters.cells import Cell, Column, Line, TextSource, Tone
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.query import FieldSet, FilteredList, Rank, Row, value_rank

if TYPE_CHECKING:
    from agentgym_tui.state.query import Completion
    from runner.query.fields import Field as QueryField
    from runner.query.fields import GetValue, Kind
    from runner.query.syntax import QueryError


@dataclass(frozen=True)
class Field(Generic[Row]):
    """What is known of a row: a column with ``width`` and, with ``kind``, a field of a query.

    Attributes:
        title: heading of the column, and name in a query unless ``name`` is given.
        width: columns; 0 for none; see ``Column``, also for ``rank`` and ``min_width``.
        value: what rows are sorted by and a query compares; a number is right-aligned unless ``right`` is False.
        help: what a query compares.
        cell: makes the cell; by default, it has the value, a text.
        values: what a query offers even if no row has it.
    """

    title: str
    width: int | None = 0
    value: GetValue[Row] | None = None
    kind: Kind | None = None
    help: str = ""
    cell: Callable[[Row], Cell] | None = None
    tone: Tone = "plain"
    name: str = ""
    right: bool | None = None
    rank: int = 0
    min_width: int = 12
    values: tuple[str, ...] = ()

    def column(self) -> Column:
        right = self.kind in ("number", "duration") if self.right is None else self.right
        return Column(self.title, self.width, right, self.rank, self.min_width)

    def make_cell(self, row: Row) -> Cell:
        if self.cell is not None:
            return self.cell(row)
        return Cell(str((self.value and self.value(row)) or UNKNOWN), self.tone)


class Listing(Generic[Row]):
    """The columns, sort orders and query fields of a kind of row.

    Args:
        key: returns what stays the same when the numbers of a row change.
        text: returns the text in which words are found.
        fields: the columns from left to right, and fields of the query alone.
    """

    def __init__(self, key: Callable[[Row], str], text: Callable[[Row], str], fields: Sequence[Field[Row]]) -> None:
        self._key, self._text = key, text
        self._shown = [field for field in fields if field.width != 0]
        self.columns = tuple(field.column() for field in self._shown)
        self._ranks = {field.title: _ranked_by(field.value) for field in self._shown if field.value}
        named = [(field.name or field.title, field) for field in fields]
        self.query_fields = FieldSet[Row](
            *((name, each.kind, each.help, each.value) for name, each in named if each.kind and each.value),
            values={name: each.values for name, each in named},
        )

    def line(self, row: Row) -> list[Cell]:
        return [field.make_cell(row) for field in self._shown]

    def rows(self) -> FilteredList[Row]:
        """Return an empty list of such rows."""
        return FilteredList(self._key, self._text, self._ranks, self.query_fields)


def _ranked_by(get: GetValue[Row]) -> Callable[[Row], Rank | None]:
    return lambda row: value_rank(get(row))


class ListingRows(TextSource, Generic[Row]):
    """The shown rows of a list, with the columns of their listing."""

    def __init__(self, listing: Listing[Row], rows: FilteredList[Row]) -> None:
        self._listing, self.rows = listing, rows

    def __len__(self) -> int:
        return len(self.rows.shown)

    def key(self, index: int) -> str:
        return self.rows.key(index)

    def row_of(self, key: str) -> int | None:
        return self.rows.place_of(key)

    def line(self, index: int, width: int) -> Line:
        return self._listing.line(self.rows.shown[index])


N_ROWS: Final = 3
"""Rows of the note."""
_MAX_ERROR: Final = 400
_HINTS: Final[Mapping[Kind, str]] = {
    "text": "with * and ? as wildcards",
    "id": "as far as you know it",
    "number": "with : > >= < <= or a range such as 3..5",
    "duration": "with : > >= < <= or a range such as 30s..2m",
    "since": "an age or a time",
    "until": "an age or a time",
    "lookup": "a word, or several in quotation marks",
}


def query_note(error: QueryError | None, completion: Completion | None, width: int) -> list[Line]:
    """Return why the query in a filter cannot be used, and what its end may become while the filter has the focus."""
    offered = [] if completion is None else _offer(completion, width)
    if error is None:
        return offered
    reason = f"✗ at {error.start + 1!s}: {masked_line(error, _MAX_ERROR)}"
    rows = wrap_text(reason, width, N_ROWS - 1 if offered else N_ROWS)
    return [*([Cell(row, "bad")] for row in rows), *offered[: N_ROWS - len(rows)]]


def describe_field(field: QueryField) -> str:
    """Return what a field is and how it is compared."""
    return f"{field.description}; {_HINTS[field.kind]}"


def syntax_rows() -> Iterator[tuple[str, str]]:
    """Yield the parts of a query beside fields, and what they select."""
    yield "word", 'rows that contain it; "several words" in quotation marks'
    yield "a:x,y", "one of several values; a:none for a missing one"
    yield "-a:x, NOT a:x", "all other rows"
    yield "a OR b, (a b)", "one of them; both"


def _offer(completion: Completion, width: int) -> list[Line]:
    field = completion.field
    about: list[Line] = []
    if field is not None:
        about = [[Cell(f"{field.name}: ", "accent"), Cell(describe_field(field), "dim")]]
    if field is not None and not completion.best:
        return about
    between = " " if field is None else "  "  # all fields of episodes fit 80 columns
    options = between.join(completion.options)
    return [*([Cell(row, "dim")] for row in wrap_text(options, width, N_ROWS - len(about)) if row), *about]
