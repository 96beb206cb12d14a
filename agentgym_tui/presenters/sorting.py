"""The order of a table's rows by one of its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from agentgym_tui.presenters.cells import Column

Rank: TypeAlias = "tuple[float, str]"
"""A row's place by a column: by number, then by text."""

Item = TypeVar("Item")

UP, DOWN = "▲", "▼"
_MOST: Final = 10**18


class Sorting(NamedTuple):
    """By which column, by its title, and whether the largest comes first."""

    column: Annotated[str, msgspec.Meta(max_length=40)]
    descending: bool = False

    @property
    def sign(self) -> str:
        """The direction, for a title."""
        return DOWN if self.descending else UP


def number(value: float | None) -> Rank | None:
    """Of a number from outside, which may be of any size, or none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(max(-_MOST, min(value, _MOST))), ""


def text(value: str | None) -> Rank | None:
    """Of a text; an empty one is none."""
    return (0.0, value.casefold()) if value else None


def ordered(items: Iterable[Item], rank: Callable[[Item], Rank | None], *, descending: bool) -> list[Item]:
    """Items by their ranks, those without one last; equal ones stay as they were."""
    ranked = [(rank(item), item) for item in items]
    known = [(place, item) for place, item in ranked if place is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(item for _, item in known), *(item for place, item in ranked if place is None)]


def by_click(sorting: Sorting | None, column: Column) -> Sorting | None:
    """What a click on a title leads to: numbers from the largest, texts from A; the other way round; as usual."""
    first = Sorting(column.title, column.right)
    if sorting == first:
        return Sorting(column.title, not first.descending)
    return first if sorting is None or sorting.column != column.title else None


def by_next(sorting: Sorting | None, columns: Sequence[Column]) -> Sorting | None:
    """By the column after the present one; after the last one as usual."""
    titles = [column.title for column in columns]
    at = titles.index(sorting.column) + 1 if sorting is not None and sorting.column in titles else 0
    return Sorting(titles[at], columns[at].right) if at < len(columns) else None


def titled(column: Column, sorting: Sorting | None, width: int) -> str:
    """A title of at most ``width`` characters, with the direction when the rows are in its order."""
    if sorting is None or sorting.column != column.title or width < 1:
        return column.title
    return (
        f"{column.title[: width - 2]} {sorting.sign}"
        if len(column.title) + 2 <= width
        else (f"{column.title[: width - 1]}{sorting.sign}")
    )
