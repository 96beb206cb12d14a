"""What a step gave: servers differ in what they call a reward and in how they say that an episode is over."""

from __future__ import annotations

from runner.envs.http.dialects import Dialect
from runner.envs.http.response import Payload

_COMPLETED = "The task is completed."
"""BabyAI's server says so even where it takes back ``done``, which it does for a success after half of the time."""
_TRUNCATED = ("truncated",)


class Scoring:
    """The rewards of one episode, read reply by reply.

    Attributes:
        truncated: whether the server ended the episode by a limit of its own.
    """

    def __init__(self, dialect: Dialect) -> None:
        """Start with no reward."""
        self._dialect = dialect
        self._total = 0.0
        self.truncated = False

    def read(self, payload: Payload, observation: str) -> tuple[float, bool]:
        """A step's own reward, and whether the episode is over.

        Raises:
            EnvironmentFault: where the reply has no number or no flag where it should.
        """
        said, done = payload.number(self._dialect.reward_at), payload.flag(self._dialect.done_at)
        self.truncated = payload.has(_TRUNCATED) and payload.flag(_TRUNCATED)
        reward, completed = said, False
        if self._dialect.reward == "total":
            reward, self._total = said - self._total, said
        elif self._dialect.reward == "once":
            reward = 0.0 if self._total else said
            completed = said != 0 and _COMPLETED in observation
            self._total = self._total or said
        return reward, done or completed or self.truncated
