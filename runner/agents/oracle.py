"""Oracle agent: plays with access to the environment's internal state, as a setup check and an upper baseline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from runner.agents.scripted import single_chat
from runner.envs.data_labels import same_data_advice
from runner.errors import AgentFault, OracleDiverged
from runner.types import (
    Action,
    Cells,
    Chat,
    Environment,
    ObservationPlanner,
    OraclePlanner,
    SupportsCells,
    SupportsCleanup,
    SupportsOracle,
    ToolSchema,
)
from runner.types.maybe_async import maybe_await, optional_method
from runner.util.display_text import first_difference


class OracleAgent:
    """Agent that plans on its twin, a local copy of the environment, and repeats each action on the twin.

    The environment that is played may therefore run on a server. If its observations suffice for planning, the twin is
    an ``ObservationPlanner`` instead, which needs no copy of the server's tasks.

    Args:
        twin: a local instance of the same environment, in the same mode, that has an oracle; or a planner.

    Raises:
        AgentFault: if the environment has no oracle.
    """

    tracer: Any = None

    def __init__(self, *, twin: Environment | ObservationPlanner) -> None:
        self._plan: _Plan
        if isinstance(twin, ObservationPlanner):
            self._plan = _ObservedPlan(twin)
        elif isinstance(twin, SupportsOracle):
            self._plan = _TwinPlan(twin, twin)
        else:
            raise AgentFault(f"{type(twin).__name__} has no oracle; choose another agent")
        self._reset_kwargs: dict[str, Any] = {}
        self._n_actions: int | None = None

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        self._reset_kwargs = dict(reset_kwargs)

    async def init_after_reset(self) -> None:
        await self._plan.reset(self._reset_kwargs)
        self._n_actions = 0

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        """Return the planner's next action and execute it on the twin.

        Raises:
            OracleDiverged: if the environment's observation differs from the expected one.
        """
        if self._n_actions is None:
            raise AgentFault("the oracle's act was called before init_after_reset")
        actual = _texts(observation)
        expected = self._plan.expect(actual)
        if actual != expected:
            advice = self._plan.advice() if self._n_actions == 0 else None
            raise OracleDiverged(f"{_describe_difference(expected, actual)}{f'. {advice}' if advice else ''}")
        self._n_actions += 1
        return single_chat(observation, await self._plan.next_action())

    async def render_cells(self) -> Cells | None:
        """Return a picture of the twin, which is in the state that the environment should be in; None without a twin.

        It may be requested before ``init_after_reset``, and then shows the first state of the task.
        """
        if self._n_actions is None:
            await self._plan.reset(self._reset_kwargs)
        return await self._plan.draw()

    async def close(self) -> None:
        await self._plan.close()


class _TwinPlan:
    """Plan of the twin's own oracle; each action is repeated on the twin."""

    def __init__(self, twin: Environment, source: SupportsOracle) -> None:
        self._twin = twin
        self._oracle_of = source.oracle
        self._planner: OraclePlanner
        self._expected: Chat = []

    async def reset(self, reset_kwargs: Mapping[str, Any]) -> None:
        self._expected = await maybe_await(self._twin.reset(**reset_kwargs))
        self._planner = self._oracle_of(reset_kwargs.get("seed"))

    def expect(self, actual: str) -> str:
        return _texts(self._expected)

    async def next_action(self) -> str:
        text = self._planner.next_action()
        self._expected, _, _ = await maybe_await(self._twin.step(Action(text=text)))
        return text

    async def draw(self) -> Cells | None:
        render = optional_method(self._twin, SupportsCells.render_cells)
        return None if render is None else await maybe_await(render())

    async def close(self) -> None:
        if isinstance(self._twin, SupportsCleanup):
            await maybe_await(self._twin.cleanup())

    def advice(self) -> str | None:
        return same_data_advice(str(getattr(self._twin, "name", "")), os.environ)


class _ObservedPlan:
    """Plan of a planner that reads the observations."""

    def __init__(self, planner: ObservationPlanner) -> None:
        self._planner = planner
        self._started = False

    async def reset(self, reset_kwargs: Mapping[str, Any]) -> None:
        self._started = False

    def expect(self, actual: str) -> str:
        if self._started:
            return self._planner.observe(actual)
        self._planner.start(actual)
        self._started = True
        return actual

    async def next_action(self) -> str:
        return self._planner.next_action()

    async def draw(self) -> None:
        return None

    async def close(self) -> None:
        pass

    def advice(self) -> None:
        return None


_Plan = _TwinPlan | _ObservedPlan


def _texts(chat: Chat) -> str:
    return "\n".join(message.get("content") or "" for message in chat)


def _describe_difference(expected: str, actual: str) -> str:
    number, ours, theirs = first_difference(expected, actual)
    return f"Line {number} of the observation differs: the oracle expected {ours}; the environment showed {theirs}"
