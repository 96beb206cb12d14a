"""The random baseline."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from runner.agents.base import TextAgent
from runner.errors import AgentFault
from runner.types import Chat, Environment


class RandomAgent(TextAgent):
    """Picks one of the environment's admissible actions, with the episode's seed (0 when none is given)."""

    def __init__(self) -> None:
        """Wait for ``bind``."""
        self._random = random.Random(0)
        self._environment: Environment | None = None

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        """Learn where the admissible actions come from, and the seed."""
        self._environment = environment
        self._random = random.Random(reset_kwargs.get("seed") or 0)

    def decide(self, observation: Chat) -> str:
        """One admissible action, each as likely as the others."""
        actions = self._environment.admissible_actions() if self._environment else None
        if not actions:
            name = type(self._environment).__name__
            raise AgentFault(f"{name} lists no admissible actions, so random cannot play it; choose another agent")
        return self._random.choice(actions)
