"""Keeps an endpoint that does not answer from being waited for again and again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from runner.inference.errors import EndpointFailure

FIRST_REST_S, MAX_REST_S = 1.0, 60.0
"""Seconds of rest after a failure that was told at once, doubled with each further one in a row."""
FIRST_TIMEOUT_REST_S, MAX_TIMEOUT_REST_S = 30.0, 300.0
"""The same after one that took the whole time there was."""
PROBE_WINDOW_S = 5.0
"""Seconds that the first one to ask after a rest is alone."""
TOLERATED_FAILURES = 2
"""Errors of a server, and replies that are none, that are followed by no rest."""


class CircuitBreaker:
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

    def try_enter(self) -> bool:
        """Whether to ask; then ``record_success``, ``record_failure`` or ``leave`` has to follow."""
        with self._lock:
            if self._wait_s() > 0:
                return False
            if self._rests_until is not None:
                self._probed_until = self._now() + PROBE_WINDOW_S
            return True

    def wait_s(self) -> float:
        """Seconds until ``try_enter`` may say yes again."""
        with self._lock:
            return self._wait_s()

    def record_success(self) -> None:
        """It answered."""
        with self._lock:
            self._failures, self._rests_until, self._probed_until, self.cause = 0, None, 0.0, ""

    def record_failure(self, failure: EndpointFailure, cause: str) -> None:
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

    def leave(self) -> None:
        """It was not asked to the end, which says nothing about it."""
        with self._lock:
            self._probed_until = 0.0

    def _wait_s(self) -> float:
        if self._rests_until is None:
            return 0.0
        return max(max(self._rests_until, self._probed_until) - self._now(), 0.0)


def _rest_s(failure: EndpointFailure, n_failures: int) -> float:
    if failure.reason == "timeout":
        return _backoff(FIRST_TIMEOUT_REST_S, n_failures, MAX_TIMEOUT_REST_S)
    if failure.reason in ("server", "reply"):
        n_failures -= TOLERATED_FAILURES
        return _backoff(FIRST_REST_S, n_failures, MAX_REST_S) if n_failures > 0 else 0.0
    return _backoff(FIRST_REST_S, n_failures, MAX_REST_S)


def _backoff(first: float, times: int, maximum: float) -> float:
    return min(first * 2.0 ** min(times - 1, 16), maximum)


MAX_PASSES = 3
"""How often, at most, one inference goes through the chain."""


FIRST_PAUSE_S = 0.5


MAX_RETRY_AFTER_S = 3600.0


def pause_s(attempt: int, uniform: Callable[[float, float], float]) -> float:
    """Seconds before a round, the second one being 1: doubled each time, and half of it left to chance."""
    maximum = FIRST_PAUSE_S * 2.0 ** (attempt - 1)
    return uniform(maximum / 2, maximum)


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, a number or a date in any form; None: for nothing."""
    if header is None:
        return None
    try:
        seconds = _seconds_until(header, now) if ":" in header else float(header)
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


def _seconds_until(header: str, now: datetime) -> float:
    date = parsedate_to_datetime(header)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp()
