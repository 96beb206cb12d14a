"""What is known of an environment without its server: its commands, how many tasks it has, what counts as success."""

from __future__ import annotations

import pkgutil
import re
from typing import Protocol

from runner.envs.grammar import CommandPattern, Grammar
from runner.envs.http.dialects import ClientDialect
from runner.envs.http.response import Payload
from runner.types import Action, InvalidAction, Mode, Trajectory

UNKNOWN_N_TASKS = 2**31
"""The number of tasks where it is not known; what a server does not have it answers with an error."""
_ROUNDING = 1e-9


class TaskRules(Protocol):
    """What an embedded environment knows before its first reset."""

    n_tasks: int

    @property
    def grammar(self) -> Grammar:
        """The commands."""

    def parse(self, text: str) -> Action | InvalidAction:
        """The tool call that a text means."""

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the goal was reached."""

    def admissible_actions(self) -> list[str] | None:
        """Actions that are always possible; asked only where the dialect says that the rules have them."""


class FreeTextRules:
    """The rules of an environment that only its server has: any text is an action."""

    def __init__(self, dialect: ClientDialect) -> None:
        """Make the one tool there is."""
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
        """The text as a call of the one tool."""
        return self.grammar.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the rewards got as high as the dialect says that they can."""
        rewards = [step.reward for step in trajectory.timesteps]
        reached = sum(rewards) if self._dialect.reward == "total" else max(rewards, default=0.0)
        return reached >= self._dialect.best - _ROUNDING

    def admissible_actions(self) -> None:
        """Nothing is known of them."""


def rules_for(dialect: ClientDialect, mode: Mode) -> TaskRules:
    """The rules of a dialect's environment, from its embedded class where it has one."""
    if dialect.embedded is None:
        return FreeTextRules(dialect)
    rules: TaskRules = pkgutil.resolve_name(dialect.embedded)(mode=mode)
    return rules


def count_tasks(dialect: ClientDialect, mode: Mode, rules: TaskRules) -> int:
    """How many tasks a server has that did not say it: only ours are strict, and those have the embedded ones."""
    known = None if mode == "strict" and dialect.embedded else dialect.n_tasks
    return known or rules.n_tasks


_COMPLETED = "The task is completed."
"""BabyAI's server says so even where it takes back ``done``, which it does for a success after half of the time."""


_TRUNCATED = ("truncated",)


class RewardReader:
    """The rewards of one episode, read reply by reply.

    Attributes:
        truncated: whether the server ended the episode by a limit of its own.
    """

    def __init__(self, dialect: ClientDialect) -> None:
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
