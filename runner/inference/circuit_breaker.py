"""Keeps an endpoint that does not answer from being waited for again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runner.inference.errors import EndpointFailure

FIRST_S, LONGEST_S = 1.0, 60.0
"""Seconds of rest after a failure that was told at once, doubled with each further one in a row."""
FIRST_TIMEOUT_S, LONGEST_TIMEOUT_S = 30.0, 300.0
"""The same after one that took the whole time there was."""
PROBE_S = 5.0
"""Seconds that the first one to ask after a rest is alone."""
TOLERATED = 2
"""Errors of a server, and replies that are none, that are followed by no rest."""


class Breaker:
    """Whether an endpoint may be asked now; shared by all threads of a process.

    After a rest one caller is let through, and for a moment the others wait for how that one fares.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Start with an endpoint that is taken to answer."""
        self.cause = ""
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._rests_until: float | None = None
        self._probed_until = 0.0

    def admit(self) -> bool:
        """Whether to ask; then ``succeeded``, ``failed`` or ``released`` has to follow."""
        with self._lock:
            if self._wait_s() > 0:
                return False
            if self._rests_until is not None:
                self._probed_until = self._now() + PROBE_S
            return True

    def wait_s(self) -> float:
        """Seconds until ``admit`` may say yes again."""
        with self._lock:
            return self._wait_s()

    def succeeded(self) -> None:
        """It answered."""
        with self._lock:
            self._failures, self._rests_until, self._probed_until, self.cause = 0, None, 0.0, ""

    def failed(self, failure: EndpointFailure, cause: str) -> None:
        """It did not; ``cause`` is told to those who are not let through."""
        with self._lock:
            self._probed_until = 0.0
            resting = self._wait_s() > 0  # others were on their way when the first one failed
            self._failures += not resting
            rest_s = failure.retry_after_s
            if rest_s is None:
                rest_s = 0.0 if resting else _rest_s(failure, self._failures)
            if rest_s > self._wait_s():
                self._rests_until, self.cause = self._now() + rest_s, cause

    def released(self) -> None:
        """It was not asked to the end, which says nothing about it."""
        with self._lock:
            self._probed_until = 0.0

    def _wait_s(self) -> float:
        if self._rests_until is None:
            return 0.0
        return max(max(self._rests_until, self._probed_until) - self._now(), 0.0)


def _rest_s(failure: EndpointFailure, in_a_row: int) -> float:
    if failure.reason == "timeout":
        return _doubled(FIRST_TIMEOUT_S, in_a_row, LONGEST_TIMEOUT_S)
    if failure.reason in ("server", "reply"):
        in_a_row -= TOLERATED
        return _doubled(FIRST_S, in_a_row, LONGEST_S) if in_a_row > 0 else 0.0
    return _doubled(FIRST_S, in_a_row, LONGEST_S)


def _doubled(first: float, times: int, longest: float) -> float:
    return min(first * 2.0 ** min(times - 1, 16), longest)
