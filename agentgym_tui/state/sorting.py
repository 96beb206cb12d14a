"""TODO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

Rank: TypeAlias = "tuple[float, str]"
"""A row's place by a column: by number, then by text."""


Item = TypeVar("Item")


UP, DOWN = "▲", "▼"


_MAX_RANK: Final = 10**18


class Sorting(NamedTuple):
    """By which column, by its title, and whether the largest comes first."""

    column: Annotated[str, msgspec.Meta(max_length=40)]
    descending: bool = False

    @property
    def sign(self) -> str:
        """The direction, for a title."""
        return DOWN if self.descending else UP


def number_rank(value: float | None) -> Rank | None:
    """Of a number from outside, which may be of any size, or none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(max(-_MAX_RANK, min(value, _MAX_RANK))), ""


def text_rank(value: str | None) -> Rank | None:
    """Of a text; an empty one is none."""
    return (0.0, value.casefold()) if value else None


def sort_by_rank(items: Iterable[Item], rank: Callable[[Item], Rank | None], *, descending: bool) -> list[Item]:
    """Items by their ranks, those without one last; equal ones stay as they were."""
    ranked = [(rank(item), item) for item in items]
    known = [(place, item) for place, item in ranked if place is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(item for _, item in known), *(item for place, item in ranked if place is None)]
