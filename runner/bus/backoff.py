"""How long to wait before trying again."""

from __future__ import annotations

import random
import time


class Backoff:
    """Seconds between attempts: growing to ``longest``, each shortened by chance so that clients spread."""

    def __init__(self, longest: float) -> None:
        """Start small."""
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        """Start small again."""
        self._next = 0.05

    def next(self) -> float:
        """How long to wait now."""
        self._next = min(self._next * 2, self._longest)
        return self._next * random.uniform(0.5, 1.0)


class SubjectBackoff:
    """Subjects that are not to be tried for a while, each with pauses of its own: the others go on."""

    def __init__(self, longest: float) -> None:
        """Hold nothing."""
        self._longest = longest
        self._pauses: dict[str, Backoff] = {}
        self._held: dict[str, tuple[float, str]] = {}

    @property
    def subjects(self) -> list[str]:
        """Those that pause now."""
        return list(self._held)

    @property
    def cause(self) -> str | None:
        """Why there are any."""
        return next((cause for _, cause in self._held.values()), None)

    def hold(self, subject: str, cause: str) -> None:
        """Let a subject pause, longer each time until it is ``settle``d."""
        pause = self._pauses.setdefault(subject, Backoff(self._longest)).next()
        self._held[subject] = (time.monotonic() + pause, cause)

    def settle(self, subject: str) -> None:
        """It worked."""
        self._pauses.pop(subject, None)

    def doubted(self, subject: str) -> bool:
        """Whether it did not work the last time."""
        return subject in self._pauses

    def release(self) -> bool:
        """Let those be tried again whose pause is over; returns whether there are any."""
        now = time.monotonic()
        over = [subject for subject, (until, _) in self._held.items() if until <= now]
        for subject in over:
            del self._held[subject]
        return bool(over)

    def clear(self) -> None:
        """Let all of them be tried again, as if nothing had happened."""
        self._pauses.clear()
        self._held.clear()
