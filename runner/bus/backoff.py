"""Pauses between retries: ``Backoff`` for one operation, ``SubjectBackoff`` for each subject separately."""

from __future__ import annotations

import random
import time


class Backoff:
    """Exponential backoff from 0.1 s to ``max_s``, with jitter that spreads the retries of many clients."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self.reset()

    def reset(self) -> None:
        self._next = 0.05

    def next(self) -> float:
        self._next = min(self._next * 2, self._max_s)
        return self._next * random.uniform(0.5, 1.0)


class SubjectBackoff:
    """Backoff per subject, so that a failing subject does not delay the others."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._backoffs: dict[str, Backoff] = {}
        self._paused: dict[str, tuple[float, str]] = {}

    @property
    def subjects(self) -> list[str]:
        return list(self._paused)

    @property
    def cause(self) -> str | None:
        return next((cause for _, cause in self._paused.values()), None)

    def pause(self, subject: str, cause: str) -> None:
        """Pause a subject after a failure, longer each time until ``record_success``."""
        pause_s = self._backoffs.setdefault(subject, Backoff(self._max_s)).next()
        self._paused[subject] = (time.monotonic() + pause_s, cause)

    def record_success(self, subject: str) -> None:
        self._backoffs.pop(subject, None)

    def has_failed(self, subject: str) -> bool:
        return subject in self._backoffs

    def resume_due(self) -> bool:
        now = time.monotonic()
        due = [subject for subject, (until, _) in self._paused.items() if until <= now]
        for subject in due:
            del self._paused[subject]
        return bool(due)

    def clear(self) -> None:
        self._backoffs.clear()
        self._paused.clear()
