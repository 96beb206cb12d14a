"""How far apart drawings are: the more there is to do, the less often the console draws."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

DRAW_S: Final = 0.1
"""Seconds between two drawings, at least."""

MOST_DRAW_S: Final = 0.4
SHARE: Final = 5
"""A drawing comes after so many times what the console had to do since the last one, at the latest after the former."""


class Pace:
    """Of one screen, or of all.

    Args:
        now: a monotonic clock, seconds.
        worked: what the console has used of a processor, seconds.
    """

    def __init__(self, now: Callable[[], float], worked: Callable[[], float] = time.process_time) -> None:
        """The first drawing may come at once."""
        self._now, self._worked = now, worked
        self._drawn_at, self._worked_s = now() - MOST_DRAW_S, worked()

    def drawn(self) -> None:
        """There is a drawing just now."""
        self._drawn_at, self._worked_s = self._now(), self._worked()

    @property
    def wait_s(self) -> float:
        """Seconds until the next one."""
        apart = min(max(DRAW_S, SHARE * (self._worked() - self._worked_s)), MOST_DRAW_S)
        return max(self._drawn_at + apart - self._now(), 0.0)
