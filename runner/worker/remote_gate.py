"""The gate of a worker process: while an endpoint neither rests nor has limits, it admits without the driver."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from runner.config import AgentSettings
from runner.envs.http.places import InstanceId
from runner.errors import EnvironmentFault
from runner.inference.endpoints import EndpointSpec, resolve_endpoints
from runner.inference.entrance import CircuitBreaker, describe_limit
from runner.inference.errors import EndpointFailure
from runner.inference.gate import LocalGate, with_learners
from runner.inference.learning import Lessons
from runner.inference.manager import InferenceManager
from runner.types.phases import ServerTimes
from runner.worker.channel import DriverLink
from runner.worker.frames import EndpointLesson, EndpointOutcome, EndpointRest, GatewayLink, Release, Reply


def remote_manager(
    settings: AgentSettings, environ: Mapping[str, str], link: DriverLink, now: Callable[[], float]
) -> tuple[InferenceManager, RemoteGate]:
    """Return the models of a worker, and their gate, which needs the driver's ``EndpointRest`` frames."""
    gate = RemoteGate(link, resolve_endpoints(settings, environ), now)

    def on_gateway_id(episode_id: str, endpoint: str, gateway_id: str) -> None:
        link.send(GatewayLink(episode_id=episode_id, endpoint=endpoint, gateway_id=gateway_id))

    return InferenceManager(settings, environ, gate=gate, on_gateway_id=on_gateway_id), gate


def apply_outcome(gate: LocalGate, frame: EndpointOutcome) -> None:
    """Runs in the driver, for an outcome that a worker has sent."""
    failure = None
    if frame.failure is not None:
        failure = EndpointFailure(frame.failure, frame.cause, retry_after_s=frame.retry_after_s)
    gate.report(frame.endpoint, failure, frame.cause)


class RemoteGate:
    """An ``EndpointGate`` that knows the endpoints from ``EndpointRest`` frames; ``now`` is a monotonic clock (s)."""

    def __init__(self, link: DriverLink, specs: Iterable[EndpointSpec], now: Callable[[], float]) -> None:
        self._link = link
        self._now = now
        self._lock = threading.Lock()
        self._keys = itertools.count()
        specs = with_learners(specs)
        self.lessons = Lessons(specs)
        self.lessons.watch(lambda key, learned: link.send(EndpointLesson(key=key, capabilities=learned)))
        self._limits = {spec.name: describe_limit(spec.limit) for spec in specs}
        # The worker's own view of its failures, until the driver's frame arrives.
        self._breakers = {name: CircuitBreaker(now) for name in self._limits}
        self._rests: dict[str, tuple[float, str]] = {}
        self._failing: set[str] = set()
        self._admitted: dict[str, list[int]] = {}
        self._server_times: dict[str, ServerTimes | None] = {}

    def set_server_times(self, endpoint: str, times: ServerTimes | None) -> None:
        """The driver reads the times from the servers."""
        self._server_times[endpoint] = times

    def server_times(self, endpoint: str) -> ServerTimes | None:
        return self._server_times.get(endpoint)

    def on_rest(self, frame: EndpointRest) -> None:
        with self._lock:
            self._rests.pop(frame.endpoint, None)
            self._failing.discard(frame.endpoint)
            if frame.cause:
                self._failing.add(frame.endpoint)
            elif frame.endpoint in self._breakers:
                self._breakers[frame.endpoint].record_success()
            if frame.wait_s > 0:
                self._rests[frame.endpoint] = self._now() + frame.wait_s, frame.cause

    async def enter(self, endpoint: str, time_left_s: float) -> bool:
        """The driver decides for an endpoint with limits and after a rest."""
        if self.wait_s(endpoint) > 0:
            return False
        if not self._needs_driver(endpoint):
            return True
        key = next(self._keys)
        try:
            async with asyncio.timeout(time_left_s):
                reply = await self._link.request("enter", endpoint, key)
        except TimeoutError:
            self._release(endpoint, key)
            return False
        except asyncio.CancelledError:
            self._release(endpoint, key)
            raise
        if reply.granted:
            with self._lock:
                self._admitted.setdefault(endpoint, []).append(key)
        return reply.granted

    def wait_s(self, endpoint: str) -> float:
        rests_until, _ = self._rests.get(endpoint, (0.0, ""))
        return max(rests_until - self._now(), self._breakers[endpoint].wait_s(), 0.0)

    def cause(self, endpoint: str) -> str:
        _, cause = self._rests.get(endpoint, (0.0, ""))
        return cause or self._breakers[endpoint].cause or self._limits[endpoint]

    def report(self, endpoint: str, failure: EndpointFailure | None, text: str) -> None:
        """The driver gets a success only after a failure."""
        if failure is not None:
            with self._lock:
                self._failing.add(endpoint)
            self._breakers[endpoint].record_failure(failure, text)
            self._link.send(
                EndpointOutcome(
                    endpoint=endpoint, failure=failure.reason, cause=text, retry_after_s=failure.retry_after_s
                )
            )
        elif endpoint in self._failing:
            self._breakers[endpoint].record_success()
            self._link.send(EndpointOutcome(endpoint=endpoint))

    def on_lesson(self, frame: EndpointLesson) -> None:
        self.lessons.keep(frame.key, frame.capabilities, is_news=False)

    def leave(self, endpoint: str) -> None:
        with self._lock:
            keys = self._admitted.get(endpoint)
            key = keys.pop() if keys else None
        if key is not None:
            self._release(endpoint, key)

    def _needs_driver(self, endpoint: str) -> bool:
        rested = endpoint in self._rests or self._breakers[endpoint].rests_until is not None
        return rested or self._limits[endpoint] != ""

    def _release(self, endpoint: str, key: int) -> None:
        self._link.send(Release(name="enter", target=endpoint, instance=key))


class RemoteRegistry:
    """An ``InstanceRegistry`` in a worker: each request is a frame to the driver, which knows all episodes.

    The driver declares the number of places itself. The id of a place is the ``instance`` of its frames, so that a
    ``Release`` of a place that was not granted yet ends the wait for it.
    """

    def __init__(self, link: DriverLink) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._collected: deque[tuple[str, int, InstanceId]] = deque()

    async def enter(self, server: str, places: int | None) -> int:
        """Raises ``EnvironmentFault`` if the driver refuses the request."""
        self._leave_collected()
        place, entered = next(self._numbers), False
        try:
            reply = await self._link.request("place", server, place)
            _check(reply)
            entered = True
        finally:
            if not entered:
                self.leave(server, place)
        return place

    async def lease(self, server: str, instance: InstanceId) -> bool:
        """Raises ``EnvironmentFault`` if the driver cannot answer."""
        # The driver may grant a request after the episode was cancelled; then the lease must end.
        request = asyncio.ensure_future(self._link.request("lease", server, instance))
        try:
            reply = await asyncio.shield(request)
        except asyncio.CancelledError:
            request.add_done_callback(partial(self._release_granted, server, instance))
            raise
        return reply.granted if reply.error is None else _check(reply)

    def leave(self, server: str, place: int, instance: InstanceId | None = None) -> None:
        self._leave_collected()
        self._send_releases(server, place, instance)

    def collect(self, server: str, place: int, instance: InstanceId) -> None:
        """For finalizers: the place and its instance are sent with the next request or release."""
        self._collected.append((server, place, instance))

    def _leave_collected(self) -> None:
        while self._collected:
            self._send_releases(*self._collected.popleft())

    def _send_releases(self, server: str, place: int, instance: InstanceId | None) -> None:
        if instance is not None:
            self._link.send(Release(name="lease", target=server, instance=instance))
        self._link.send(Release(name="place", target=server, instance=place))

    def _release_granted(self, server: str, instance: InstanceId, request: asyncio.Future[Reply]) -> None:
        if not request.cancelled() and request.exception() is None and request.result().granted:
            self._link.send(Release(name="lease", target=server, instance=instance))


def _check(reply: Reply) -> bool:
    if reply.error is not None or not reply.granted:
        raise EnvironmentFault(f"The driver granted no place on the server: {reply.error or 'request refused'}")
    return True
