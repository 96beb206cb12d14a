"""The random baseline."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping
from typing import Any

from runner.agents.scripted import single_chat
from runner.errors import AgentFault
from runner.types import Action, Chat, Environment, MaybeAwaitable, ToolSchema
from runner.types.maybe_async import is_awaitable


class RandomAgent:
    """Picks one of the environment's admissible actions, with the episode's seed (0 when none is given)."""

    tracer: Any = None

    def __init__(self) -> None:
        """Wait for ``bind``."""
        self._random = random.Random(0)
        self._environment: Environment | None = None

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        """Learn where the admissible actions come from, and the seed."""
        self._environment = environment
        self._random = random.Random(reset_kwargs.get("seed") or 0)

    def init_after_reset(self) -> None:
        """Nothing to prepare."""

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401 - async as the environment
        """One admissible action, each as likely as the others."""
        actions: MaybeAwaitable[list[str] | None] = None
        if self._environment is not None:
            actions = self._environment.admissible_actions()
        if is_awaitable(actions):
            return self._act_later(observation, actions)
        return single_chat(observation, self._choice(actions))

    async def _act_later(self, observation: Chat, actions: Awaitable[list[str] | None]) -> tuple[list[Chat], Action]:
        return single_chat(observation, self._choice(await actions))

    def _choice(self, actions: object) -> str:
        if not isinstance(actions, list) or not actions:
            name = type(self._environment).__name__
            raise AgentFault(f"{name} lists no admissible actions, so random cannot play it; choose another agent")
        return str(self._random.choice(actions))
