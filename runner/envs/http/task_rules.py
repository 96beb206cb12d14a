"""Rules of an environment that is played over HTTP: commands, number of tasks, success, rewards.

``rules_for`` returns the ``TaskRules`` of a dialect: its embedded class, else ``FreeTextRules``. ``count_tasks``
returns the number of tasks of a server. ``RewardReader`` turns the server's reward and done fields into step rewards.
"""

from __future__ import annotations

import pkgutil
import re
from typing import TypeAlias

from runner.envs.base import EmbeddedEnvironment
from runner.envs.command_grammar import CommandPattern, Grammar
from runner.envs.http.dialects import ClientDialect, JsonPath
from runner.envs.http.response import Payload
from runner.types import Action, InvalidAction, Mode, Trajectory

UNKNOWN_N_TASKS = 2**31
"""Assumed number of tasks if the server's number is unknown. The server rejects a task index that it does not have."""
_ROUNDING_TOLERANCE = 1e-9


class FreeTextRules:
    """Rules of an environment without an embedded class: one tool, ``act``, that takes any text."""

    def __init__(self, dialect: ClientDialect) -> None:
        """Create the command grammar, with ``act`` as its only command."""
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
        """Return whether a reward, or the sum of rewards if the server reports sums, reached the dialect's ``best``."""
        rewards = [step.reward for step in trajectory.timesteps]
        reached = sum(rewards) if self._dialect.reward == "total" else max(rewards, default=0.0)
        return reached >= self._dialect.best - _ROUNDING_TOLERANCE

    def admissible_actions(self) -> None:
        """Return None: only the server knows the admissible actions."""


TaskRules: TypeAlias = EmbeddedEnvironment | FreeTextRules
"""Only what works before the first reset of an embedded environment is used of it."""


def rules_for(dialect: ClientDialect, mode: Mode) -> TaskRules:
    """Return the rules for a dialect: an instance of its embedded class if it names one, else ``FreeTextRules``."""
    if dialect.embedded is None:
        return FreeTextRules(dialect)
    rules: TaskRules = pkgutil.resolve_name(dialect.embedded)(mode=mode)
    return rules


def count_tasks(dialect: ClientDialect, mode: Mode, rules: TaskRules) -> int:
    """Return the number of tasks of a server that does not report it.

    A server with strict rules is one of this project's own servers, which have as many tasks as the embedded class.
    """
    n_agentgym_tasks = None if mode == "strict" and dialect.embedded else dialect.n_tasks
    return n_agentgym_tasks or rules.n_tasks


_COMPLETED_TEXT = "The task is completed."
"""Text that marks success in observations of BabyAI's server, which resets ``done`` if the reward is 0.5 or less.

Source: ``agentenv-babyai/agentenv_babyai/environment.py``.
"""
_TRUNCATED_PATH: JsonPath = ("truncated",)


class RewardReader:
    """Converts the reward and done fields of one episode's replies into step rewards, one reply at a time.

    Attributes:
        truncated: whether the server ended the episode at the server's own step limit.
    """

    def __init__(self, dialect: ClientDialect) -> None:
        """Create a reader for a new episode."""
        self._dialect = dialect
        self._total = 0.0
        self.truncated = False

    def start(self, payload: Payload) -> None:
        """Read the reply to ``reset``, which may hold a sum of rewards.

        Raises:
            EnvironmentFault: if the sum is not a number.
        """
        if self._dialect.reward == "total" and payload.has(self._dialect.reward_at):
            self._total = payload.number(self._dialect.reward_at)

    @property
    def reached_best(self) -> bool:
        """Whether the server reports sums, and the latest sum reached the dialect's ``best``."""
        return self._dialect.reward == "total" and self._total >= self._dialect.best - _ROUNDING_TOLERANCE

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
