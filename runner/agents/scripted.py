"""A fixed list of actions, played in order."""

from __future__ import annotations

import msgspec

from runner.agents.base import TextAgent
from runner.errors import AgentFault
from runner.types import Chat


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
