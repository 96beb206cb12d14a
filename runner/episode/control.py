"""Commands to a running episode, given from any thread and obeyed at step boundaries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from runner.types import Outcome
from runner.util.clock import Clock


class EpisodeControl:
    """A thread-safe mailbox: cancel, pause, resume and single-step of one episode.

    The episode awaits ``boundary`` between two steps; everyone else only gives commands. Seconds spent waiting are
    counted, because a paused episode uses up none of its time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """Start out running; ``clock`` measures the pauses."""
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._cancelled: Outcome | None = None
        self._paused = False
        self._permits = 0
        self._paused_s = 0.0
        self._waiting_since: float | None = None
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.settled: Outcome | None = None
        """How the episode ended once that is certain, though cleaning up may still take time."""

    @property
    def cancelled(self) -> Outcome | None:
        """The outcome that the episode was told to stop with, None while it may go on."""
        return self._cancelled

    @property
    def paused(self) -> bool:
        """Whether the episode is to wait at its next step boundary."""
        return self._paused

    def cancel(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Stop at the next step boundary with this outcome; also ends a pause."""
        with self._lock:
            self._cancelled = outcome
            self._notify()

    def pause(self) -> None:
        """Wait at the next step boundary."""
        with self._lock:
            self._paused = True

    def resume(self) -> None:
        """Go on after a pause."""
        with self._lock:
            self._paused, self._permits = False, 0
            self._notify()

    def step(self) -> None:
        """Play one step and wait again."""
        with self._lock:
            self._paused = True
            self._permits += 1
            self._notify()

    def paused_s(self) -> float:
        """Seconds spent waiting so far, the present wait included."""
        with self._lock:
            waiting = 0.0 if self._waiting_since is None else self._clock.monotonic() - self._waiting_since
            return self._paused_s + waiting

    async def boundary(self, on_wait: Callable[[], None], on_resume: Callable[[], None]) -> bool:
        """Pass a step boundary, waiting as long as the episode is paused; False when it was cancelled.

        ``on_wait`` is called before it waits and ``on_resume`` after that; neither when it does not have to wait.
        """
        waited = False
        while (wake := self._begin_wait()) is not None:
            try:
                if not waited:
                    waited = True
                    on_wait()
                await wake.wait()
            finally:
                self._end_wait()
        if waited:
            on_resume()
        return not self._cancelled

    def _begin_wait(self) -> asyncio.Event | None:
        """What to wait for, None where the episode may go on or was cancelled."""
        with self._lock:
            if self._cancelled or not self._paused:
                return None
            if self._permits:
                self._permits -= 1
                return None
            event = asyncio.Event()
            self._wake = (asyncio.get_running_loop(), event)
            self._waiting_since = self._clock.monotonic()
            return event

    def _end_wait(self) -> None:
        with self._lock:
            self._wake = None
            if self._waiting_since is not None:
                self._paused_s += self._clock.monotonic() - self._waiting_since
                self._waiting_since = None

    def _notify(self) -> None:
        if self._wake is not None:
            loop, event = self._wake
            loop.call_soon_threadsafe(event.set)
