"""Numbers as columns of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def columns(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """``height`` lines, the top one first, with a column for each of the newest ``width`` values, the newest right.

    The lowest value still has an eighth of a line: there is an episode. Without room there are no lines.
    """
    if width < 1 or height < 1:
        return []
    levels = [_level(value, low, high, height) for value in values[-width:]]
    below = 8 * (height - 1)
    filled = " " * below + _EIGHTHS + _EIGHTHS[-1] * below
    return ["".join([filled[level + 8 * row] for level in levels]) for row in range(height)]


def extent(values: Sequence[float]) -> tuple[float, float]:
    """The range to show: from 0 or below to 1 or above."""
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def moving_share(successes: Sequence[bool], k: int) -> list[float]:
    """For each place the share of successes among the ``k`` up to it."""
    shares: list[float] = []
    recent = 0
    for place, success in enumerate(successes):
        recent += success - (successes[place - k] if place >= k else 0)
        shares.append(recent / min(place + 1, k))
    return shares


def bar(share: float, width: int) -> str:
    """A horizontal bar that is full to ``share``, 0 to 1."""
    full = round(max(0.0, min(share, 1.0)) * width)
    return "█" * full + "░" * (width - full)


def _level(value: float, low: float, high: float, height: int) -> int:
    """Eighths of a line; halves, as a difference may leave the range of numbers."""
    span = high / 2 - low / 2
    share = (value / 2 - low / 2) / span if span > 0 else 0.0
    return max(1, min(round(share * height * 8), height * 8))
