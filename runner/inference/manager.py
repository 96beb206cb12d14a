"""Entry point to inference: the model endpoints of a profile, which all episodes of a process share."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from runner.config.profile import AgentSettings
from runner.inference.endpoint_state import InferenceContext, Timing
from runner.inference.endpoints import CHECK_TIMEOUT_S, EndpointInfo
from runner.inference.feedback import FeedbackSender
from runner.inference.gate import EndpointGate
from runner.inference.health import EndpointHealth, check_endpoints
from runner.inference.inference_session import InferenceSession, OnGatewayId
from runner.inference.server_metrics import MetricsReader, ServerLoad
from runner.types import EpisodeHeader
from runner.util.clock import new_ulid

FLUSH_TIMEOUT_S = 5.0
"""Maximum seconds that ``close`` takes to send the queued feedback."""


class InferenceManager:
    """Sends inferences to the endpoints of a profile; thread-safe, usable on several event loops, one per process.

    A pickled manager contains no API keys; the unpickling process reads them from its own environment variables.

    Args:
        gate: admits the requests; None: a ``LocalGate`` of its own.
        on_gateway_id: receives gateways' ids of episodes; None: ``remember_gateway_id``.
    """

    def __init__(
        self,
        settings: AgentSettings,
        environ: Mapping[str, str],
        timing: Timing | None = None,
        gate: EndpointGate | None = None,
        on_gateway_id: OnGatewayId | None = None,
        only: str | None = None,
    ) -> None:
        context = InferenceContext.build(settings, environ, timing or Timing(), gate)
        endpoints = tuple(each for each in context.endpoints if only in (None, each.spec.name))
        self._context = context = msgspec.structs.replace(context, endpoints=endpoints)
        specs = [endpoint.spec for endpoint in context.endpoints]
        self._feedback = FeedbackSender(settings.feedback, specs, environ, context.mask)
        self._metrics = MetricsReader(context)
        self._on_gateway_id = on_gateway_id or self.remember_gateway_id

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self._context.settings)

    @property
    def endpoints(self) -> list[EndpointInfo]:
        """In the order in which an inference tries the endpoints."""
        return [endpoint.info(self._context.settings.model) for endpoint in self._context.endpoints]

    def session(self, header: EpisodeHeader, model: str | None = None) -> InferenceSession:
        """The model is ``model``, else the header's, else the profile's."""
        chosen = model or header.model or self._context.settings.model
        return InferenceSession(self._context, self._on_gateway_id, header.episode_id, chosen)

    def model_session(self, model: str) -> InferenceSession:
        """Return an inference session of one model outside the episodes, such as for an environment's judge.

        It uses only the endpoints that serve this model, and no feedback concerns it.
        """
        endpoints = tuple(each for each in self._context.endpoints if each.spec.model in (None, model))
        context = msgspec.structs.replace(self._context, endpoints=endpoints)
        return InferenceSession(context, _ignore_gateway_id, f"{model}:{new_ulid()}", model)

    async def check(self, model: str | None = None, *, timeout_s: float = CHECK_TIMEOUT_S) -> list[EndpointHealth]:
        """Does not run a model."""
        return await check_endpoints(self._context, model or self._context.settings.model, timeout_s)

    async def read_servers(self) -> list[ServerLoad]:
        """The means of the servers split later answers."""
        return await self._metrics.read()

    def remember_gateway_id(self, episode_id: str, endpoint: str, gateway_id: str) -> None:
        """Keep a gateway's id of an episode for ``feedback``, as a worker in another process reports it."""
        self._feedback.remember(episode_id, endpoint, gateway_id)

    def feedback(self, episode_id: str, reward: float, success: bool) -> None:
        """Queue the reward (the sum of the rewards) and success of an episode for TensorZero.

        Does nothing if no TensorZero gateway answered in the episode, or the profile disables feedback.
        """
        self._feedback.send(episode_id, reward, success)

    def close(self) -> None:
        """Takes at most ``FLUSH_TIMEOUT_S`` seconds; each event loop closes its connections."""
        self._feedback.close(FLUSH_TIMEOUT_S)


def _ignore_gateway_id(episode: str, endpoint: str, gateway_id: str) -> None:
    pass


def _rebuild(kind: type[InferenceManager], settings: AgentSettings) -> InferenceManager:
    return kind(settings, os.environ)
