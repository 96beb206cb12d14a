"""What exists once per batch for its model endpoints: circuit breakers and rate limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeAlias

from runner.config.profile import RateLimit
from runner.inference.endpoints import EndpointSpec
from runner.inference.entrance import Entrance, Ticket
from runner.inference.errors import EndpointFailure
from runner.inference.learning import Lessons
from runner.types.phases import ServerTimes

OnServerTimes: TypeAlias = Callable[[str, ServerTimes | None], None]
CallLater: TypeAlias = Callable[[float, Callable[[], None]], object]


def learner_of(endpoint: str) -> str:
    """Return the name under which one request at a time is admitted to learn what an endpoint takes."""
    return f"learner of {endpoint}"


def with_learners(specs: Iterable[EndpointSpec]) -> list[EndpointSpec]:
    specs = list(specs)
    one = RateLimit(concurrent_requests=1)
    return [*specs, *(EndpointSpec(name=learner_of(spec.name), url="", limit=one) for spec in specs)]


class EndpointGate(Protocol):
    """Admits requests to endpoints and receives their outcomes; thread-safe, usable from several event loops."""

    async def enter(self, endpoint: str, time_left_s: float) -> bool:
        """Wait for the rate limits of an endpoint, and return whether a request may be sent.

        If it may, the caller must call ``leave`` after the request. It may not while the endpoint rests, or if the
        limits admit no request within ``time_left_s`` seconds.
        """

    def wait_s(self, endpoint: str) -> float: ...

    def cause(self, endpoint: str) -> str:
        """Return the failure for which an endpoint rests; without one, its rate limits."""

    @property
    def lessons(self) -> Lessons: ...

    def report(self, endpoint: str, failure: EndpointFailure | None, text: str) -> None:
        """Record the outcome of an inference, None for a success; ``text`` is the failure without secrets."""

    def server_times(self, endpoint: str) -> ServerTimes | None: ...

    def set_server_times(self, endpoint: str, times: ServerTimes | None) -> None: ...

    def leave(self, endpoint: str) -> None: ...


class LocalGate:
    """The gate in the process of the batch; no method blocks.

    Workers in other processes use it through ``request``, ``release``, ``report`` and ``release_all``. ``call_later``
    calls a function after some seconds on any thread; None: with a timer's thread.
    """

    def __init__(
        self, specs: Iterable[EndpointSpec], now: Callable[[], float], call_later: CallLater | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._times_lock = threading.Lock()
        self._call_later = call_later or _start_timer
        specs = with_learners(specs)
        self._entrances = {spec.name: Entrance(spec, now) for spec in specs}
        self.lessons = Lessons(specs)
        self._held: dict[Hashable, dict[Hashable, Ticket]] = {}
        self._server_times: dict[str, ServerTimes] = {}
        self._time_watchers: list[OnServerTimes] = []

    async def enter(self, endpoint: str, time_left_s: float) -> bool:
        loop = asyncio.get_running_loop()
        admission: asyncio.Future[bool] = loop.create_future()

        def on_reply(is_admitted: bool) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, admission, is_admitted)
            except RuntimeError:  # the loop was closed, and no task of it waits any longer
                self._give_back(ticket)

        ticket = Ticket(endpoint, on_reply)
        if self._admit(endpoint, ticket):
            return ticket.is_admitted
        try:
            async with asyncio.timeout(time_left_s):
                return await admission
        except TimeoutError:
            self._give_back(ticket)
            return False
        except asyncio.CancelledError:
            self._give_back(ticket)
            raise

    def wait_s(self, endpoint: str) -> float:
        return self._entrances[endpoint].breaker.wait_s()

    def cause(self, endpoint: str) -> str:
        return self._entrances[endpoint].cause

    def server_times(self, endpoint: str) -> ServerTimes | None:
        return self._server_times.get(endpoint)

    def set_server_times(self, endpoint: str, times: ServerTimes | None) -> None:
        with self._times_lock:
            if self._server_times.get(endpoint) == times:
                return
            if times is None:
                self._server_times.pop(endpoint, None)
            else:
                self._server_times[endpoint] = times
            for watcher in self._time_watchers:
                watcher(endpoint, times)

    def watch_server_times(self, on_times: OnServerTimes) -> Callable[[], None]:
        """Call ``on_times``, which must not block, with each server's means, now and later; return what ends that."""
        with self._times_lock:
            self._time_watchers = [*self._time_watchers, on_times]
            for state in self._server_times.items():
                on_times(*state)

        def end() -> None:
            with self._times_lock:
                self._time_watchers = [each for each in self._time_watchers if each is not on_times]

        return end

    def leave(self, endpoint: str) -> None:
        self._entrances[endpoint].breaker.leave()
        with self._lock:
            self._entrances[endpoint].limiter.end()
        self._admit(endpoint)

    def request(self, owner: Hashable, key: Hashable, endpoint: str, on_reply: Callable[[bool], None]) -> None:
        """Request admission for a worker, which knows the request by ``key``; an unknown endpoint is refused.

        ``on_reply`` is called once with the result, now or later on another thread, and must not block.
        """

        def reply(is_admitted: bool) -> None:
            if not is_admitted:
                self._forget(owner, key)
            on_reply(is_admitted)

        ticket = Ticket(endpoint, reply)
        if endpoint not in self._entrances:
            on_reply(False)
            return
        with self._lock:
            self._held.setdefault(owner, {})[key] = ticket
        if self._admit(endpoint, ticket):
            reply(ticket.is_admitted)

    def release(self, owner: Hashable, key: Hashable) -> None:
        """An unknown request is ignored."""
        if (ticket := self._forget(owner, key)) is not None:
            self._give_back(ticket)

    def release_all(self, owner: Hashable) -> None:
        """End all requests of a lost worker; ``on_reply`` of those that wait gets False."""
        with self._lock:
            tickets = self._held.pop(owner, {}).values()
        for ticket in sorted(tickets, key=lambda ticket: ticket.is_admitted):  # none that waits takes a freed place
            self._give_back(ticket)

    def report(self, endpoint: str, failure: EndpointFailure | None, text: str) -> None:
        """Record the outcome of a request, None for a success, without ending it; an unknown endpoint is ignored."""
        if (entrance := self._entrances.get(endpoint)) is None:
            return
        with self._lock:
            entrance.record(failure, text)

    def _forget(self, owner: Hashable, key: Hashable) -> Ticket | None:
        with self._lock:
            return self._held.get(owner, {}).pop(key, None)

    def _give_back(self, ticket: Ticket) -> None:
        with self._lock:
            was_waiting = self._entrances[ticket.endpoint].withdraw(ticket)
        if was_waiting:
            ticket.on_reply(False)
        elif ticket.is_admitted:
            self.leave(ticket.endpoint)

    def _admit(self, endpoint: str, new: Ticket | None = None) -> bool:
        """Return whether the new request was decided at once, which makes no call of its ``on_reply``."""
        entrance = self._entrances[endpoint]
        with self._lock:
            if new is not None:
                entrance.waiting.append(new)
            decided, wait_s = entrance.decide()
            needs_timer = wait_s is not None and not entrance.has_timer
            entrance.has_timer = entrance.has_timer or needs_timer
        for ticket in decided:
            if ticket is not new:
                ticket.on_reply(ticket.is_admitted)
        if needs_timer and wait_s is not None:
            self._call_later(wait_s, lambda: self._on_timer(endpoint))
        return new in decided

    def _on_timer(self, endpoint: str) -> None:
        with self._lock:
            self._entrances[endpoint].has_timer = False
        self._admit(endpoint)


def _resolve(admission: asyncio.Future[bool], is_admitted: bool) -> None:
    if not admission.done():
        admission.set_result(is_admitted)


def _start_timer(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
