"""The entrance of one model endpoint: requests wait for its rate limits and are refused while it rests.

Also the timing of retries: circuit breakers, pauses between passes, and ``Retry-After`` headers.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from runner.config.profile import RateLimit
from runner.inference.endpoints import EndpointSpec
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
WINDOW_S = 60.0


class CircuitBreaker:
    """Blocks requests to a failing endpoint for a period, the rest; shared by all threads of a process.

    After the rest, one caller may try the endpoint. The other callers wait until that request has ended, but at most
    ``PROBE_WINDOW_S`` seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.cause = ""
        self._rests_until: float | None = None  # on the monotonic clock; None if the endpoint has answered since
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._probed_until = 0.0

    def try_enter(self) -> bool:
        """If it is allowed, call ``record_success``, ``record_failure`` or ``leave`` after the request."""
        with self._lock:
            if self._wait_s() > 0:
                return False
            if self._rests_until is not None:
                self._probed_until = self._now() + PROBE_WINDOW_S
            return True

    def wait_s(self) -> float:
        with self._lock:
            return self._wait_s()

    def record_success(self) -> None:
        with self._lock:
            self._failures, self._rests_until, self._probed_until, self.cause = 0, None, 0.0, ""

    def record_failure(self, failure: EndpointFailure, cause: str) -> None:
        """The ``cause`` is the explanation for callers."""
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
        if ":" in header:
            date = parsedate_to_datetime(header)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp()
        else:
            seconds = float(header)
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


class Ticket:
    """A request to an endpoint; ``on_reply`` receives whether it is admitted, unless that is known at once."""

    def __init__(self, endpoint: str, on_reply: Callable[[bool], None]) -> None:
        self.endpoint = endpoint
        self.on_reply = on_reply
        self.is_admitted = False


class RateLimiter:
    """Counts the requests of the last ``WINDOW_S`` seconds and those in flight; not thread-safe, and it never waits."""

    def __init__(self, limit: RateLimit, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._starts: deque[float] = deque(maxlen=limit.requests_per_minute or 0)
        self._n_in_flight = 0

    @property
    def is_full(self) -> bool:
        """Whether the next request has to wait for the end of another one."""
        most = self._limit.concurrent_requests
        return most is not None and self._n_in_flight >= most

    def wait_s(self) -> float:
        """Only the requests per minute count; 0 if they admit another request now."""
        if not self._starts or len(self._starts) < (self._starts.maxlen or 0):
            return 0.0
        return max(self._starts[0] + WINDOW_S - self._now(), 0.0)

    def start(self) -> None:
        self._n_in_flight += 1
        self._starts.append(self._now())

    def end(self) -> None:
        self._n_in_flight -= 1


class Entrance:
    """Circuit breaker, rate limits and waiting requests of one endpoint; not thread-safe."""

    def __init__(self, spec: EndpointSpec, now: Callable[[], float]) -> None:
        self.waiting: deque[Ticket] = deque()
        self.has_timer = False  # for the next request that the requests per minute admit
        self.breaker = CircuitBreaker(now)
        self.limiter = RateLimiter(spec.limit, now)
        self._limit_text = describe_limit(spec.limit)

    @property
    def cause(self) -> str:
        """The failure that caused the rest, or the rate limits if there is none."""
        return self.breaker.cause or self._limit_text

    def decide(self) -> tuple[list[Ticket], float | None]:
        """Admit the requests that may start now, or refuse all if the endpoint rests; return those that wait no longer.

        The seconds are those after which to call this again; None: the end of a request decides about the next one.
        """
        decided: list[Ticket] = []
        while self.waiting:
            rests = self.breaker.wait_s() > 0
            if not rests and self.limiter.is_full:
                break
            if not rests and (wait_s := self.limiter.wait_s()) > 0:
                return decided, wait_s
            ticket = self.waiting.popleft()
            ticket.is_admitted = self.breaker.try_enter()
            if ticket.is_admitted:
                self.limiter.start()
            decided.append(ticket)
        return decided, None

    def withdraw(self, ticket: Ticket) -> bool:
        """Return False if the request does not wait."""
        if ticket not in self.waiting:
            return False
        self.waiting.remove(ticket)
        return True

    def record(self, failure: EndpointFailure | None, text: str) -> None:
        """Record the outcome of a request, None for a success."""
        if failure is None:
            self.breaker.record_success()
        else:
            self.breaker.record_failure(failure, text)


def describe_limit(limit: RateLimit) -> str:
    per_minute, at_once = limit.requests_per_minute, limit.concurrent_requests
    texts = [f"{per_minute} per minute"] * (per_minute is not None) + [f"{at_once} at a time"] * (at_once is not None)
    return f"its limit in agent.rate_limits is {' and '.join(texts)}" if texts else ""
