"""Rules of an environment that is played over HTTP: commands, number of tasks, success, rewards.

``rules_for`` returns the ``TaskRules`` of a dialect: its embedded class, else ``FreeTextRules``. ``count_tasks``
returns its number of tasks. ``RewardReader`` turns the server's reward and done fields into step rewards.
"""

from __future__ import annotations

import pkgutil
import re
from typing import Protocol

from runner.envs.command_grammar import CommandPattern, Grammar
from runner.envs.http.dialects import ClientDialect, JsonPath
from runner.envs.http.response import Payload
from runner.types import Action, InvalidAction, Mode, Trajectory

UNKNOWN_N_TASKS = 2**31
"""Number of tasks if it is unknown. The server answers with an error for an index that it does not have."""
_ROUNDING_TOLERANCE = 1e-9


class TaskRules(Protocol):
    """The part of an embedded environment that works before its first reset."""

    n_tasks: int

    @property
    def grammar(self) -> Grammar:
        """Commands of the environment."""

    def parse(self, text: str) -> Action | InvalidAction:
        """Parse an action text into a tool call."""

    def success(self, trajectory: Trajectory) -> bool:
        """Return whether the episode reached its goal."""

    def admissible_actions(self) -> list[str] | None:
        """Return actions that are always possible. Called only for dialects with ``actions="rules"``."""


class FreeTextRules:
    """Rules of an environment without an embedded class: one tool, ``act``, that takes any text."""

    def __init__(self, dialect: ClientDialect) -> None:
        """Create the grammar with its single command."""
        self.n_tasks = UNKNOWN_N_TASKS
        self._dialect = dialect
        act = CommandPattern(
            name="act",
            description=f"Act in {dialect.name}. Expects {dialect.expected}.",
            template="{text}",
            pattern=re.compile(r"(?P<text>.*\S.*)", re.DOTALL),
            parameters={"text": {"type": "string", "description": dialect.expected}},
        )
        self.grammar = Grammar([act], expected=dialect.expected)

    def parse(self, text: str) -> Action | InvalidAction:
        """Return the text as a call of ``act``."""
        return self.grammar.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        """Return whether the reward reached the dialect's ``best``."""
        rewards = [step.reward for step in trajectory.timesteps]
        reached = sum(rewards) if self._dialect.reward == "total" else max(rewards, default=0.0)
        return reached >= self._dialect.best - _ROUNDING_TOLERANCE

    def admissible_actions(self) -> None:
        """Return None: only the server knows the admissible actions."""


def rules_for(dialect: ClientDialect, mode: Mode) -> TaskRules:
    """Return the rules of a dialect's environment: its embedded class if it has one, else free text."""
    if dialect.embedded is None:
        return FreeTextRules(dialect)
    rules: TaskRules = pkgutil.resolve_name(dialect.embedded)(mode=mode)
    return rules


def count_tasks(dialect: ClientDialect, mode: Mode, rules: TaskRules) -> int:
    """Return the number of tasks of a server that does not report it.

    A server with strict rules is this project's own, which has the tasks of the embedded class.
    """
    n_agentgym_tasks = None if mode == "strict" and dialect.embedded else dialect.n_tasks
    return n_agentgym_tasks or rules.n_tasks


_COMPLETED_TEXT = "The task is completed."
"""Marks success in an observation of BabyAI's server, which resets ``done`` if the reward is 0.5 or less.

Source: ``agentenv-babyai/agentenv_babyai/environment.py``.
"""
_TRUNCATED_PATH: JsonPath = ("truncated",)


class RewardReader:
    """Reads the rewards of one episode, one reply at a time.

    Attributes:
        truncated: whether the server ended the episode at its own limit.
    """

    def __init__(self, dialect: ClientDialect) -> None:
        """Start with a total reward of 0."""
        self._dialect = dialect
        self._total = 0.0
        self.truncated = False

    def read(self, payload: Payload, observation: str) -> tuple[float, bool]:
        """Return ``(reward of this step, whether the episode is over)``.

        Raises:
            EnvironmentFault: if the reply lacks the reward or the done flag.
        """
        value, done = payload.number(self._dialect.reward_at), payload.flag(self._dialect.done_at)
        self.truncated = payload.has(_TRUNCATED_PATH) and payload.flag(_TRUNCATED_PATH)
        reward, completed = value, False
        if self._dialect.reward == "total":
            reward, self._total = value - self._total, value
        elif self._dialect.reward == "once":
            reward = 0.0 if self._total else value
            completed = value != 0 and _COMPLETED_TEXT in observation
            self._total = self._total or value
        return reward, done or completed or self.truncated
