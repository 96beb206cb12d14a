"""Timers that go off."""

from __future__ import annotations

from textual.message_pump import MessagePump
from textual.timer import Timer, TimerCallback


class SureTimers(MessagePump):
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
