"""Timers and background work of widgets: one-shot timers that never get lost, workers, and redraw throttling."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from textual.dom import DOMNode
from textual.message_pump import MessagePump
from textual.timer import Timer, TimerCallback

from agentgym_tui.textual_compat import never_skip

MIN_INTERVAL_S: Final = 0.1
"""Minimum time between two repaints, in seconds."""

MAX_INTERVAL_S: Final = 0.5
"""Maximum time between two repaints, in seconds."""

CPU_TIME_FACTOR: Final = 5
"""The interval is ``CPU_TIME_FACTOR`` times the CPU time used since the last repaint, within the two limits above."""


class ReliableTimers(MessagePump):
    """Mixin for a Textual class whose one-shot timers run even if they are late.

    List the mixin after the Textual class in the bases of the combined class.

    Textual skips a timer if its time has already passed when Textual checks it first. If other processes delayed the
    console for a millisecond, a timer of one millisecond would be lost, and the screen would never be drawn again.
    """

    def set_timer(
        self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None, pause: bool = False
    ) -> Timer:
        return never_skip(super().set_timer(delay, callback, name=name, pause=pause))


def start_worker(node: DOMNode, work: Callable[[], Awaitable[None]], *, group: str, exclusive: bool = False) -> None:
    """Run ``work`` in the background of ``node``.

    Args:
        node: the app, screen or widget that owns the worker.
        work: the coroutine function. It is not called if ``node`` is closing, so no coroutine is left unawaited.
        group: name of the worker group.
        exclusive: cancel the other workers of the group.
    """
    node.run_worker(cast("Any", work), group=group, exclusive=exclusive)


class RedrawThrottle:
    """Limits how often a screen is redrawn: the more CPU time the console uses, the longer the interval.

    Args:
        now: returns the time of a monotonic clock in seconds.
        cpu_time: returns the CPU time used by the process in seconds.
    """

    def __init__(self, now: Callable[[], float], cpu_time: Callable[[], float] = time.process_time) -> None:
        self._now, self._cpu_time = now, cpu_time
        self._drawn_at, self._cpu_time_s = now() - MAX_INTERVAL_S, cpu_time()  # the first repaint need not wait

    def mark_redrawn(self) -> None:
        """Start a new interval; called after each redraw."""
        self._drawn_at, self._cpu_time_s = self._now(), self._cpu_time()

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next redraw; 0 if the interval has passed."""
        interval = min(max(MIN_INTERVAL_S, CPU_TIME_FACTOR * (self._cpu_time() - self._cpu_time_s)), MAX_INTERVAL_S)
        return max(self._drawn_at + interval - self._now(), 0.0)
