"""Timers that go off."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from textual.dom import DOMNode
from textual.message_pump import MessagePump
from textual.timer import Timer, TimerCallback


class ReliableTimers(MessagePump):
    """What is to happen once does happen, however late; to be named behind the framework's own class.

    The framework takes a timer whose time is over when it first looks at it for one that has gone off already: held up
    for a millisecond by other processes it would forget one of a millisecond, and nothing were drawn any more.
    """

    def set_timer(
        self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None, pause: bool = False
    ) -> Timer:
        """Call something once, after ``delay`` seconds."""
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        timer._skip = False
        return timer


def start_worker(node: DOMNode, work: Callable[[], Awaitable[None]], *, group: str, exclusive: bool = False) -> None:
    """Have ``node`` do something; what never begins, as ``node`` is on its way out, leaves nothing unawaited."""
    node.run_worker(cast("Any", work), group=group, exclusive=exclusive)


MIN_INTERVAL_S: Final = 0.1
"""Seconds between two drawings, at least."""


MAX_INTERVAL_S: Final = 0.4


SHARE: Final = 5
"""A drawing comes after so many times what the console had to do since the last one, at the latest after the former."""


class RedrawThrottle:
    """Of one screen, or of all.

    Args:
        now: a monotonic clock, seconds.
        worked: what the console has used of a processor, seconds.
    """

    def __init__(self, now: Callable[[], float], worked: Callable[[], float] = time.process_time) -> None:
        """The first drawing may come at once."""
        self._now, self._worked = now, worked
        self._drawn_at, self._worked_s = now() - MAX_INTERVAL_S, worked()

    def mark_redrawn(self) -> None:
        """There is a drawing just now."""
        self._drawn_at, self._worked_s = self._now(), self._worked()

    @property
    def wait_s(self) -> float:
        """Seconds until the next one."""
        apart = min(max(MIN_INTERVAL_S, SHARE * (self._worked() - self._worked_s)), MAX_INTERVAL_S)
        return max(self._drawn_at + apart - self._now(), 0.0)
