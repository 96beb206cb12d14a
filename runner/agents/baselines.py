"""Agents without a model: the oracle, the random baseline, and one that plays a script."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from runner.envs.base import same_data_advice
from runner.errors import AgentFault, OracleDiverged
from runner.types import (
    Action,
    Cells,
    Chat,
    Environment,
    MaybeAwaitable,
    ObservationPlanner,
    OraclePlanner,
    SupportsActionList,
    SupportsCells,
    SupportsCleanup,
    SupportsOracle,
    ToolSchema,
)
from runner.types.protocols import is_awaitable, maybe_await, optional_method
from runner.util.display_text import first_difference


def single_chat(observation: Chat, text: str) -> tuple[list[Chat], Action]:
    return [[*observation, {"role": "assistant", "content": text}]], Action(text=text)


class Script(msgspec.Struct, frozen=True):
    """Untrusted texts, in a struct because the config tree of an agent would interpolate ``${…}`` in plain strings."""

    actions: tuple[str, ...]


class ScriptedAgent:
    tracer: Any = None

    def __init__(self, *, script: Script) -> None:
        self._actions = script.actions
        self._next = 0

    def init_after_reset(self) -> None:
        self._next = 0

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        if self._next >= len(self._actions):
            raise AgentFault(f"The script has only {len(self._actions)} actions, but the episode is not over")
        self._next += 1
        return single_chat(observation, self._actions[self._next - 1])


class RandomAgent:
    """Agent that chooses an admissible action at random, by a generator with the episode's seed (default 0)."""

    tracer: Any = None

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._environment: Environment | None = None

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        self._environment = environment
        self._random = random.Random(reset_kwargs.get("seed") or 0)

    def init_after_reset(self) -> None: ...

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401 - async as the environment
        actions: MaybeAwaitable[list[str] | None] = None
        if self._environment is not None:
            list_actions = optional_method(self._environment, SupportsActionList.admissible_actions)
            actions = None if list_actions is None else list_actions()
        if is_awaitable(actions):
            return self._act_later(observation, actions)
        return single_chat(observation, self._choice(actions))

    async def _act_later(self, observation: Chat, actions: Awaitable[list[str] | None]) -> tuple[list[Chat], Action]:
        return single_chat(observation, self._choice(await actions))

    def _choice(self, actions: object) -> str:
        if not isinstance(actions, list) or not actions:
            name = type(self._environment).__name__
            raise AgentFault(f"{name} lists no admissible actions, which random needs; choose another agent")
        return str(self._random.choice(actions))


class OracleAgent:
    """Agent that plans on its twin, a local copy of the environment, and repeats each action on the twin.

    The environment that is played may therefore run on a server. The twin is in the same mode and has an oracle; or,
    where the observations suffice for planning, it is an ``ObservationPlanner``, which needs no copy of the server's
    tasks.
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
        """Raises ``OracleDiverged`` if the observation differs from that of the twin."""
        if self._n_actions is None:
            raise AgentFault("the oracle's act was called before init_after_reset")
        actual = _texts(observation)
        expected = self._plan.expect(actual)
        if actual != expected:
            number, ours, theirs = first_difference(expected, actual)
            shown = f"the oracle expected {ours}; the environment showed {theirs}"
            advice = self._plan.advice() if self._n_actions == 0 else None
            raise OracleDiverged(f"Line {number} of the observation differs: {shown}{f'. {advice}' if advice else ''}")
        self._n_actions += 1
        return single_chat(observation, await self._plan.next_action())

    async def render_cells(self) -> Cells | None:
        """Return a picture of the twin; before ``init_after_reset``, it is one of the first state of the task."""
        if self._n_actions is None:
            await self._plan.reset(self._reset_kwargs)
        return await self._plan.draw()

    async def close(self) -> None:
        await self._plan.close()


class _TwinPlan:
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
