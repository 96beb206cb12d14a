"""A fixed list of actions, played in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from runner.errors import AgentFault
from runner.types import Action, Chat, ToolSchema


class TextAgent(ABC):
    """Answers each observation with one action text, without any model."""

    tracer: Any = None

    def init_after_reset(self) -> None:  # noqa: B027 - a default, not a hook that was forgotten
        """Nothing to prepare."""

    @abstractmethod
    def decide(self, observation: Chat) -> str:
        """The text of the next action."""

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        """The decision, with its chat."""
        return single_chat(observation, self.decide(observation))


def single_chat(observation: Chat, text: str) -> tuple[list[Chat], Action]:
    """What ``act`` returns for an action text: the observation and the answer as this step's only chat."""
    return [[*observation, {"role": "assistant", "content": text}]], Action(text=text)


class Script(msgspec.Struct, frozen=True):
    """The action texts of a script.

    A struct of its own because these are outside texts: a plain list would become part of the config tree that agents
    are built from, where ``${…}`` has a meaning.
    """

    actions: tuple[str, ...]


class ScriptedAgent(TextAgent):
    """Plays the actions of a script one by one.

    Args:
        script: what to play; an episode that wants more actions than it has ends in an error.
    """

    def __init__(self, *, script: Script) -> None:
        """Start at the script's beginning."""
        self._actions = script.actions
        self._next = 0

    def decide(self, observation: Chat) -> str:
        """The next action of the script."""
        if self._next >= len(self._actions):
            raise AgentFault(f"The script has {len(self._actions)} actions and the episode wants another one")
        self._next += 1
        return self._actions[self._next - 1]
