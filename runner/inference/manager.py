"""The model's endpoints of a profile, behind one door."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from runner.config.profile import AgentSettings
from runner.inference.endpoint_state import InferenceContext, Timing
from runner.inference.endpoints import EndpointInfo
from runner.inference.feedback import FeedbackSender
from runner.inference.health import EndpointHealth, check_endpoints
from runner.inference.session import InferenceSession
from runner.types import EpisodeHeader

FLUSH_TIMEOUT_S = 5.0
"""Seconds that ``close`` gives to the feedback that waits."""


class InferenceManager:
    """Asks a chain of endpoints; one for the whole process, usable by several threads and event loops.

    It can be pickled. Keys do not travel along: they are read from the environment of the process it arrives in.

    Args:
        settings: the profile's.
        environ: where keys and OLLAMA_HOST are.
        timing: time and chance, for tests.
    """

    def __init__(self, settings: AgentSettings, environ: Mapping[str, str], timing: Timing | None = None) -> None:
        """Prepare; nothing is asked and no connection made."""
        self._context = InferenceContext.build(settings, environ, timing or Timing())
        self._feedback = FeedbackSender(settings.feedback, self._context.mask)

    @classmethod
    def from_profile(cls, settings: AgentSettings, environ: Mapping[str, str]) -> Self:
        """The manager of a profile's ``agent`` section."""
        return cls(settings, environ)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self._context.settings)

    @property
    def endpoints(self) -> list[EndpointInfo]:
        """The endpoints in the order they are asked, as they may be shown."""
        return [endpoint.info(self._context.settings.model) for endpoint in self._context.endpoints]

    def session(self, header: EpisodeHeader, model: str | None = None) -> InferenceSession:
        """The inferences of one episode; ``model`` takes the place of the profile's."""
        return InferenceSession(self._context, self._feedback, header, model or self._context.settings.model)

    def supports_tools(self, session: InferenceSession) -> bool:
        """Whether the endpoint that a session asks next takes tools, as far as is known; asks nothing."""
        return session.supports_tools

    async def check(self, model: str | None = None) -> list[EndpointHealth]:
        """How each endpoint is, in 2 seconds at most; no model is made to answer for it."""
        return await check_endpoints(self._context, model or self._context.settings.model)

    def feedback(self, episode_id: str, reward: float, success: bool) -> None:
        """Tell TensorZero how an episode went, if it answered in it and the profile wants that; returns at once.

        Args:
            episode_id: ours, as in the header that the session was made with.
            reward: the sum of the episode's rewards.
            success: whether it reached the environment's goal.
        """
        self._feedback.send(episode_id, reward, success)

    def close(self) -> None:
        """Send the feedback that waits, for some seconds at most; connections are closed with their event loops."""
        self._feedback.close(FLUSH_TIMEOUT_S)


def _rebuild(kind: type[InferenceManager], settings: AgentSettings) -> InferenceManager:
    return kind(settings, os.environ)
