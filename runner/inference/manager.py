"""Entry point of inference: the model endpoints of a profile, shared by all episodes of a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from runner.config.profile import AgentSettings
from runner.inference.endpoint_state import InferenceContext, Timing
from runner.inference.endpoints import EndpointInfo
from runner.inference.feedback import FeedbackSender
from runner.inference.health import CHECK_TIMEOUT_S, EndpointHealth, check_endpoints
from runner.inference.inference_session import InferenceSession
from runner.types import EpisodeHeader

FLUSH_TIMEOUT_S = 5.0
"""Maximum seconds for ``close`` to send the queued feedback."""


class InferenceManager:
    """Sends inferences to a chain of endpoints; one per process, thread-safe and usable on several event loops.

    It can be pickled without its API keys, which are read from the environment of the unpickling process.

    Args:
        settings: the profile's ``agent`` section.
        environ: variables with API keys and OLLAMA_HOST.
        timing: clock, sleep and random numbers; replaced in tests.
    """

    def __init__(self, settings: AgentSettings, environ: Mapping[str, str], timing: Timing | None = None) -> None:
        """Prepare the endpoints; no connection is made."""
        self._context = InferenceContext.build(settings, environ, timing or Timing())
        self._feedback = FeedbackSender(settings.feedback, self._context.mask)

    @classmethod
    def from_profile(cls, settings: AgentSettings, environ: Mapping[str, str]) -> Self:
        """Return the manager of a profile's ``agent`` section."""
        return cls(settings, environ)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self._context.settings)

    @property
    def endpoints(self) -> list[EndpointInfo]:
        """Endpoints for display, in the order in which they are tried."""
        return [endpoint.info(self._context.settings.model) for endpoint in self._context.endpoints]

    def session(self, header: EpisodeHeader, model: str | None = None) -> InferenceSession:
        """Return a session for one episode; ``model`` overrides the profile's model."""
        return InferenceSession(self._context, self._feedback, header, model or self._context.settings.model)

    def supports_tools(self, session: InferenceSession) -> bool:
        """Return whether the session's next endpoint accepts tools, as far as known; sends no request."""
        return session.supports_tools

    async def check(self, model: str | None = None, *, timeout_s: float = CHECK_TIMEOUT_S) -> list[EndpointHealth]:
        """Return the health of each endpoint within ``timeout_s`` seconds, without running a model."""
        return await check_endpoints(self._context, model or self._context.settings.model, timeout_s)

    def feedback(self, episode_id: str, reward: float, success: bool) -> None:
        """Queue an episode's reward and success for TensorZero, if it answered in the episode and the profile asks so.

        Args:
            episode_id: the id in the session's episode header.
            reward: sum of the episode's rewards.
            success: whether the episode reached its goal.
        """
        self._feedback.send(episode_id, reward, success)

    def close(self) -> None:
        """Send the queued feedback, for at most ``FLUSH_TIMEOUT_S``; connections close with their event loops."""
        self._feedback.close(FLUSH_TIMEOUT_S)


def _rebuild(kind: type[InferenceManager], settings: AgentSettings) -> InferenceManager:
    return kind(settings, os.environ)
