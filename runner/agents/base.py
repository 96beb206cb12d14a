"""What the built-in agents have in common: a chat per step, and an action given as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

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
        return turn(observation, self.decide(observation))


def turn(observation: Chat, text: str) -> tuple[list[Chat], Action]:
    """What ``act`` returns for an action text: the observation and the answer as this step's only chat."""
    return [[*observation, {"role": "assistant", "content": text}]], Action(text=text)
