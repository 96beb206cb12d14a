"""Random baseline agent: ``RandomAgent``."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping
from typing import Any

from runner.agents.scripted import single_chat
from runner.errors import AgentFault
from runner.types import Action, Chat, Environment, MaybeAwaitable, SupportsActionList, ToolSchema
from runner.types.maybe_async import is_awaitable, optional_method


class RandomAgent:
    """Agent that chooses an admissible action at random, by a generator with the episode's seed (default 0)."""

    tracer: Any = None

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._environment: Environment | None = None

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        self._environment = environment
        self._random = random.Random(reset_kwargs.get("seed") or 0)

    def init_after_reset(self) -> None: ...

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401 - async as the environment
        """Return a uniformly chosen admissible action, as an awaitable if the environment is async.

        Raises:
            AgentFault: if the environment lists no admissible actions.
        """
        actions: MaybeAwaitable[list[str] | None] = None
        if self._environment is not None:
            list_actions = optional_method(self._environment, SupportsActionList.admissible_actions)
            actions = None if list_actions is None else list_actions()
        if is_awaitable(actions):
            return self._act_later(observation, actions)
        return single_chat(observation, self._choice(actions))

    async def _act_later(self, observation: Chat, actions: Awaitable[list[str] | None]) -> tuple[list[Chat], Action]:
        return single_chat(observation, self._choice(await actions))

    def _choice(self, actions: object) -> str:
        if not isinstance(actions, list) or not actions:
            name = type(self._environment).__name__
            raise AgentFault(f"{name} lists no admissible actions, which random needs; choose another agent")
        return str(self._random.choice(actions))
