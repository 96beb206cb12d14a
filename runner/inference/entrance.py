"""The entrance of one model endpoint: requests wait for its rate limits and are refused while it rests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from runner.config.profile import RateLimit
from runner.inference.circuit_breaker import CircuitBreaker
from runner.inference.endpoints import EndpointSpec
from runner.inference.errors import EndpointFailure

WINDOW_S = 60.0
_OPEN_S = 0.001
"""Rest to report after a rest has ended without a success: the next request still needs the gate's admission."""


class Ticket:
    """A request to an endpoint that waits for its admission, or has the result.

    Args:
        endpoint: name of the endpoint.
        on_reply: receives whether the request is admitted, unless that is known at once.
    """

    def __init__(self, endpoint: str, on_reply: Callable[[bool], None]) -> None:
        """Start without a result."""
        self.endpoint = endpoint
        self.on_reply = on_reply
        self.is_admitted = False


class RateLimiter:
    """Counts the requests to an endpoint against its limits; not thread-safe, and it never waits itself.

    No more than ``limit.requests_per_minute`` requests start within any ``WINDOW_S`` seconds, and no more than
    ``limit.concurrent_requests`` are in flight.

    Args:
        limit: the limits.
        now: a monotonic clock in seconds.
    """

    def __init__(self, limit: RateLimit, now: Callable[[], float]) -> None:
        """Start without requests."""
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
        """Return the seconds until the requests per minute admit another request; 0 if they do now."""
        if not self._starts or len(self._starts) < (self._starts.maxlen or 0):
            return 0.0
        return max(self._starts[0] + WINDOW_S - self._now(), 0.0)

    def start(self) -> None:
        """Count a request that starts now."""
        self._n_in_flight += 1
        self._starts.append(self._now())

    def end(self) -> None:
        """Count the end of a request."""
        self._n_in_flight -= 1


class Entrance:
    """Circuit breaker, rate limits and waiting requests of one endpoint; not thread-safe.

    Attributes:
        waiting: the requests that wait for the rate limits, in their order.
        has_timer: whether a timer is set for the next request that the requests per minute admit.

    Args:
        spec: the endpoint.
        now: a monotonic clock in seconds.
    """

    def __init__(self, spec: EndpointSpec, now: Callable[[], float]) -> None:
        """Start with requests allowed."""
        self.waiting: deque[Ticket] = deque()
        self.has_timer = False
        self.breaker = CircuitBreaker(now)
        self.limiter = RateLimiter(spec.limit, now)
        self._limit_text = describe_limit(spec.limit)
        self._last_failure = ""

    @property
    def cause(self) -> str:
        """The failure that caused the rest, or the rate limits if there is none."""
        return self.breaker.cause or self._limit_text

    def decide(self) -> tuple[list[Ticket], float | None]:
        """Admit the requests that may start now, or refuse all if the endpoint rests.

        Returns:
            The decided requests, which wait no longer; and the seconds after which to call this again, or None if the
            end of a request decides about the next one.
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
        """Remove a request that waits; return False if it does not."""
        if ticket not in self.waiting:
            return False
        self.waiting.remove(ticket)
        return True

    def record(self, failure: EndpointFailure | None, text: str) -> bool:
        """Record the outcome of a request, None for a success; return whether ``state`` has changed."""
        before = self.breaker.rests_until, self._last_failure != ""
        if failure is None:
            self.breaker.record_success()
            self._last_failure = ""
        else:
            self.breaker.record_failure(failure, text)
            self._last_failure = text or failure.reason
        return before != (self.breaker.rests_until, self._last_failure != "")

    def state(self) -> tuple[float, str]:
        """Return the seconds of the rest and its cause.

        0 seconds with a cause: the endpoint has failed, but does not rest. No cause: it has not failed since its last
        success.
        """
        if self.breaker.rests_until is None:
            return 0.0, self._last_failure
        return max(self.breaker.wait_s(), _OPEN_S), self.breaker.cause or self._last_failure


def describe_limit(limit: RateLimit) -> str:
    """Return the limits as text, empty if there are none."""
    per_minute, at_once = limit.requests_per_minute, limit.concurrent_requests
    texts = [f"{per_minute} per minute"] * (per_minute is not None) + [f"{at_once} at a time"] * (at_once is not None)
    return f"its limit in agent.rate_limits is {' and '.join(texts)}" if texts else ""
