"""Sorting of table rows by a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

Rank: TypeAlias = "tuple[float, str]"
"""Sort key of a row: compared by number, then by text."""

Item = TypeVar("Item")

UP, DOWN = "▲", "▼"

_MAX_RANK: Final = 10**18


class Sorting(NamedTuple):
    """Column title to sort by, and whether the largest comes first."""

    column: Annotated[str, msgspec.Meta(max_length=40)]
    descending: bool = False

    @property
    def sign(self) -> str:
        """Arrow for the column title."""
        return DOWN if self.descending else UP


def number_rank(value: float | None) -> Rank | None:
    """Return the sort key of an untrusted number of any size; None for no number and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(max(-_MAX_RANK, min(value, _MAX_RANK))), ""


def text_rank(value: str | None) -> Rank | None:
    """Return the sort key of a text; None for an empty one."""
    return (0.0, value.casefold()) if value else None


def sort_by_rank(items: Iterable[Item], rank: Callable[[Item], Rank | None], *, descending: bool) -> list[Item]:
    """Sort items by their sort keys; items without one come last, equal items keep their order."""
    ranked = [(rank(item), item) for item in items]
    sortable = [(key, item) for key, item in ranked if key is not None]
    sortable.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(item for _, item in sortable), *(item for key, item in ranked if key is None)]
