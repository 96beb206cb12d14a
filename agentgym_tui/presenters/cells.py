"""Data model of lists and tables, independent of widgets.

- Cells and lines: ``Cell``, ``Line``, ``join_parts``.
- Sources of lines: ``TextSource``, ``KeyLookup``, ``FixedLines``.
- Cells of numbers: ``count_cell``, ``cost_cell``, ``score_cells``.
- Table columns: ``Column``, ``arrange_columns``, ``fit_row``.
- Sorting by a column: ``sorting_after_click``, ``next_sorting``, ``header_row``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_cost,
    format_count,
    format_interval,
    format_percent,
    format_reward,
)
from agentgym_tui.presenters.text_width import cut, display_width, fit, wrap_text
from agentgym_tui.safe_text import MAX_LINE_CHARS, UNSAFE_MARK, has_unsafe_chars, sanitize_line
from agentgym_tui.state.query import Sorting

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

    Attributes:
        raw: the passed text if it contains unsafe characters, for a hex dump; else "".
    """

    raw: str = ""

    def __new__(cls, text: str, tone: Tone = "plain") -> Self:
        if text.isascii() and text.isprintable() and len(text) <= MAX_LINE_CHARS:
            return super().__new__(cls, text, tone)
        shown = sanitize_line(text, MAX_LINE_CHARS)
        if not has_unsafe_chars(text[:MAX_LINE_CHARS]):
            return super().__new__(cls, shown, tone)
        cell = super().__new__(cls, f"{UNSAFE_MARK} {shown}", tone)
        cell.raw = text
        return cell

    def cut(self, width: int) -> Self:
        """Return the cell for at most ``width`` columns; an ellipsis replaces the end of its text."""
        cell = self._replace(text=cut(self.text, width))
        if self.raw:
            cell.raw = self.raw
        return cell


Line: TypeAlias = Sequence[Cell]

COLUMN_GAP: Final = "  "
SEPARATOR: Final = Cell(" · ", "dim")

UNSAFE_BADGE: Final = Cell(f"{UNSAFE_MARK} unsafe bytes", "warn")
"""Marks a text in which unsafe characters were made visible."""


class TextSource(Protocol):
    """The lines of a list or table. A widget requests only the lines that are visible."""

    def __len__(self) -> int:
        """Return the number of lines."""
        ...

    def line(self, index: int, width: int) -> Line:
        """Return one line for ``width`` terminal columns; in a table, the line has one cell per table column.

        If a line has fewer cells than the table has columns, the last cell of the line spans the remaining columns.
        """
        ...

    def key(self, index: int) -> str:
        """Return an identifier of the line that does not change when other lines are added or removed.

        The cursor stays on the line with this key; the index of the line as text unless a subclass overrides this.
        """
        return str(index)


@runtime_checkable
class KeyLookup(Protocol):
    """A ``TextSource`` that finds a line by its key without comparing all keys."""

    def row_of(self, key: str) -> int | None:
        """Return the index of the line with this key; None if there is no such line."""
        ...


@runtime_checkable
class FoldedText(Protocol):
    """A ``TextSource`` that breaks texts into lines, so that what is searched for may go on in the next line."""

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        """Return for each match of an expression the line in which it starts."""
        ...

    def found_in(self, index: int, expression: re.Pattern[str]) -> list[tuple[int, int]]:
        """Return start and end of what a line shows of each match, counted in the joined texts of its cells."""
        ...


class FixedLines(TextSource):
    """A ``TextSource`` over a sequence of finished lines; the key of a line is its index.

    Args:
        lines: the lines from top to bottom.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, index: int, width: int) -> Line:
        return self._lines[index]


class Column(NamedTuple):
    """A table column.

    Attributes:
        title: the heading.
        width: width in terminal columns; None for the one column of a table that takes the remaining space.
        right: whether the text is right-aligned.
        rank: when space is short, the column with the highest rank is dropped first; rank 0 is never dropped.
        min_width: minimum width of a column whose ``width`` is None, as long as another column can be dropped.
    """

    title: str
    width: int | None
    right: bool = False
    rank: int = 0
    min_width: int = 12


def line_width(line: Line) -> int:
    """Return the display width of a line in terminal columns."""
    return sum(display_width(cell.text) for cell in line)


class ColumnPosition(NamedTuple):
    """A visible column: its index in the table, its width, and whether its text is right-aligned."""

    column: int
    width: int
    right: bool


ColumnLayout: TypeAlias = Sequence[ColumnPosition]


def arrange_columns(columns: Sequence[Column], width: int) -> list[ColumnPosition]:
    """Return the columns that fit into ``width`` terminal columns, dropping columns with the highest rank first."""
    visible = list(enumerate(columns))
    while len(visible) > 1 and _total_width(column for _, column in visible) > width:
        last = max(visible, key=lambda item: (item[1].rank, item[0]))
        if not last[1].rank:
            break
        visible.remove(last)
    free = width - _total_width(column for _, column in visible)
    return [
        ColumnPosition(n, max(column.min_width + free, 1) if column.width is None else column.width, column.right)
        for n, column in visible
    ]


def fit_row(
    texts: Sequence[tuple[str, Tone]], columns: Sequence[Column], layout: ColumnLayout, width: int
) -> Iterator[tuple[str, Tone]]:
    """Yield one padded text per visible column.

    If there are fewer texts than columns, the last text spans the remaining columns.
    """
    last = len(texts) - 1 if 0 < len(texts) < len(columns) else -1
    between, room = "", width
    for column, size, right in layout:
        text, tone = texts[column] if column < len(texts) else ("", "plain")
        room -= len(between)
        if column == last:
            yield between + fit(text, max(room, size)), tone
            return
        yield between + fit(text, size, right=right), tone
        between, room = COLUMN_GAP, room - size


def _total_width(columns: Iterable[Column]) -> int:
    widths = [column.min_width if column.width is None else column.width for column in columns]
    return sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)


NO_VALUE: Final = Cell(UNKNOWN, "dim")
"""Stands for a number that is not known, or for none."""


def count_cell(count: int, tone: Tone = "plain") -> Cell:
    """Return a count; an en dash for 0."""
    return Cell(format_count(count), tone) if count else NO_VALUE


def cost_cell(cost: float | None, currency: str) -> Cell:
    """Return a cost; an en dash if it is not known."""
    return NO_VALUE if cost is None else Cell(format_cost(cost, currency))


def cost_part(cost: float | None, currency: str) -> Line:
    """Return a cost as a part of a line; no cell if it is not known."""
    return [] if cost is None else [Cell(f"cost {format_cost(cost, currency)}")]


def tokens_part(n_tokens: int) -> Line:
    """Return a number of tokens as a part of a line; no cell for 0."""
    return [Cell(f"{format_count(n_tokens)} tokens")] if n_tokens else []


def score_cells(
    rate: float | None, interval: tuple[float, float] | None, n_errors: int, reward: float | None
) -> list[Cell]:
    """Return success rate, its interval, number of errors and mean reward, as all tables of results show them."""
    return [
        Cell(format_percent(None if rate is None else 100 * rate)),
        Cell(format_interval(interval), "dim"),
        count_cell(n_errors, "bad"),
        Cell(format_reward(reward)),
    ]


def indented_rows(text: str, width: int) -> list[Line]:
    """Return up to four rows of a text, wrapped for ``width`` columns and indented by two."""
    return [[Cell("  "), Cell(row, "dim")] for row in wrap_text(text, max(width - 2, 20), 4)]


def filter_cells(text: str, key: str, width: int) -> Line:
    """Return the words of an active filter, cut to half of ``width`` columns, and the key that clears it."""
    words = cut(text, max(width // 2 - len(key) - 9, 8))
    return [Cell(words, "accent"), Cell(f" ({key} clears)", "dim")]


def key_line(key: str, effect: str, width: int = 0) -> Line:
    """Return the label of a key, padded to ``width`` columns, and its effect, which is our own text."""
    return [Cell(f"  {key:<{width}}  ", "accent"), Cell(effect)]


def match_cells(n_shown: int, words: str, key: str, width: int) -> Line:
    """Return the number of rows that match a filter, its words, and the key that clears it; no cell without words."""
    return [Cell(f"{n_shown:,} match ", "accent"), *filter_cells(words, key, width)] if words else []


def sorting_cells(sorting: Sorting | None) -> Line:
    """Return the chosen order of a table; no cell for the default order."""
    return [Cell(f"by {sorting.column} {sorting.sign}", "accent")] if sorting is not None else []


def join_parts(parts: Sequence[Line], width: int) -> Line:
    """Join parts of a line with separators; skip each part that does not fit into ``width`` columns.

    The first part is always included. It is cut if it alone is wider than ``width``.
    """
    shown: list[Cell] = []
    used = 0
    for part in filter(None, parts):
        more = [SEPARATOR, *part] if shown else list(part)
        needed = line_width(more)
        if shown and used + needed > width:
            continue
        shown += more
        used += needed
    return shown if used <= width else cut_line(shown, width)


def cut_line(shown: Line, width: int) -> list[Cell]:
    """Return a line that fits into ``width`` columns; its end is cut with a mark if it is too wide."""
    fitting: list[Cell] = []
    for cell in shown:
        room = width - line_width(fitting)
        if display_width(cell.text) > room:
            return [*fitting, cell.cut(room)]
        fitting.append(cell)
    return fitting


def sorting_after_click(sorting: Sorting | None, column: Column) -> Sorting | None:
    """Return the sort order after a click on a column title; None for the default order.

    The first click sorts numbers in descending and texts in ascending order. A second click on the same title
    reverses the order. A third click restores the default order.
    """
    first = Sorting(column.title, column.right)
    if sorting == first:
        return Sorting(column.title, not first.descending)
    return first if sorting is None or sorting.column != column.title else None


def next_sorting(sorting: Sorting | None, columns: Sequence[Column]) -> Sorting | None:
    """Return the sort order by the next column; after the last column, return None for the default order."""
    titles = [column.title for column in columns]
    at = titles.index(sorting.column) + 1 if sorting is not None and sorting.column in titles else 0
    return Sorting(titles[at], columns[at].right) if at < len(columns) else None


def header_row(
    columns: Sequence[Column], layout: ColumnLayout, sorting: Sorting | None = None
) -> Iterator[tuple[str, Tone]]:
    """Yield one padded title per visible column; an arrow at the title of the sort column shows the direction.

    An arrow for which the column has no room is in the gap beside it, so that no letter of the title is cut.
    """
    gap = ""
    for place, (number, size, right) in enumerate(layout):
        title, sign = columns[number].title, ""
        if sorting is not None and sorting.column == title:
            sign = sorting.sign
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
