"""Contract test for environments, for use in their authors' test suites: ``check_env(MyEnvironment)``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.errors import EnvironmentFault
from runner.testing.checks import HOSTILE_TEXTS, EnvironmentCheck
from runner.types import Environment

__all__ = ["HOSTILE_TEXTS", "CheckFailed", "check_env"]


class CheckFailed(EnvironmentFault):
    """Raised for an environment that breaks the contract; ``problems`` has one sentence per violation."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Store the problems and list them in the message."""
        self.problems = tuple(problems)
        super().__init__("\n- ".join(["The environment breaks its contract:", *self.problems]))


def check_env(factory: Callable[[], Environment], *, tasks: Sequence[int] = (0, 1), max_steps: int = 60) -> None:
    """Check that ``factory`` creates environments, sync or async, that the runner can play.

    The check runs its own event loop, so call it from code without a running event loop.

    Args:
        factory: creates a new instance at each call.
        tasks: the task indices to check.
        max_steps: maximum number of steps per episode.

    Raises:
        CheckFailed: if there are violations; ``problems`` lists all of them.
    """
    problems = asyncio.run(EnvironmentCheck(factory, max_steps).run(tasks))
    if problems:
        raise CheckFailed(problems)
