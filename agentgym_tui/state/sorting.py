"""Sorting of table rows by a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

Rank: TypeAlias = "tuple[float, str]"
"""Sort key of a row; two keys are compared by their numbers first, then by their texts."""

Item = TypeVar("Item")

UP, DOWN = "▲", "▼"

_MAX_RANK: Final = 10**18


class Sorting(NamedTuple):
    """Sort order of a table.

    Attributes:
        column: title of the column to sort by.
        descending: whether the row with the largest value comes first.
    """

    column: Annotated[str, msgspec.Meta(max_length=40)]
    descending: bool = False

    @property
    def sign(self) -> str:
        """Arrow that marks the sort direction in the column title."""
        return DOWN if self.descending else UP


def number_rank(value: float | None) -> Rank | None:
    """Return the sort key of an untrusted number of any size; None if the number is None or NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(max(-_MAX_RANK, min(value, _MAX_RANK))), ""


@lru_cache(maxsize=1_000)  # so that rows with the same text share it
def text_rank(value: str | None) -> Rank | None:
    """Return the sort key of a text, ignoring case; None if the text is None or empty."""
    return (0.0, value.casefold()) if value else None


def sort_by_rank(items: Iterable[Item], rank: Callable[[Item], Rank | None], *, descending: bool) -> list[Item]:
    """Return the items sorted by the sort keys that ``rank`` returns.

    Items whose sort key is None come last. Items with equal sort keys keep their order.
    """
    all_items = list(items)
    ranks = list(map(rank, all_items))
    places = [place for place, key in enumerate(ranks) if key is not None]
    places.sort(key=ranks.__getitem__, reverse=descending)  # type: ignore[arg-type]  # none of these is None
    places += (place for place, key in enumerate(ranks) if key is None)
    return [all_items[place] for place in places]
