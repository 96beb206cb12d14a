"""The contract test for environments, for their authors' own test suites: ``check_env(MyEnvironment)``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.errors import EnvironmentFault
from runner.testing.checks import EnvironmentCheck
from runner.testing.probes import HOSTILE_TEXTS
from runner.types import Environment

__all__ = ["HOSTILE_TEXTS", "CheckFailed", "check_env"]


class CheckFailed(EnvironmentFault):
    """An environment that breaks the contract; ``problems`` has one sentence for each way it does."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the problems and list them in the message."""
        self.problems = tuple(problems)
        super().__init__("\n- ".join(["The environment breaks its contract:", *self.problems]))


def check_env(factory: Callable[[], Environment], *, tasks: Sequence[int] = (0, 1), max_steps: int = 60) -> None:
    """Check that ``factory`` makes environments that the runner can play, sync or async.

    Call it from code without a running event loop: it runs one of its own.

    Args:
        factory: makes a fresh instance at each call.
        tasks: the task indices to look at.
        max_steps: how many steps an episode of the check may take.

    Raises:
        CheckFailed: with everything that was found wrong.
    """
    problems = asyncio.run(EnvironmentCheck(factory, max_steps).run(tasks))
    if problems:
        raise CheckFailed(problems)
