"""Agent without a model: ``ScriptedAgent``, which plays a fixed list of actions."""

from __future__ import annotations

from typing import Any

import msgspec

from runner.errors import AgentFault
from runner.types import Action, Chat, ToolSchema


def single_chat(observation: Chat, text: str) -> tuple[list[Chat], Action]:
    return [[*observation, {"role": "assistant", "content": text}]], Action(text=text)


class Script(msgspec.Struct, frozen=True):
    """The action texts of a script.

    The texts are untrusted. They are in a struct because the config tree that agents are built from would interpolate
    ``${…}`` in plain strings.
    """

    actions: tuple[str, ...]


class ScriptedAgent:
    tracer: Any = None

    def __init__(self, *, script: Script) -> None:
        self._actions = script.actions
        self._next = 0

    def init_after_reset(self) -> None:
        self._next = 0

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        """Return the next action of the script.

        Raises:
            AgentFault: if the script has no more actions.
        """
        if self._next >= len(self._actions):
            raise AgentFault(f"The script has only {len(self._actions)} actions, but the episode is not over")
        self._next += 1
        return single_chat(observation, self._actions[self._next - 1])
