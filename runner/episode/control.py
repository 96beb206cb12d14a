"""Control of a running episode: any thread may send a command, and the episode applies it between two steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from runner.types import Outcome
from runner.util.clock import Clock

EpisodeCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]


class EpisodeControl:
    """Thread-safe commands to one episode: cancel, pause, resume and single-step.

    Only the episode itself awaits ``wait_at_step``; any thread may call the other methods. The time limit of the
    episode excludes the seconds that it was paused (``paused_s``). ``before_step`` is awaited before each step.
    """

    def __init__(self, clock: Clock | None = None, before_step: Callable[[], Awaitable[object]] | None = None) -> None:
        self._clock = clock or Clock()
        self._before_step = before_step
        self._lock = threading.Lock()
        self._cancel_outcome: Outcome | None = None
        self._paused = False
        self._permits = 0
        self._paused_s = 0.0
        self._waiting_since: float | None = None
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def cancel_outcome(self) -> Outcome | None:
        return self._cancel_outcome

    @property
    def paused(self) -> bool:
        return self._paused

    def command(self, name: EpisodeCommand, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Apply a command before the next step; ``outcome`` is that of ``cancel``, which ends a pause at once.

        ``step`` lets the episode run one step, then pauses it before the next one.
        """
        with self._lock:
            match name:
                case "cancel":
                    self._cancel_outcome = outcome
                case "pause":
                    self._paused = True
                case "resume":
                    self._paused, self._permits = False, 0
                case "step":
                    self._paused, self._permits = True, self._permits + 1
            if name != "pause" and self._wake is not None:
                loop, event = self._wake
                loop.call_soon_threadsafe(event.set)

    def cancel(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        self.command("cancel", outcome)

    def pause(self) -> None:
        self.command("pause")

    def resume(self) -> None:
        self.command("resume")

    def step(self) -> None:
        self.command("step")

    def paused_s(self) -> float:
        """Include a pause that has not ended."""
        with self._lock:
            waiting = 0.0 if self._waiting_since is None else self._clock.monotonic() - self._waiting_since
            return self._paused_s + waiting

    async def wait_at_step(self, on_wait: Callable[[], None], on_resume: Callable[[], None]) -> bool:
        """Wait while paused, between ``on_wait`` and ``on_resume``; return False if the episode was cancelled."""
        if self._before_step is not None:
            await self._before_step()
        waited = False
        while (wake := self._start_wait()) is not None:
            try:
                if not waited:
                    waited = True
                    on_wait()
                await wake.wait()
            finally:
                with self._lock:
                    self._wake = None
                    if self._waiting_since is not None:
                        self._paused_s += self._clock.monotonic() - self._waiting_since
                        self._waiting_since = None
        if waited:
            on_resume()
        return not self._cancel_outcome

    def _start_wait(self) -> asyncio.Event | None:
        with self._lock:
            if self._cancel_outcome or not self._paused:
                return None
            if self._permits:
                self._permits -= 1
                return None
            event = asyncio.Event()
            self._wake = (asyncio.get_running_loop(), event)
            self._waiting_since = self._clock.monotonic()
            return event
