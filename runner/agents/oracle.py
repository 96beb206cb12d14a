"""The oracle: plays with knowledge of the environment's inside, as a check of the set-up and an upper baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.agents.scripted import single_chat
from runner.errors import AgentFault, OracleDiverged
from runner.types import Action, Chat, Environment, OraclePlanner, SupportsOracle, ToolSchema
from runner.types.maybe_async import maybe_await


class OracleAgent:
    """Plans on a twin of the environment that it steps in parallel, so the played one may be anywhere.

    Args:
        twin: a local instance of the same environment in the same mode, able to plan for itself.
    """

    tracer: Any = None

    def __init__(self, *, twin: Environment) -> None:
        """Keep the twin; it is reset with the task's own arguments."""
        if not isinstance(twin, SupportsOracle):
            raise AgentFault(f"{type(twin).__name__} has no oracle; choose another agent")
        self._twin: Environment = twin
        self._oracle_of = twin.oracle
        self._reset_kwargs: dict[str, Any] = {}
        self._planner: OraclePlanner | None = None
        self._expected: Chat = []

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> None:
        """Learn which task is about to be played."""
        self._reset_kwargs = dict(reset_kwargs)

    async def init_after_reset(self) -> None:
        """Bring the twin to the same start."""
        self._expected = await maybe_await(self._twin.reset(**self._reset_kwargs))
        self._planner = self._oracle_of(self._reset_kwargs.get("seed"))

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        """The planner's next action, played on the twin as well.

        Raises:
            OracleDiverged: when the environment shows something else than the twin did.
        """
        if self._planner is None:
            raise AgentFault("The oracle was asked to act before init_after_reset")
        seen, expected = _texts(observation), _texts(self._expected)
        if seen != expected:
            raise OracleDiverged(f"The oracle's twin saw {_cut(expected)}; the environment showed {_cut(seen)}")
        text = self._planner.next_action()
        self._expected, _, _ = await maybe_await(self._twin.step(Action(text=text)))
        return single_chat(observation, text)


def _texts(chat: Chat) -> str:
    return "\n".join(message.get("content") or "" for message in chat)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
