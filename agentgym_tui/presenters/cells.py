"""Lines of cells and tables, independent of widgets: text measured in columns, safe cells, columns, listings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from rich.cells import cell_len, set_cell_size, split_graphemes

from agentgym_tui.presenters.number_format import UNKNOWN, format_cost, format_count
from agentgym_tui.safe_text import (
    MAX_LINE_CHARS,
    UNSAFE_MARK,
    has_unsafe_chars,
    mask_secrets,
    masked_line,
    sanitize_line,
    sanitize_text,
)
from agentgym_tui.state.query import FieldSet, FilteredList, Row, Sorting, rank_of

if TYPE_CHECKING:
    from agentgym_tui.state.query import Completion
    from runner.query.fields import Field as QueryField
    from runner.query.fields import GetValue, Kind
    from runner.query.syntax import QueryError


LIST_MARGIN: Final = 2
"""Columns beside the text of a list: the cursor mark on the left, and a blank before the scroll bar on the right."""

ENV_WIDTH: Final = 11
"""Columns of the environment in tables of episodes and results."""
RUN_ENV_WIDTH: Final = 24
"""Columns of the environment in tables of runs."""

FOLD_WIDTH: Final = 1_000
"""Characters after which a line of a long text is broken."""

_CUT = "…"
_FAMILY: Final = "are:"
_SCENARIO: Final = "are:scenario_"
_MAX_CACHED_CHARS: Final = 512
"""Length in characters below which a cut text is cached, because the same lines are drawn repeatedly."""

_cached_head = lru_cache(1_024)(set_cell_size)


def display_width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return ``text`` in exactly ``width`` columns: padded with blanks, or cut at the end with an ellipsis."""
    if len(text) > width > 0 and text[: width + 1].isascii():
        return text[: width - 1] + _CUT
    room = width - display_width(text)
    if room >= 0:
        return " " * room + text if right else text + " " * room
    if width <= 0:
        return ""
    return (_cached_head if len(text) < _MAX_CACHED_CHARS else set_cell_size)(text, width - 1) + _CUT


def _safe_line(text: str) -> str:
    return text if text.isascii() and text.isprintable() else sanitize_line(text, len(text) * len("\\u{10ffff}"))


def cut(text: str, width: int) -> str:
    """Cut ``text`` to at most ``width`` columns; an ellipsis replaces the end of the text."""
    text = _safe_line(text)
    return text if display_width(text) <= width else fit(text, width)


def cut_start(text: str, width: int) -> str:
    """Cut ``text``, such as a path, to at most ``width`` columns; an ellipsis replaces the start of the text."""
    return cut_middle(text, width, 0)


def cut_middle(text: str, width: int, n_first: int | None = None) -> str:
    """Cut ``text`` to at most ``width`` columns; an ellipsis replaces what follows the first half, or ``n_first``.

    This keeps names apart that have a common prefix.
    """
    text = _safe_line(text)
    if display_width(text) <= width:
        return text
    if width <= 0:
        return ""
    n_first = (width - 1) // 2 if n_first is None else n_first
    start, rest = len(text), width - 1 - n_first
    while start and display_width(text[start - 1 :]) <= rest:
        start -= 1
    while start < len(text) and not display_width(text[start]):
        start += 1  # its base did not fit, and the ellipsis must not bear the mark
    return f"{set_cell_size(text, n_first)}{_CUT}{text[start:]}"


def shorten_environment(name: str, width: int) -> str:
    """Leave the common start of the names of ARE's scenarios out of a name that does not fit into ``width`` columns."""
    if display_width(name) <= width or not name.lower().startswith(_SCENARIO):
        return name
    return f"{name[: len(_FAMILY)]}{_CUT}{name[len(_SCENARIO) :]}"


def environment_text(name: str, width: int) -> str:
    return shorten_environment(name, width) or UNKNOWN


def wrap_text(text: str, width: int, limit: int) -> list[str]:
    """Wrap text into at most ``limit`` rows of ``width`` columns, of which the last may end with an ellipsis."""
    parts = sanitize_text(text).split("\n")
    rows = [line[start:stop] for line in parts for start, stop in wrap_offsets(line, width)]
    if len(rows) <= limit:
        return rows
    return [*rows[: limit - 1], cut(" ".join(rows[limit - 1 :]), width)] if limit > 0 else []


def wrap_offsets(text: str, width: int) -> list[tuple[int, int]]:
    """Return the start and stop of each row of a text; a blank at a break belongs to no row."""
    if width < 2 or display_width(text) <= width:
        return [(0, len(text))]
    return list(_narrow(text, width) if text.isascii() else _wide(text, width))


def _narrow(text: str, width: int) -> Iterator[tuple[int, int]]:
    start, end = 0, len(text)
    while end - start > width:
        stop = text.rfind(" ", start + 1, start + width + 1)
        stop = start + width if stop < 0 else stop
        yield start, stop
        start = stop + (text[stop] == " ")
    yield start, end


def _wide(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Wrap text with wide or zero-width characters; a row never ends inside a grapheme."""
    start = used = since_blank = 0
    blank = -1
    for left, _, size in split_graphemes(text)[0]:
        if text[left] == " ":
            blank, since_blank = left, -size
        if used + size > width:
            stop = blank if blank > start else left
            yield start, stop
            start, used = (blank + 1, since_blank) if stop == blank else (left, 0)
        used += size
        since_blank += size
    yield start, len(text)


# fmt: off
WorldTone: TypeAlias = Literal[
    "red", "green", "yellow", "blue", "purple", "cyan",
    "plain-shade", "dim-shade", "red-shade", "green-shade",
    "yellow-shade", "blue-shade", "purple-shade", "cyan-shade",
    "plain-solid", "dim-solid", "red-solid", "green-solid",
    "yellow-solid", "blue-solid", "purple-solid", "cyan-solid",
]
# fmt: on
"""Color and fill of a picture of an environment; see ``runner.types.cells``."""

Tone: TypeAlias = Literal["plain", "dim", "good", "bad", "warn", "accent", "head", WorldTone]
"""Meaning of a text; selects the color of the text. The words of the text must convey the same meaning."""


class _TextAndTone(NamedTuple):
    text: str
    tone: Tone = "plain"


class Cell(_TextAndTone):
    """A piece of a line: one line of safe text, and its tone, which selects the color.

    Any text may be passed: it is made safe here, before it can be measured or cut, because a visible symbol is wider
    than the control character for which it stands. A text with unsafe characters gets the mark ``⚠``.
    """

    raw: str = ""
    """The passed text if it contains unsafe characters, for a hex dump."""
    shorten: Callable[[int], str] | None = None
    """Returns what a table shows in a column too narrow for a safe text; by default its start."""

    def __new__(cls, text: str, tone: Tone = "plain") -> Self:
        if text.isascii() and text.isprintable() and len(text) <= MAX_LINE_CHARS:
            return super().__new__(cls, text, tone)
        shown = sanitize_line(text, MAX_LINE_CHARS)
        if not has_unsafe_chars(text[:MAX_LINE_CHARS]):
            return super().__new__(cls, shown, tone)
        cell = super().__new__(cls, f"{UNSAFE_MARK} {shown}", tone)
        cell.raw = text
        return cell

    def or_shorter(self, shorten: Callable[[int], str]) -> Self:
        self.shorten = shorten
        return self

    def fitted(self, width: int) -> str:
        if self.shorten is None or self.raw or display_width(self.text) <= width:
            return self.text
        return Cell(self.shorten(width)).text

    def cut(self, width: int) -> Self:
        cell = self._replace(text=cut(self.text, width))
        if self.raw:
            cell.raw = self.raw
        return cell


Line: TypeAlias = Sequence[Cell]

COLUMN_GAP: Final = "  "
SEPARATOR: Final = Cell(" · ", "dim")


class TextSource(Protocol):
    """The lines of a list or table. A widget requests only the lines that are visible."""

    def __len__(self) -> int: ...

    def line(self, index: int, width: int) -> Line:
        """Return one line for ``width`` columns; in a table, the last cell spans the columns that have no cell."""
        ...

    def key(self, index: int) -> str:
        """Return what identifies the line, on which the cursor stays when other lines are added or removed."""
        return str(index)


@runtime_checkable
class KeyLookup(Protocol):
    """A ``TextSource`` that finds a line by its key without comparing all keys."""

    def row_of(self, key: str) -> int | None: ...


@runtime_checkable
class FoldedText(Protocol):
    """A ``TextSource`` that breaks texts into lines, so that what is searched for may go on in the next line."""

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        """Return for each match the line in which it starts."""
        ...

    def found_in(self, index: int, expression: re.Pattern[str]) -> list[tuple[int, int]]:
        """Return start and end of what a line shows of each match, counted in its joined texts."""
        ...


class FixedLines(TextSource):
    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, index: int, width: int) -> Line:
        return self._lines[index]


class Column(NamedTuple):
    title: str
    width: int | None
    """Terminal columns; None for the one column of a table that takes the remaining space."""
    right: bool = False
    rank: int = 0
    """When space is short, the column with the highest rank is dropped first; rank 0 is never dropped."""
    min_width: int = 12
    """Of a column whose ``width`` is None, as long as another column can be dropped."""
    most: int = 0
    """Columns up to which its content widens it, the lowest rank first, once the column without ``width`` has its own.

    Narrow content leaves room, in which dropped columns come back. With 0, its content does not matter.
    """
    hides: bool = False
    """Whether it is left out while it has no content."""


def line_width(line: Line) -> int:
    return sum(display_width(cell.text) for cell in line)


class ColumnPosition(NamedTuple):
    """A visible column by its index in the table."""

    column: int
    width: int
    right: bool


ColumnLayout: TypeAlias = Sequence[ColumnPosition]


def arrange_columns(columns: Sequence[Column], width: int, needed: Sequence[int] = ()) -> list[ColumnPosition]:
    """Return the columns that fit into ``width`` terminal columns, dropping columns with the highest rank first.

    ``needed`` has the width of the content of each column, as far as it is known.
    """
    needs = [*needed, *[0] * (len(columns) - len(needed))]
    visible = [(n, column) for n, column in enumerate(columns) if not column.hides or needs[n]]
    dropped = []
    while len(visible) > 1 and _total_width(column for _, column in visible) > width:
        last = max(visible, key=lambda item: (item[1].rank, item[0]))
        if not last[1].rank:
            break
        visible.remove(last)
        dropped.append(last[0])
    widths = {n: _least(column, needs[n]) for n, column in visible}
    free = width - sum(widths.values()) - len(COLUMN_GAP) * (len(widths) - 1)
    for n, column in sorted(visible, key=lambda item: (item[1].width is not None, item[1].rank)):
        most = needs[n] if column.width is None else min(needs[n], column.most)
        widths[n] += (more := max(min(most - widths[n], free), 0))
        free -= more
    for n in reversed(dropped):
        least, gap = _least(columns[n], needs[n]), len(COLUMN_GAP)
        if (more := min(max(least, min(needs[n], columns[n].most)), free - gap)) < least:
            break
        widths[n], free = more, free - gap - more
    rest = next((n for n, column in visible if column.width is None), None)
    return [ColumnPosition(n, max(widths[n] + free * (n == rest), 1), columns[n].right) for n in sorted(widths)]


def _least(column: Column, needed: int) -> int:
    width = column.min_width if column.width is None else column.width
    return min(max(needed, len(column.title)), width) if needed and column.most else width


def fit_row(texts: Line, columns: Sequence[Column], layout: ColumnLayout, width: int) -> Iterator[tuple[str, Tone]]:
    """Yield one padded text per visible column; the last one of fewer texts than columns spans the rest."""
    last = len(texts) - 1 if 0 < len(texts) < len(columns) else -1
    between, room = "", width
    for column, size, right in layout:
        cell = texts[column] if column < len(texts) else _NOTHING
        room -= len(between)
        if column == last:
            yield between + fit(cell.text, max(room, size)), cell.tone
            return
        yield between + fit(cell.fitted(size), size, right=right), cell.tone
        between, room = COLUMN_GAP, room - size


def _total_width(columns: Iterable[Column]) -> int:
    widths = [column.min_width if column.width is None else column.width for column in columns]
    return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)


_NOTHING: Final = Cell("")
NO_VALUE: Final = Cell(UNKNOWN, "dim")


def environment_cell(name: str, mark: str = "", tone: Tone = "plain") -> Cell:
    """Return a cell that is shortened as its column needs; ``mark`` follows the name, so that it does not move that."""

    def shown(width: int) -> str:
        room = max(width - display_width(mark), 0)
        return f"{cut(environment_text(name, room), room)}{mark}"

    return Cell(f"{name or UNKNOWN}{mark}", tone).or_shorter(shown)


def count_cell(count: int, tone: Tone = "plain") -> Cell:
    return Cell(format_count(count), tone) if count else NO_VALUE


def cost_cell(cost: float | None, currency: str) -> Cell:
    return NO_VALUE if cost is None else Cell(format_cost(cost, currency))


def cost_part(cost: float | None, currency: str) -> Line:
    return [] if cost is None else [Cell(f"cost {format_cost(cost, currency)}")]


def tokens_part(n_tokens: int) -> Line:
    return [Cell(f"{format_count(n_tokens)} tokens")] if n_tokens else []


def indented_rows(text: str, width: int) -> list[Line]:
    return [[Cell("  "), Cell(row, "dim")] for row in wrap_text(text, max(width - 2, 20), 4)]


def filter_cells(text: str, key: str, width: int, effect: str = "clears") -> Line:
    hint = f" ({key} {effect})"
    return [Cell(mask_secrets(text), "accent").cut(max(width // 2 - len(hint), 8)), Cell(hint, "dim")]


def key_line(key: str, effect: str, width: int = 0) -> Line:
    return [Cell(f"  {key:<{width}}  ", "accent"), Cell(effect)]


def match_cells(n_shown: int, words: str, key: str, width: int, effect: str = "clears") -> Line:
    return [Cell(f"{n_shown:,} match ", "accent"), *filter_cells(words, key, width, effect)] if words else []


def sorting_cells(sorting: Sorting | None) -> Line:
    return [Cell(f"by {sorting.column} {sorting.sign}", "accent")] if sorting is not None else []


def join_parts(parts: Sequence[Line], width: int) -> Line:
    """Join parts of a line with separators; skip each part that does not fit. The first part is cut if need be."""
    shown: list[Cell] = []
    used = 0
    for part in filter(None, parts):
        more = [SEPARATOR, *part] if shown else list(part)
        needed = line_width(more)
        if not shown or used + needed <= width:
            shown += more
            used += needed
    return cut_line(shown, width)


def cut_line(shown: Line, width: int) -> list[Cell]:
    """Return a line that fits into ``width`` columns; an ellipsis replaces its end."""
    fitting: list[Cell] = []
    for cell in shown:
        room = width - line_width(fitting)
        if display_width(cell.text) > room:
            return [*fitting, cell.cut(room)]
        fitting.append(cell)
    return fitting


def sorting_after_click(sorting: Sorting | None, column: Column) -> Sorting | None:
    """Return the order after a click on a title: numbers descending, texts ascending; reversed; the default."""
    first = Sorting(column.title, column.right)
    if sorting == first:
        return Sorting(column.title, not first.descending)
    return first if sorting is None or sorting.column != column.title else None


def next_sorting(sorting: Sorting | None, columns: Sequence[Column]) -> Sorting | None:
    """Return the order by the next column; after the last one, None for the default order."""
    titles = [column.title for column in columns]
    at = titles.index(sorting.column) + 1 if sorting is not None and sorting.column in titles else 0
    return Sorting(titles[at], columns[at].right) if at < len(columns) else None


def header_row(
    columns: Sequence[Column], layout: ColumnLayout, sorting: Sorting | None = None
) -> Iterator[tuple[str, Tone]]:
    """Yield the padded titles, one with the arrow of the order; without room, it is in the gap beside the column."""
    gap = ""
    for place, (number, size, right) in enumerate(layout):
        title = columns[number].title
        sign = sorting.sign if sorting is not None and sorting.column == title else ""
        needs_gap = bool(sign) and len(title) >= size
        in_left_gap = needs_gap and bool(gap) and (right or place == len(layout) - 1)
        if in_left_gap:
            yield gap[1:] + sign + fit(title, size, right=right), "head"
        elif needs_gap:
            yield gap + fit(title, size) + sign, "head"
        else:
            separator = " " if len(title) + 2 <= size else ""
            yield gap + fit(title + separator * bool(sign) + sign, size, right=right), "head"
        gap = COLUMN_GAP[1:] if needs_gap and not in_left_gap else COLUMN_GAP


@dataclass(frozen=True)
class Field(Generic[Row]):
    """What is known of a row: a column with ``width`` (see ``Column``) and, with ``kind``, a field of a query."""

    title: str
    width: int | None = 0
    value: GetValue[Row] | None = None
    """What rows are sorted by and a query compares; the text of the column without ``cell``."""
    kind: Kind | None = None
    help: str = ""
    cell: Callable[[Row], Cell] | None = None
    tone: Tone = "plain"
    name: str = ""
    """Name in a query, unless it is the title."""
    right: bool | None = None
    rank: int = 0
    min_width: int = 12
    most: int = 0
    hides: bool = False
    values: tuple[str, ...] = ()
    """What a query offers even if no row has it."""

    def column(self) -> Column:
        right = self.kind in ("number", "duration") if self.right is None else self.right
        return Column(self.title, self.width, right, self.rank, self.min_width, self.most, self.hides)

    def make_cell(self, row: Row) -> Cell:
        if self.cell is not None:
            return self.cell(row)
        return Cell(str((self.value and self.value(row)) or UNKNOWN), self.tone)


class Listing(Generic[Row]):
    """The columns, orders and query fields of a kind of row; ``text`` returns the text in which words are found."""

    def __init__(self, key: Callable[[Row], str], text: Callable[[Row], str], fields: Sequence[Field[Row]]) -> None:
        self._key, self._text = key, text
        self._shown = [field for field in fields if field.width != 0]
        self.columns = tuple(field.column() for field in self._shown)
        self._ranks = {field.title: partial(rank_of, field.value) for field in self._shown if field.value}
        named = [(field.name or field.title, field) for field in fields]
        self.query_fields = FieldSet[Row](
            *((name, each.kind, each.help, each.value) for name, each in named if each.kind and each.value),
            values={name: each.values for name, each in named},
        )

    def line(self, row: Row) -> list[Cell]:
        return [field.make_cell(row) for field in self._shown]

    def rows(self) -> FilteredList[Row]:
        return FilteredList(self._key, self._text, self._ranks, self.query_fields)


class ListingRows(TextSource, Generic[Row]):
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
    """Return why the query in a filter cannot be used, and what its end may become."""
    offered = [] if completion is None else _offer(completion, width)
    if error is None:
        return offered
    reason = f"✗ at character {error.start + 1}: {masked_line(error, _MAX_ERROR)}"
    rows = wrap_text(reason, width, N_ROWS - 1 if offered else N_ROWS)
    return [*([Cell(row, "bad")] for row in rows), *offered[: N_ROWS - len(rows)]]


def describe_field(field: QueryField) -> str:
    return f"{field.description}; {_HINTS[field.kind]}"


SYNTAX_ROWS: Final = [
    ("word", 'rows that contain it; "several words" in quotation marks'),
    ("a:x,y", "one of several values; a:none for a missing one"),
    ("-a:x, NOT a:x", "all other rows"),
    ("a OR b, (a b)", "one of them; both"),
]
"""The parts of a query beside fields, and what they select."""


def _offer(completion: Completion, width: int) -> list[Line]:
    if (field := completion.field) is None:
        about, options = [], mask_secrets(" ".join(completion.options))  # all fields of episodes fit 80 columns
    else:
        about = [[Cell(f"{field.name}: ", "accent"), Cell(describe_field(field), "dim")]]
        options = mask_secrets("  ".join(completion.options)) if completion.best else ""
    return [*([Cell(row, "dim")] for row in wrap_text(options, width, N_ROWS - len(about)) if row), *about]
