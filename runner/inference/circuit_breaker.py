"""Timing of retries: circuit breakers of endpoints, pauses between passes, and ``Retry-After`` headers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from runner.inference.errors import EndpointFailure

MAX_PASSES = 3
"""Maximum number of times that one inference tries all endpoints."""
FIRST_PAUSE_S = 0.5
MAX_RETRY_AFTER_S = 3600.0
FIRST_REST_S, MAX_REST_S = 1.0, 60.0
"""Seconds of an endpoint's rest after a failure other than a timeout: first and maximum; each failure doubles it."""
FIRST_TIMEOUT_REST_S, MAX_TIMEOUT_REST_S = 30.0, 300.0
"""Seconds of an endpoint's rest after a timeout: first and maximum; each failure doubles it."""
PROBE_WINDOW_S = 5.0
"""Seconds after a rest during which only one caller may try the endpoint."""
TOLERATED_FAILURES = 2
"""Number of consecutive server errors or invalid replies after which an endpoint still gets no rest."""


class CircuitBreaker:
    """Blocks requests to a failing endpoint for a period, the rest; shared by all threads of a process.

    After the rest, one caller may try the endpoint. The other callers wait until that request has ended, but at most
    ``PROBE_WINDOW_S`` seconds.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Start with requests allowed."""
        self.cause = ""
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._rests_until: float | None = None
        self._probed_until = 0.0

    def try_enter(self) -> bool:
        """Return whether a request to the endpoint is allowed.

        If it is, the caller must call ``record_success``, ``record_failure`` or ``leave`` after the request.
        """
        with self._lock:
            if self._wait_s() > 0:
                return False
            if self._rests_until is not None:
                self._probed_until = self._now() + PROBE_WINDOW_S
            return True

    def wait_s(self) -> float:
        """Return the seconds until ``try_enter`` may return True; 0 if it may now."""
        with self._lock:
            return self._wait_s()

    @property
    def rests_until(self) -> float | None:
        """End of the last rest on the monotonic clock; None if the endpoint has answered since, or never rested."""
        return self._rests_until

    def record_success(self) -> None:
        """Allow requests again, because the endpoint answered."""
        with self._lock:
            self._failures, self._rests_until, self._probed_until, self.cause = 0, None, 0.0, ""

    def record_failure(self, failure: EndpointFailure, cause: str) -> None:
        """Block requests for a time that depends on the failure; ``cause`` is the explanation for callers."""
        with self._lock:
            self._probed_until = 0.0
            resting = self._wait_s() > 0  # requests that were already running when the first one failed
            self._failures += not resting
            rest_s = failure.retry_after_s
            if rest_s is None:
                rest_s = 0.0 if resting else _rest_s(failure, self._failures)
            if rest_s > self._wait_s():
                self._rests_until, self.cause = self._now() + rest_s, cause

    def leave(self) -> None:
        """End a request that shows neither success nor failure of the endpoint, e.g. a cancelled one."""
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


def pause_s(attempt: int, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds to wait before a repeated pass (``attempt`` 1, 2, …): exponential backoff with jitter."""
    maximum = FIRST_PAUSE_S * 2.0 ** (attempt - 1)
    return uniform(maximum / 2, maximum)


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Return the seconds to wait by a ``Retry-After`` header (seconds or an HTTP date); None if absent or invalid."""
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
