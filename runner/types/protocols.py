"""What an environment and an agent have to be; each method may be sync or async.

Optional abilities are protocols of their own, asked for by ``isinstance`` and never by class name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from runner.types.data import Action, Chat, InvalidAction, StepResult, StreamDelta, ToolSchema, Trajectory, Usage
from runner.types.events import EpisodeHeader

_T = TypeVar("_T")
MaybeAwaitable: TypeAlias = _T | Awaitable[_T]
ActResult: TypeAlias = tuple[list[Chat], Action | InvalidAction]


class Environment(Protocol):
    """A task source that an agent acts in, one episode at a time."""

    @property
    def n_tasks(self) -> int:
        """How many tasks there are; a task index counts modulo this."""

    def reset(self, **reset_kwargs: Any) -> MaybeAwaitable[Chat]:  # noqa: ANN401 - an environment's own arguments
        """Start the task ``task_index`` and return the first observation."""

    def step(self, action: Action) -> MaybeAwaitable[StepResult]:
        """Take one action and return ``(observation, reward, done)``."""

    def get_tool_schemas(self) -> MaybeAwaitable[list[ToolSchema]]:
        """The tools that can be called now, as OpenAI function schemas."""

    def get_episode_id(self) -> MaybeAwaitable[str]:
        """The environment's own name for the episode: outside text, never a path."""

    def admissible_actions(self) -> MaybeAwaitable[list[str] | None]:
        """Texts that would be valid actions now, or None where they cannot be listed."""

    def parse(self, text: str) -> MaybeAwaitable[Action | InvalidAction]:
        """Turn an action's text into the tool call it means; asked right before the step."""

    def success(self, trajectory: Trajectory) -> MaybeAwaitable[bool]:
        """Whether the episode reached this environment's goal."""


class Agent(Protocol):
    """Something that answers observations with actions."""

    tracer: Any

    def init_after_reset(self) -> MaybeAwaitable[None]:
        """Get ready once the environment has been reset."""

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> MaybeAwaitable[ActResult]:
        """Answer the newest observation; returns the chats held for it and the action.

        An answer that names no action is given as ``InvalidAction``: the environment never sees it, and its
        ``expected`` is the next observation.
        """


@dataclass(frozen=True)
class EpisodeInfo:
    """The episode that an agent plays in, as far as it is the agent's business.

    Attributes:
        header: its ids, environment, task and model.
        time_left_s: seconds until the episode's time limit.
        stream: takes the model's text as it comes, piece by piece, to be shown live; an empty text takes back what
            came so far in this round. A ``StreamDelta`` tells more: thoughts, tool calls, who is asked.
    """

    header: EpisodeHeader
    time_left_s: Callable[[], float]
    stream: Callable[[str | StreamDelta], None]


@runtime_checkable
class SupportsEpisodeInfo(Protocol):
    """An agent that wants to know the episode it plays in."""

    def enter(self, scope: EpisodeInfo) -> None:
        """Called once, before anything else."""


@runtime_checkable
class SupportsUsage(Protocol):
    """An agent whose answers come from a model and have a price."""

    @property
    def last_usage(self) -> Usage | None:
        """What the newest ``act`` took; asked after each."""


@runtime_checkable
class SupportsBind(Protocol):
    """An agent that wants to know the environment and the task before the reset."""

    def bind(self, environment: Environment, reset_kwargs: Mapping[str, Any]) -> MaybeAwaitable[None]:
        """Called once, before ``environment.reset(**reset_kwargs)``."""


@runtime_checkable
class SupportsClose(Protocol):
    """An agent that holds something to give back."""

    def close(self) -> MaybeAwaitable[None]:
        """Called exactly once, after the last ``act``."""


@runtime_checkable
class SupportsCleanup(Protocol):
    """An environment that holds something to give back."""

    def cleanup(self) -> MaybeAwaitable[None]:
        """Called exactly once, after the last ``step``."""


@runtime_checkable
class SupportsFlow(Protocol):
    """An agent whose last model response is the start of a trace arrow."""

    @property
    def last_response_flow_id(self) -> int | None:
        """The flow id of the newest response, None before the first."""


@runtime_checkable
class SupportsTruncation(Protocol):
    """An environment with a step limit of its own."""

    @property
    def truncated(self) -> bool:
        """Whether the episode ended by that limit."""


@runtime_checkable
class SupportsEvaluation(Protocol):
    """An environment that can judge an episode in more detail than its rewards."""

    def get_evaluation_details(self) -> MaybeAwaitable[dict[str, Any]]:
        """JSON-encodable details of the episode that just ended."""


class OraclePlanner(Protocol):
    """Knows a good next action of one environment instance by looking inside."""

    def next_action(self) -> str:
        """The text of the next action from the instance's present state."""


@runtime_checkable
class SupportsOracle(Protocol):
    """An environment that can plan for itself."""

    def oracle(self, seed: int | None) -> OraclePlanner:
        """A planner over this instance, which the caller steps."""
