"""Protocols of environments and agents, whose methods may be sync or async, and calls of them.

Optional capabilities are separate ``Supports…`` protocols, detected with ``isinstance`` and never by class name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeGuard, TypeVar, cast, runtime_checkable

import msgspec

from runner.types.cells import Cells
from runner.types.data import Action, Chat, InvalidAction, Rejection, StepResult, StreamDelta, ToolSchema, Trajectory
from runner.types.episode_events import EpisodeHeader
from runner.types.sequences import TokenSequence

_T = TypeVar("_T")
_P = ParamSpec("_P")
MaybeAwaitable: TypeAlias = _T | Awaitable[_T]
ActResult: TypeAlias = tuple[list[Chat], Action | InvalidAction]


class Environment(Protocol):
    """A source of tasks that an agent acts in, one episode at a time."""

    def reset(self, **reset_kwargs: Any) -> MaybeAwaitable[Chat]:  # noqa: ANN401 - an environment's own arguments
        """Start the task with the index ``task_index`` in ``reset_kwargs``, and return the first observation."""

    def step(self, action: Action) -> MaybeAwaitable[StepResult]:
        """Execute one action and return ``(observation, reward, done)``; the reward is a finite number."""

    def get_tool_schemas(self) -> MaybeAwaitable[list[ToolSchema]]:
        """Return the tools available in the current state, as OpenAI function schemas."""

    def get_episode_id(self) -> MaybeAwaitable[str]:
        """Return the id that the environment gives the episode: untrusted text that is never used in a path."""


class Agent(Protocol):
    """A policy that answers observations with actions; the runner sets its attribute ``tracer``.

    After each call of ``act``, the runner reads two optional attributes: ``last_usage``, a ``Usage`` or None, and
    ``last_response_flow_id``, the trace flow of the latest response, an unsigned 64-bit number or None.
    """

    tracer: Any

    def init_after_reset(self) -> MaybeAwaitable[None]:
        """Prepare for an episode, after the environment was reset."""

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> MaybeAwaitable[ActResult]:
        """Answer the latest observation; return the chats of this step and the action.

        An agent returns ``InvalidAction`` for an answer without an action: the environment does not execute it, and its
        ``expected`` becomes the next observation.
        """


class EpisodeInfo(msgspec.Struct, frozen=True):
    """Information about the running episode that an agent may use.

    Attributes:
        time_left_s: function that returns the seconds until the episode's time limit.
        stream: function that publishes the model's answer while it arrives. A string is new text; an empty string
            discards the text of this step. A ``StreamDelta`` can also hold reasoning, tool calls and endpoint changes.
        max_rounds: maximum number of steps of the episode; None in an episode of ``runner.Runner`` without limits.
        record_tokens: function that stores the token ids of a model call with the step that is being played.
    """

    header: EpisodeHeader
    time_left_s: Callable[[], float]
    stream: Callable[[str | StreamDelta], None]
    max_rounds: int | None
    record_tokens: Callable[[TokenSequence], None] = lambda sequence: None


@runtime_checkable
class SupportsEpisodeInfo(Protocol):
    """An agent that receives information about its episode."""

    def enter(self, episode: EpisodeInfo) -> None:
        """Receive the episode; called once, before every other method."""


@runtime_checkable
class SupportsBind(Protocol):
    """An agent that receives its environment and task before the reset."""

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> MaybeAwaitable[None]:
        """Receive the environment; called once, before ``environment.reset(**reset_kwargs)``."""


@runtime_checkable
class SupportsClose(Protocol):
    """An agent that holds resources."""

    def close(self) -> MaybeAwaitable[None]:
        """Release all resources; called exactly once, after the last ``act``."""


@runtime_checkable
class SupportsTasks(Protocol):
    """An environment with a known number of tasks."""

    @property
    def n_tasks(self) -> int:
        """Number of tasks; task indexes are taken modulo this number."""


@runtime_checkable
class SupportsActionList(Protocol):
    """An environment that can list its valid actions."""

    def admissible_actions(self) -> MaybeAwaitable[list[str] | None]:
        """Return the texts that are valid actions in the current state; None if they cannot be listed."""


@runtime_checkable
class SupportsParse(Protocol):
    """An environment that knows actions as texts; any other gets an action without a tool call as it is."""

    def parse(self, text: str) -> MaybeAwaitable[Action | InvalidAction]:
        """Convert the text of an action to a tool call; the runner calls it directly before ``step``."""


@runtime_checkable
class SupportsSuccess(Protocol):
    """An environment with its own rule of success; in any other, one positive reward is a success."""

    def success(self, trajectory: Trajectory) -> MaybeAwaitable[bool]: ...


@runtime_checkable
class SupportsCleanup(Protocol):
    """An environment that holds resources."""

    def cleanup(self) -> MaybeAwaitable[None]:
        """Release all resources; called exactly once, after the last ``step``."""


@runtime_checkable
class SupportsTruncation(Protocol):
    """An environment with its own step limit."""

    @property
    def truncated(self) -> bool:
        """Whether the environment's own step limit ended the episode."""


@runtime_checkable
class SupportsRejection(Protocol):
    """An environment that reports which actions it rejects; of others, no action counts as refused."""

    @property
    def rejection(self) -> Rejection | None:
        """How the latest ``step`` rejected its action; None if it executed the action.

        ``invalid`` is for an action that can never be executed, such as a tool call whose arguments have the wrong
        form; ``refused`` for one that cannot be executed now, such as a step into a wall. It is read after each step.
        """


@runtime_checkable
class SupportsUnansweredRequest(Protocol):
    """An environment on a server, whose requests may get no reply before the episode's time limit."""

    @property
    def unanswered_request(self) -> Exception | None:
        """The error for a request that was cancelled while its reply was overdue; None if there is none."""


@runtime_checkable
class SupportsEvaluation(Protocol):
    """An environment that evaluates an episode in more detail than its rewards do."""

    def get_evaluation_details(self) -> MaybeAwaitable[dict[str, Any] | None]:
        """Return JSON-encodable details of the episode that has just ended; None only from an ``AREEnvironment``."""


@runtime_checkable
class SupportsCells(Protocol):
    """An environment that can draw its state."""

    def render_cells(self) -> MaybeAwaitable[Cells | None]:
        """Return a picture of the current state without changing it; None if there is none.

        Called after the reset and after each step, so it should take well under a millisecond. It shows what a person
        needs to follow the episode, which may be more than the agent observes.
        """


class OraclePlanner(Protocol):
    """Plans actions for one environment instance from its internal state."""

    def next_action(self) -> str:
        """Return the text of the next action for the current state of the instance."""


@runtime_checkable
class SupportsOracle(Protocol):
    """An environment with an oracle, which plans actions that solve its tasks."""

    def oracle(self, seed: int | None) -> OraclePlanner:
        """Create a planner for this environment instance; the caller steps the environment."""


@runtime_checkable
class ObservationPlanner(Protocol):
    """Plans the actions of an episode from the texts of its observations alone."""

    def start(self, observation: str) -> None: ...

    def next_action(self) -> str: ...

    def observe(self, observation: str) -> str:
        """Take the observation after the latest action into account, and return the expected observation."""


def is_awaitable(value: _T | Awaitable[_T]) -> TypeGuard[Awaitable[_T]]:
    """Cheaper than ``await maybe_await(value)``."""
    return hasattr(value, "__await__")


async def maybe_await(value: _T | Awaitable[_T]) -> _T:
    return await value if is_awaitable(value) else cast(_T, value)


def optional_method(owner: object, method: Callable[Concatenate[Any, _P], _T]) -> Callable[_P, _T] | None:
    """Return a method that an agent or environment may lack, bound to its owner; None without a method of that name.

    ``method`` is that of a protocol; ``isinstance`` with the protocol would take 10 to 40 us.
    """
    bound: Callable[_P, _T] | None = getattr(owner, method.__name__, None)
    return bound if callable(bound) else None
