"""What a worker asks its driver for: requests within the limits of model endpoints, places and leases on servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping

import msgspec

from runner.config import AgentSettings
from runner.config.profile import RateLimit
from runner.inference.endpoints import EndpointSpec, resolve_endpoints
from runner.inference.entrance import describe_limit
from runner.inference.errors import EndpointFailure
from runner.inference.gate import LocalGate, with_learners
from runner.inference.manager import InferenceManager
from runner.worker.driver_link import DriverLink
from runner.worker.frames import EndpointLesson, EndpointOutcome, GatewayLink


def remote_manager(
    settings: AgentSettings, environ: Mapping[str, str], link: DriverLink, now: Callable[[], float]
) -> tuple[InferenceManager, RemoteGate]:
    """Return the models of a worker, and their gate."""
    gate = RemoteGate(link, resolve_endpoints(settings, environ), now)

    def on_gateway_id(episode_id: str, endpoint: str, gateway_id: str) -> None:
        link.send(GatewayLink(episode_id=episode_id, endpoint=endpoint, gateway_id=gateway_id))

    return InferenceManager(settings, environ, gate=gate, on_gateway_id=on_gateway_id), gate


class RemoteGate(LocalGate):
    """The gate of a worker: endpoints rest as this worker sees them, and the driver admits requests within the limits.

    The driver learns of failures, and of the first success after one.
    """

    def __init__(self, link: DriverLink, specs: Iterable[EndpointSpec], now: Callable[[], float]) -> None:
        specs = list(specs)
        self._limits = {spec.name: describe_limit(spec.limit) for spec in with_learners(specs)}
        super().__init__([msgspec.structs.replace(spec, limit=RateLimit()) for spec in specs], now)
        self._link = link
        self._keys = itertools.count()
        self._failing: set[str] = set()
        self._admitted: dict[str, list[int]] = {}
        self.lessons.watch(lambda key, learned: link.send(EndpointLesson(key=key, capabilities=learned)))

    async def enter(self, endpoint: str, time_left_s: float) -> bool:
        if not self._limits[endpoint]:
            return await super().enter(endpoint, time_left_s)
        if self.wait_s(endpoint) > 0:
            return False
        key, is_admitted = next(self._keys), False
        try:
            async with asyncio.timeout(time_left_s):
                is_admitted = await self._link.grant("enter", endpoint, key)
        except TimeoutError:
            pass
        finally:
            if is_admitted:
                self._admitted.setdefault(endpoint, []).append(key)
            else:
                self._link.release("enter", endpoint, key)
        return is_admitted

    def cause(self, endpoint: str) -> str:
        return super().cause(endpoint) or self._limits[endpoint]

    def report(self, endpoint: str, failure: EndpointFailure | None, text: str) -> None:
        super().report(endpoint, failure, text)
        if failure is not None:
            self._failing.add(endpoint)
            wait_s = failure.retry_after_s
            self._link.send(
                EndpointOutcome(endpoint=endpoint, failure=failure.reason, cause=text, retry_after_s=wait_s)
            )
        elif endpoint in self._failing:
            self._failing.discard(endpoint)
            self._link.send(EndpointOutcome(endpoint=endpoint))

    def leave(self, endpoint: str) -> None:
        if not self._limits[endpoint]:
            super().leave(endpoint)
        elif keys := self._admitted.get(endpoint):
            self._link.release("enter", endpoint, keys.pop())
