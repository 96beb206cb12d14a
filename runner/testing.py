"""The contract test for environments, for their authors' own test suites: ``check_env(MyEnvironment)``."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from runner.errors import RunnerError, boundary
from runner.replies import check_chat, check_step, settle
from runner.types import (
    Action,
    Chat,
    Environment,
    InvalidAction,
    SupportsCleanup,
    SupportsEvaluation,
    SupportsOracle,
    SupportsTruncation,
    TimeStep,
    ToolCall,
    Trajectory,
)

HOSTILE_TEXTS: tuple[str, ...] = (
    "",
    " \t\r\n",
    "\x00",
    "\ud800",
    "\u202e\u200bmove",
    "\x1b[2J",
    "{0.__class__} %s ${x}",
    "__import__('os').abort()",
    '{"name": "x", "arguments": {}}',
    "9" * 5_000,
    "(" * 10_000,
    "a " * 500_000,
)
"""Action texts that a model could produce and an environment has to survive, up to 1 MB."""

_HOSTILE_ARGUMENTS = ("", "{", "null", "[]", '{"\ud800": 1}', "[" * 10_000, '{"x": NaN}', "{}")


class CheckFailed(RunnerError):
    """An environment that breaks the contract; ``problems`` has one sentence for each way it does."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the problems and list them in the message."""
        self.problems = tuple(problems)
        lines = "\n".join(f"- {problem}" for problem in self.problems)
        super().__init__(f"The environment breaks the contract in {len(self.problems)} ways:\n{lines}")


def check_env(factory: Callable[[], Environment], *, tasks: Sequence[int] = (0, 1), max_steps: int = 60) -> None:
    """Check that what ``factory`` makes is an environment the runner can play, sync or async.

    Args:
        factory: makes a fresh instance at each call.
        tasks: the task indices to look at.
        max_steps: how many steps an episode of the check may take.

    Raises:
        CheckFailed: with everything that was found wrong.
    """
    problems = asyncio.run(_Check(factory, tasks, max_steps).run())
    if problems:
        raise CheckFailed(problems)
