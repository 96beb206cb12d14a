"""What is known of an environment without its server: its commands, how many tasks it has, what counts as success."""

from __future__ import annotations

import pkgutil
import re
from typing import Protocol

from runner.envs.grammar import Command, Grammar
from runner.envs.http.dialects import Dialect
from runner.types import Action, InvalidAction, Mode, Trajectory

MANY = 2**31
"""The number of tasks where it is not known; what a server does not have it answers with an error."""
_ROUNDING = 1e-9


class Rules(Protocol):
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


class FreeText:
    """The rules of an environment that only its server has: any text is an action."""

    def __init__(self, dialect: Dialect) -> None:
        """Make the one tool there is."""
        self.n_tasks = MANY
        self._dialect = dialect
        act = Command(
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


def rules_for(dialect: Dialect, mode: Mode) -> Rules:
    """The rules of a dialect's environment, from its embedded class where it has one."""
    if dialect.embedded is None:
        return FreeText(dialect)
    rules: Rules = pkgutil.resolve_name(dialect.embedded)(mode=mode)
    return rules


def count_tasks(dialect: Dialect, mode: Mode, rules: Rules) -> int:
    """How many tasks a server has that did not say it: only ours are strict, and those have the embedded ones."""
    known = None if mode == "strict" and dialect.embedded else dialect.n_tasks
    return known or rules.n_tasks
