"""Oracle agent: plays with access to the environment's internal state, as a setup check and an upper baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.agents.scripted import single_chat
from runner.errors import AgentFault, OracleDiverged
from runner.types import Action, Chat, Environment, OraclePlanner, SupportsOracle, ToolSchema
from runner.types.maybe_async import maybe_await


class OracleAgent:
    """Agent that plans on its twin, a local copy of the environment, and repeats each action on the twin.

    The environment that is played may therefore run on a server.

    Args:
        twin: a local instance of the same environment, in the same mode, that has an oracle.

    Raises:
        AgentFault: if the environment has no oracle.
    """

    tracer: Any = None

    def __init__(self, *, twin: Environment) -> None:
        """Store the twin; ``init_after_reset`` resets the twin with the task's arguments."""
        if not isinstance(twin, SupportsOracle):
            raise AgentFault(f"{type(twin).__name__} has no oracle; choose another agent")
        self._twin: Environment = twin
        self._oracle_of = twin.oracle
        self._reset_kwargs: dict[str, Any] = {}
        self._planner: OraclePlanner | None = None
        self._expected: Chat = []

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        """Store the reset arguments of the task that is about to start."""
        self._reset_kwargs = dict(reset_kwargs)

    async def init_after_reset(self) -> None:
        """Reset the twin to the task of the environment."""
        self._expected = await maybe_await(self._twin.reset(**self._reset_kwargs))
        self._planner = self._oracle_of(self._reset_kwargs.get("seed"))

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        """Return the planner's next action and execute it on the twin.

        Raises:
            AgentFault: before ``init_after_reset``.
            OracleDiverged: if the environment's observation differs from the twin's.
        """
        if self._planner is None:
            raise AgentFault("the oracle's act was called before init_after_reset")
        actual, expected = _texts(observation), _texts(self._expected)
        if actual != expected:
            raise OracleDiverged(f"The oracle's twin expected {_cut(expected)}; the environment showed {_cut(actual)}")
        text = self._planner.next_action()
        self._expected, _, _ = await maybe_await(self._twin.step(Action(text=text)))
        return single_chat(observation, text)


def _texts(chat: Chat) -> str:
    return "\n".join(message.get("content") or "" for message in chat)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
