"""Contract tests for the test suites of plug-ins: ``check_env(MyEnvironment)`` and ``check_agent(MyAgent)``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.errors import RunnerError
from runner.testing.agent_checks import AgentCheck, Reply, thought_and_action
from runner.testing.checks import HOSTILE_TEXTS, EnvironmentCheck
from runner.types import Agent, Environment

__all__ = ["HOSTILE_TEXTS", "CheckFailed", "check_agent", "check_env"]


class CheckFailed(RunnerError):
    """Raised for a plug-in that breaks its contract; ``problems`` has one sentence per violation."""

    def __init__(self, kind: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n- ".join([f"The {kind} breaks its contract:", *self.problems]))


def check_env(factory: Callable[[], Environment], *, tasks: Sequence[int] = (0, 1), max_steps: int = 60) -> None:
    """Check that ``factory`` creates environments, sync or async, that the runner can play.

    The check runs its own event loop, so call it from code without a running event loop.

    Args:
        factory: creates a new instance at each call.

    Raises:
        CheckFailed: if there are violations; ``problems`` lists all of them.
    """
    problems = asyncio.run(EnvironmentCheck(factory, max_steps).run(tasks))
    if problems:
        raise CheckFailed("environment", problems)


def check_agent(
    agent: Callable[..., Agent],
    *,
    environment: Callable[[], Environment] | None = None,
    reply: Reply = thought_and_action,
    tasks: Sequence[int] = (0, 1),
    max_steps: int = 20,
) -> None:
    """Check that the runner can play with an agent, sync or async, with or without a model.

    Episodes are played as in a run. A model that stands in answers in this process: with tool calls to requests with
    tools, with texts to others. The check runs its own event loop, so call it from code without a running event loop.

    Args:
        agent: the registered class or function; it is called with the arguments that a run passes.
        environment: creates the environment of an episode; None: Maze.
        reply: returns the text of an answer, given the chat and the text of a good action, such as ``move left``. Pass
            it if the agent requests answers in another form than ``Thought: …`` and ``Action: …``.

    Raises:
        CheckFailed: if there are violations; ``problems`` lists all of them.
    """
    if environment is None:
        from runner.envs.maze import Maze  # imported late, for tests with an environment of their own

        environment = Maze
    problems = asyncio.run(AgentCheck(agent, environment, reply, max_steps).run(tasks))
    if problems:
        raise CheckFailed("agent", problems)
