"""What a worker asks its driver for: requests within the limits of model endpoints, places and leases on servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runner.config import AgentSettings
from runner.inference.endpoints import EndpointSpec, resolve_endpoints
from runner.inference.errors import EndpointFailure
from runner.inference.gate import LocalGate
from runner.inference.manager import InferenceManager
from runner.worker.driver_link import DriverLink
from runner.worker.frames import EndpointLesson, EndpointOutcome, GatewayLink


def remote_manager(
    settings: AgentSettings, environ: Mapping[str, str], link: DriverLink, now: Callable[[], float]
) -> tuple[InferenceManager, RemoteGate]:
    gate = RemoteGate(link, resolve_endpoints(settings, environ), now)

    def on_gateway_id(episode_id: str, endpoint: str, gateway_id: str) -> None:
        link.send(GatewayLink(episode_id=episode_id, endpoint=endpoint, gateway_id=gateway_id))

    return InferenceManager(settings, environ, gate=gate, on_gateway_id=on_gateway_id), gate


class RemoteGate(LocalGate):
    """The gate of a worker: endpoints rest as this worker sees them, and the driver admits requests within the limits.

    The driver learns of failures, and of the first success after one.
    """

    def __init__(self, link: DriverLink, specs: Iterable[EndpointSpec], now: Callable[[], float]) -> None:
        super().__init__(specs, now)
        self._link = link
        self._failing: set[str] = set()
        self.lessons.watch(lambda key, learned: link.send(EndpointLesson(key=key, capabilities=learned)))

    async def _ask(self, endpoint: str, key: str) -> bool:
        if not self._entrances[endpoint].limit_text:
            return await super()._ask(endpoint, key)
        return self.wait_s(endpoint) <= 0 and await self._link.grant("enter", endpoint, key)

    def leave(self, endpoint: str, key: str) -> None:
        if not self._entrances[endpoint].limit_text:
            super().leave(endpoint, key)
        else:
            self._link.release("enter", endpoint, key)

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
