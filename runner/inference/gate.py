"""What exists once per batch for its model endpoints: rests after failures, rate limits, lessons and servers' means."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from runner.config.profile import RateLimit
from runner.inference.endpoints import EndpointSpec
from runner.inference.errors import EndpointFailure
from runner.inference.learning import Lessons, WatchedValues
from runner.types.phases import ServerTimes
from runner.util.thread_replies import wait_for_reply

FIRST_REST_S, MAX_REST_S = 1.0, 60.0
"""Seconds of an endpoint's rest after a failure other than a timeout: first and maximum; each failure doubles it."""
FIRST_TIMEOUT_REST_S, MAX_TIMEOUT_REST_S = 30.0, 300.0
"""Seconds of an endpoint's rest after a timeout: first and maximum; each failure doubles it."""
PROBE_WINDOW_S = 5.0
"""Seconds after a rest during which only one caller may try the endpoint."""
TOLERATED_FAILURES = 2
"""Number of consecutive server errors or invalid replies after which an endpoint still gets no rest."""
WINDOW_S = 60.0

CallLater: TypeAlias = Callable[[float, Callable[[], None]], object]


def learner_of(endpoint: str) -> str:
    """Return the name under which one request at a time is admitted to learn what an endpoint takes."""
    return f"learner of {endpoint}"


class _Request(msgspec.Struct, eq=False):
    entrance: _Entrance
    on_reply: Callable[[bool], object]
    is_admitted: bool = False


class _Entrance:
    """Rests, rate limits and waiting requests of one endpoint; the gate calls it under its lock.

    After a rest, one caller may try the endpoint. The other callers wait until that request has ended, but at most
    ``PROBE_WINDOW_S`` seconds.
    """

    def __init__(self, limit: RateLimit, now: Callable[[], float]) -> None:
        self.cause = ""
        self.waiting: deque[_Request] = deque()
        self.has_timer = False  # for the next request that the requests per minute admit
        self._now = now
        self._n_in_flight = 0
        self._starts: deque[float] = deque()
        self.set_limit(limit)
        self._failures = 0
        self._rests_until: float | None = None  # on the monotonic clock; None if the endpoint has answered since
        self._probed_until = 0.0

    def set_limit(self, limit: RateLimit) -> None:
        self.limit_text = _describe_limit(limit)
        self._most = limit.concurrent_requests
        self._starts = deque(self._starts, maxlen=limit.requests_per_minute or 0)

    def wait_s(self) -> float:
        if self._rests_until is None:
            return 0.0
        return max(max(self._rests_until, self._probed_until) - self._now(), 0.0)

    def decide(self) -> tuple[list[_Request], float | None]:
        """Admit the requests that may start now, or refuse all if the endpoint rests; return those that wait no longer.

        The seconds are those after which to call this again; None: the end of a request decides about the next one.
        """
        decided: list[_Request] = []
        while self.waiting:
            rests = self.wait_s() > 0
            if not rests and self._most is not None and self._n_in_flight >= self._most:
                break
            if not rests and self._starts and len(self._starts) == self._starts.maxlen:
                wait_s = self._starts[0] + WINDOW_S - self._now()
                if wait_s > 0:
                    return decided, wait_s
            request = self.waiting.popleft()
            request.is_admitted = not rests
            if request.is_admitted:
                self._n_in_flight += 1
                self._starts.append(self._now())
                if self._rests_until is not None:
                    self._probed_until = self._now() + PROBE_WINDOW_S
            decided.append(request)
        return decided, None

    def end(self) -> None:
        self._n_in_flight -= 1
        self._probed_until = 0.0

    def record(self, failure: EndpointFailure | None, cause: str) -> None:
        self._probed_until = 0.0
        if failure is None:
            self._failures, self._rests_until, self.cause = 0, None, ""
            return
        resting = self.wait_s() > 0  # requests that were already running when the first one failed
        self._failures += not resting
        rest_s = failure.retry_after_s
        if rest_s is None:
            rest_s = 0.0 if resting else _rest_s(failure, self._failures)
        if rest_s > self.wait_s():
            self._rests_until, self.cause = self._now() + rest_s, cause


class LocalGate:
    """Admits requests to endpoints and receives their outcomes; thread-safe, usable from several event loops.

    No method blocks. Workers in other processes use the gate of the batch through ``request``, ``release``, ``report``
    and ``release_all``. ``call_later`` calls a function after some seconds on any thread; None: with a timer's thread.
    """

    def __init__(
        self, specs: Iterable[EndpointSpec], now: Callable[[], float], call_later: CallLater | None = None
    ) -> None:
        self._lock = threading.RLock()  # a garbage collection may end a request that waits
        self._call_later = call_later or _start_timer
        specs = list(specs)
        self._endpoints = [spec.name for spec in specs]
        self._entrances = {spec.name: _Entrance(spec.limit, now) for spec in specs}
        one = RateLimit(concurrent_requests=1)
        self._entrances |= {learner_of(spec.name): _Entrance(one, now) for spec in specs}
        self.lessons = Lessons(specs)
        self._requests: dict[Hashable, dict[Hashable, _Request]] = {}
        self.server_times = WatchedValues[str, ServerTimes | None]()

    def set_limits(self, limits: Mapping[str, RateLimit]) -> None:
        """Replace the rate limits of all endpoints, by name, for the requests that are still to come."""
        with self._lock:
            for name in self._endpoints:
                self._entrances[name].set_limit(limits.get(name, RateLimit()))

    async def enter(self, endpoint: str, key: str, time_left_s: float) -> bool:
        """Wait for the rate limits of an endpoint, and return whether a request may be sent.

        If it may, the caller must call ``leave`` with the same key, unique in this process, after the request. It may
        not while the endpoint rests, or if the limits admit no request within ``time_left_s`` seconds.
        """
        is_admitted = False
        try:
            async with asyncio.timeout(time_left_s):
                is_admitted = await self._ask(endpoint, key)
        except TimeoutError:
            pass
        finally:
            if not is_admitted:
                self.leave(endpoint, key)
        return is_admitted

    async def _ask(self, endpoint: str, key: str) -> bool:
        return await wait_for_reply(lambda on_reply: self.request(None, key, endpoint, on_reply))

    def leave(self, endpoint: str, key: str) -> None:
        self.release(None, key)

    def wait_s(self, endpoint: str) -> float:
        with self._lock:
            return self._entrances[endpoint].wait_s()

    def cause(self, endpoint: str) -> str:
        """Return the failure for which an endpoint rests; without one, its rate limits."""
        entrance = self._entrances[endpoint]
        return entrance.cause or entrance.limit_text

    def request(self, owner: Hashable, key: Hashable, endpoint: str, on_reply: Callable[[bool], object]) -> None:
        """Request admission for a worker, which knows the request by ``key``; an unknown endpoint is refused.

        ``on_reply`` is called once with the result, now or later on another thread, and must not block.
        """
        if (entrance := self._entrances.get(endpoint)) is None:
            on_reply(False)
            return
        request = _Request(entrance, on_reply)
        with self._lock:
            self._requests.setdefault(owner, {})[key] = request
            entrance.waiting.append(request)
        self._admit(entrance)

    def release(self, owner: Hashable, key: Hashable) -> None:
        """End a request, whether it waits, is admitted or was refused; an unknown one is ignored."""
        with self._lock:
            request = self._requests.get(owner, {}).pop(key, None)
        if request is not None:
            self._end(request)

    def release_all(self, owner: Hashable) -> None:
        """End all requests of a lost worker; ``on_reply`` of those that wait gets False."""
        with self._lock:
            requests = self._requests.pop(owner, {}).values()
        for request in sorted(requests, key=lambda each: each.is_admitted):  # none that waits takes a freed place
            self._end(request)

    def report(self, endpoint: str, failure: EndpointFailure | None, text: str) -> None:
        """Record the outcome of a request, None for a success, without ending it; an unknown endpoint is ignored.

        ``text`` is the failure without secrets.
        """
        if (entrance := self._entrances.get(endpoint)) is not None:
            with self._lock:
                entrance.record(failure, text)

    def _end(self, request: _Request) -> None:
        entrance = request.entrance
        with self._lock:
            if was_waiting := request in entrance.waiting:
                entrance.waiting.remove(request)
            elif request.is_admitted:
                entrance.end()
        if was_waiting:
            request.on_reply(False)
        elif request.is_admitted:
            self._admit(entrance)

    def _admit(self, entrance: _Entrance) -> None:
        with self._lock:
            decided, wait_s = entrance.decide()
            needs_timer = wait_s is not None and not entrance.has_timer
            entrance.has_timer = entrance.has_timer or needs_timer
        for request in decided:
            request.on_reply(request.is_admitted)
        if needs_timer and wait_s is not None:
            self._call_later(wait_s, lambda: self._on_timer(entrance))

    def _on_timer(self, entrance: _Entrance) -> None:
        entrance.has_timer = False
        self._admit(entrance)


def _rest_s(failure: EndpointFailure, n_failures: int) -> float:
    first_s, most_s = FIRST_REST_S, MAX_REST_S
    if failure.reason == "timeout":
        first_s, most_s = FIRST_TIMEOUT_REST_S, MAX_TIMEOUT_REST_S
    elif failure.reason in ("server", "reply"):
        n_failures -= TOLERATED_FAILURES
    return min(first_s * 2.0 ** min(n_failures - 1, 16), most_s) if n_failures > 0 else 0.0


def _describe_limit(limit: RateLimit) -> str:
    per_minute, at_once = limit.requests_per_minute, limit.concurrent_requests
    texts = [f"{per_minute} per minute"] * (per_minute is not None) + [f"{at_once} at a time"] * (at_once is not None)
    return f"its limit in agent.rate_limits is {' and '.join(texts)}" if texts else ""


def _start_timer(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
