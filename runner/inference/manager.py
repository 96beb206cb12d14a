"""Entry point to inference: the model endpoints of a profile, which all episodes of a process share."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterable, Mapping

import msgspec

from runner.config import AgentSettings
from runner.config.profile import FeedbackMetrics
from runner.inference.api_keys import build_mask, read_api_key
from runner.inference.endpoint_state import InferenceContext, LiveEndpoint, Timing
from runner.inference.endpoints import CHECK_TIMEOUT_S, EndpointSpec, resolve_endpoints
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.gate import LocalGate
from runner.inference.health import EndpointHealth, check_endpoints
from runner.inference.http import bearer_header, fetch
from runner.inference.inference_session import InferenceSession, OnGatewayId
from runner.inference.server_metrics import MetricsReader
from runner.types import EpisodeHeader
from runner.util.background_queue import BackgroundQueue
from runner.util.clock import new_ulid
from runner.util.display_text import one_line
from runner.util.urls import url_origin

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
FLUSH_TIMEOUT_S = 5.0
MAX_QUEUED = 1000
MAX_EPISODES = 10_000
"""Maximum number of running episodes whose gateway ids are kept; the oldest ids are dropped."""


class FeedbackSender:
    """Sends feedback in the background to the endpoints of ``specs``, or none if ``metrics`` is None; thread-safe."""

    def __init__(
        self, metrics: FeedbackMetrics | None, specs: Iterable[EndpointSpec], environ: Mapping[str, str], mask: Mask
    ) -> None:
        self._metrics = metrics
        self._specs = {spec.name: spec for spec in specs}
        self._environ = environ
        self._mask = mask
        self._lock = threading.Lock()
        self._links: dict[str, list[tuple[EndpointSpec, str]]] = {}
        self._queue = BackgroundQueue("feedback", self._deliver, MAX_QUEUED)
        self._warned = False

    def remember(self, episode_id: str, endpoint: str, gateway_id: str) -> None:
        """Keep a gateway's id of an episode until ``send`` uses it; an unknown endpoint is ignored."""
        spec = self._specs.get(endpoint)
        if self._metrics is None or spec is None:
            return
        with self._lock:
            self._links.setdefault(episode_id, []).append((spec, gateway_id))
            if len(self._links) > MAX_EPISODES:
                del self._links[next(iter(self._links))]

    def send(self, episode_id: str, reward: float, success: bool) -> None:
        """Queue an episode's sum of rewards and success for every gateway that answered in it; never blocks."""
        with self._lock:
            links = self._links.pop(episode_id, [])
        if self._metrics is None:
            return
        values = (self._metrics.reward, float(reward)), (self._metrics.success, bool(success))
        for link, (metric, value) in itertools.product(links, values):
            if metric is not None and not self._queue.put((*link, metric, value)):
                self._warn(f"{MAX_QUEUED} items are queued already")

    def close(self) -> None:
        """Takes at most ``FLUSH_TIMEOUT_S`` seconds, and drops what is not sent by then."""
        if not self._queue.close(FLUSH_TIMEOUT_S):
            self._warn("the gateway is too slow; the unsent feedback is dropped")

    async def _deliver(self, item: tuple[EndpointSpec, str, str, float | bool]) -> None:
        spec, gateway_id, metric, value = item
        body = {"metric_name": metric, "value": value, "episode_id": gateway_id}
        try:
            headers = bearer_header(read_api_key(spec, "tensorzero", self._environ))
            response = await fetch("POST", url_origin(spec.url) + "/feedback", body, headers, REQUEST_TIMEOUT_S)
            if response.status != 200:
                raise response_failure(response.status, response.body, self._mask)
        except EndpointFailure as failure:
            self._warn(f"{metric}: {failure}")

    def _warn(self, text: str) -> None:
        # Only the first failure is logged: a gateway without a database rejects every item.
        if not self._warned:
            self._warned = True
            logger.warning("feedback failed: %s; further failures are not logged", one_line(self._mask(text), 300))


class InferenceManager:
    """Sends inferences to the endpoints of a profile; thread-safe, usable on several event loops, one per process.

    A pickled manager contains no API keys; the unpickling process reads them from its own environment variables.
    Without a ``gate``, a ``LocalGate`` of its own admits the requests; gateways' ids of episodes go to
    ``on_gateway_id``, or else to ``remember_gateway_id``.
    """

    def __init__(
        self,
        settings: AgentSettings,
        environ: Mapping[str, str],
        timing: Timing | None = None,
        gate: LocalGate | None = None,
        on_gateway_id: OnGatewayId | None = None,
        only: str | None = None,
    ) -> None:
        specs, timing = resolve_endpoints(settings, environ), timing or Timing()
        endpoints = tuple(LiveEndpoint(spec) for spec in specs if only in (None, spec.name))
        gate = gate or LocalGate(specs, timing.clock.monotonic)
        mask = build_mask(specs, environ)
        self._context = context = InferenceContext(settings, environ, timing, endpoints, gate, mask)
        sender = FeedbackSender(settings.feedback, [each.spec for each in endpoints], environ, mask)
        self.remember_gateway_id, self.feedback, self.close = sender.remember, sender.send, sender.close
        self.read_servers = MetricsReader(context).read
        self._on_gateway_id = on_gateway_id or self.remember_gateway_id

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self._context.settings)

    @property
    def gate(self) -> LocalGate:
        return self._context.gate

    @property
    def endpoints(self) -> tuple[LiveEndpoint, ...]:
        """In the order in which an inference tries the endpoints."""
        return self._context.endpoints

    def session(self, header: EpisodeHeader, model: str | None = None) -> InferenceSession:
        """The model is ``model``, else the header's, else the profile's."""
        chosen = model or header.model or self._context.settings.model
        return InferenceSession(self._context, self._on_gateway_id, header.episode_id, chosen)

    def model_session(self, model: str) -> InferenceSession:
        """Return a session outside the episodes, as for a judge: with the endpoints of one model, without feedback."""
        endpoints = tuple(each for each in self._context.endpoints if each.spec.model in (None, model))
        context = msgspec.structs.replace(self._context, endpoints=endpoints)
        return InferenceSession(context, lambda *ids: None, f"{model}:{new_ulid()}", model)

    async def check(self, model: str | None = None, *, timeout_s: float = CHECK_TIMEOUT_S) -> list[EndpointHealth]:
        """Does not run a model."""
        return await check_endpoints(self._context, model or self._context.settings.model, timeout_s)


def _rebuild(kind: type[InferenceManager], settings: AgentSettings) -> InferenceManager:
    return kind(settings, os.environ)
