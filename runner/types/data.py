"""The data of an episode: messages, actions, timesteps, trajectories, spans.

Shapes follow the OpenAI chat format where one exists; times are in seconds unless a name says otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

import msgspec


class Message(TypedDict):
    """One chat message of the OpenAI shape."""

    role: str
    content: str | None
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]


Chat: TypeAlias = list[Message]
ToolSchema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["strict", "compat"]
SpanLevel: TypeAlias = Literal["off", "episode", "full"]
DeltaPart: TypeAlias = Literal["text", "reasoning", "call"]
"""What a piece of an answer belongs to: what is said, what is thought, the arguments of a tool call."""


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call of one of the environment's tools; ``arguments`` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class Action(msgspec.Struct, frozen=True):
    """What an agent does: free text, tool calls, or text that a parser resolved into tool calls."""

    text: str | None = None
    tool_calls: list[ToolCall] = []


class InvalidAction(msgspec.Struct, frozen=True):
    """A text that names no action of the environment, with what would have been one."""

    text: str
    expected: str


StepResult: TypeAlias = tuple[Chat, float, bool]


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one or many inferences."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.reasoning + other.reasoning,
            self.cached + other.cached,
        )

    @property
    def total(self) -> int:
        """Prompt and completion together; reasoning and cached tokens are parts of those two."""
        return self.prompt + self.completion


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer of a model took, and where it came from.

    Attributes:
        endpoint: the name of the endpoint that answered.
        model: the model as that endpoint names it.
        ttft_s: seconds from the request to the first token, None where the reply was not streamed.
        tokens_per_s: of the completion, after the first token where that is known; None without a count of them.
        cost: in the profile's currency, None without a price.
        warnings: what went otherwise than configured, such as an endpoint that was passed over: ``name: why``.
    """

    endpoint: str
    model: str
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    warnings: tuple[str, ...] = ()


def skipped_endpoints(endpoint: str | None, warnings: Iterable[str]) -> list[str]:
    """The endpoints that come before ``endpoint`` and gave no answer, by the warnings of its answer.

    One that failed itself before it answered comes before those that were asked in between.
    """
    told = (warning.partition(": ") for warning in warnings if endpoint)
    before = takewhile(lambda part: part[0] != endpoint, told)
    return list(dict.fromkeys(name for name, mark, _ in before if mark))


def fallback_endpoints(answers: Iterable[tuple[str | None, Sequence[str]]]) -> str | None:
    """The endpoints that answered in the place of others, of answers with their endpoint and their warnings."""
    stood_in = (who for who, warnings in answers if who and warnings and skipped_endpoints(who, warnings))
    return ", ".join(dict.fromkeys(stood_in)) or None


class StreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell of an answer while it comes: more of it, who is asked for it, or that it came to nothing.

    Attributes:
        text: what came since the last piece.
        part: what it belongs to.
        call: of a tool call, its number in the answer, from 0; ``tool`` is the name of that tool.
        n: how many pieces of the model it is, each about a token.
        ttft_s: seconds from the request to the first token.
        endpoint: who is asked from here on, and for which ``model``.
        failure: why the endpoint that was asked, or should have been, gives no answer.
        restart: what came so far in this round does not count.
    """

    text: str = ""
    part: DeltaPart = "text"
    call: int = 0
    tool: str = ""
    n: int = 0
    ttft_s: float | None = None
    endpoint: str | None = None
    model: str | None = None
    failure: str | None = None
    restart: bool = False


class ErrorInfo(msgspec.Struct, frozen=True):
    """An exception as data: its kind, its message, and where it was raised."""

    type: str
    message: str
    traceback: str


class Outcome(enum.StrEnum):
    """How an episode ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ERROR = "error"
    INTERRUPTED = "interrupted"


UNRATED = frozenset({Outcome.CANCELLED, Outcome.INTERRUPTED})
"""Outcomes that do not reflect the agent: these episodes are counted but excluded from rates and means."""


class Limits(msgspec.Struct, frozen=True):
    """Hard limits of one episode: rounds, seconds without the paused ones, and replies in a row that are no action."""

    max_rounds: int = 15
    max_duration_s: float = 300.0
    max_unparsed: int = 3


class TimeStep(msgspec.Struct, kw_only=True):
    """One round: what the agent was given and answered, and what the environment replied.

    Attributes:
        chats: the chats the agent held for this step, each a list of messages; usually one.
        action: what the agent did; ``action.tool_calls`` is filled by the environment's parser when it sent text.
        valid: whether the environment knows the action at all.
        observation: the environment's reply to the action.
        reward: this step's reward, finite.
        model_s: seconds spent in the agent, of which ``ttft_s`` passed until the model's first token.
        tokens_per_s: of the endpoint's answer alone, whatever else the agent did.
        env_s: seconds spent in the environment's step; 0 where the reply was no action and none was taken.
        warnings: what went otherwise than configured, such as a fallback that answered.
    """

    index: int
    chats: list[Chat]
    action: Action
    observation: Chat
    reward: float
    done: bool
    available_tool_schemas: list[ToolSchema]
    valid: bool = True
    actor: Literal["agent", "human"] = "agent"
    model_s: float = 0.0
    env_s: float = 0.0
    endpoint: str | None = None
    model: str | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    warnings: tuple[str, ...] = ()


class Trajectory(msgspec.Struct, kw_only=True):
    """A played episode; ``error_info`` says why it ended early, ``outcome`` how it ended."""

    episode_id: str
    timesteps: list[TimeStep] = []
    reset_kwargs: dict[str, Any] = {}
    error_info: ErrorInfo | None = None
    trace_last_response_flow_id: int | None = None
    reset_observation: Chat = []
    env_episode_id: str | None = None
    outcome: Outcome = Outcome.ERROR
    success: bool = False
    duration_s: float = 0.0
    paused_s: float = 0.0

    @property
    def reward(self) -> float:
        """The sum of the step rewards."""
        return sum(step.reward for step in self.timesteps)

    def __repr__(self) -> str:
        """A line: whole transcripts would end up in logs, and asyncio writes the repr of a task's result down."""
        rounds = len(self.timesteps)
        return f"<{type(self).__name__} {self.episode_id} {self.outcome} rounds={rounds} reward={self.reward:g}>"


class EvaluatedTrajectory(Trajectory, kw_only=True):
    """A trajectory whose environment also gave evaluation details, as JSON-encodable data."""

    evaluation: dict[str, Any]


class Span(msgspec.Struct, kw_only=True, gc=False):
    """A closed interval of work; times are nanoseconds of one monotonic clock."""

    id: int
    parent: int | None
    name: str
    category: str
    track: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int | float | bool | None] = {}


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One end of an arrow between spans; both ends carry the same ``id`` (unsigned 64 bit)."""

    id: int
    span: int
    phase: Literal["start", "end"]
