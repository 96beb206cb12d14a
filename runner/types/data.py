"""Data of an episode: messages, actions, token usage, timesteps, trajectories, spans and flows.

Messages and tool calls follow the OpenAI chat format. Times are in seconds unless the name has another unit.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypeAlias, TypedDict

import msgspec

from runner.types.cells import PackedCells
from runner.types.phases import AnswerTimes, Phases

MAX_ROUNDS = 1_000_000
MAX_DURATION_S = 1_000_000_000
"""Maximum of ``Limits.max_duration_s``; beyond it, timers of the operating system overflow."""
MAX_WORKERS = 256
"""Maximum number of local worker processes of one batch."""
SHAPES = ("tools as text", "folded system")
"""What servers may refuse and a model notices: tools beside the chat, and a system prompt of its own."""
MIX = " + "
"""Joins the models that answered to one text, such as ``qwen35_9b + qwen3:8b``."""
_ADDED_REWARDS: Final = frozenset({"sciworld", "academia", "movie", "sheet", "todo", "weather"})
"""Environments whose servers reply with the sum of the rewards so far; in lower case."""
_MESSAGE_FIELDS = ("role", "content", "reasoning_content", "refusal", "tool_calls", "tool_call_id", "name")


def read_call(value: object, number: int) -> tuple[str, str, str] | None:
    """Return id, name and arguments (JSON text) of a tool call.

    ``value`` is ``{"id", "function": {"name", "arguments"}}`` or ``{"id", "name", "arguments"}``, or such an object. A
    call without an id is named after its place ``number`` among those of its action.
    """
    function = _field(value, "function") or value
    id, name, arguments = _field(value, "id"), _field(function, "name"), _field(function, "arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps({} if arguments is None else arguments)
        except (TypeError, ValueError, RecursionError):
            return None
    return id if isinstance(id, str) and id else f"call_{number}", name, arguments


def read_message(value: object) -> dict[str, Any] | None:
    """Return a chat message as a dict, with its tool calls as dicts; a dict of plain data is returned as it is."""
    if isinstance(value, dict):
        message = value
    elif isinstance(value, Mapping):
        message = dict(value)
    else:
        found = {name: getattr(value, name, None) for name in _MESSAGE_FIELDS}
        message = {"content": None, **{name: each for name, each in found.items() if each is not None}}
    if "role" not in message:
        return None
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple) and not all(isinstance(call, dict) for call in calls):
        message = {**message, "tool_calls": [_call_dict(call, number) for number, call in enumerate(calls)]}
    return message


def _call_dict(value: object, number: int) -> object:
    if isinstance(value, dict) or (call := read_call(value, number)) is None:
        return value
    id, name, arguments = call
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


class Message(TypedDict):
    """One chat message of the OpenAI shape; a reply may have further fields, which only its endpoint understands.

    ``origin`` and ``reasoning_field`` are notes of a conversation in memory, neither sent nor stored: the endpoint and
    model that wrote the message, and the field that its reasoning goes back in.
    """

    role: str
    content: str | None
    reasoning_content: NotRequired[str | None]
    refusal: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    origin: NotRequired[str]
    reasoning_field: NotRequired[str]


Chat: TypeAlias = list[Message]
ToolSchema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["strict", "compat"]
SpanLevel: TypeAlias = Literal["off", "episode", "full"]


class TracingLevel(enum.StrEnum):
    """Which spans a tracer records, as the members of ``SpanLevel``."""

    OFF = "off"
    EPISODE = "episode"
    FULL = "full"


DeltaPart: TypeAlias = Literal["text", "reasoning", "call"]
"""Part of an answer that a streamed delta extends: text, reasoning, or the arguments of a tool call."""


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call of an environment tool; ``arguments`` is a JSON object as text."""

    id: str
    name: str
    arguments: str

    @property
    def function(self) -> dict[str, str]:
        return {"name": self.name, "arguments": self.arguments}


class ActionContent(msgspec.Struct, frozen=True):
    """Free text, tool calls, or text that the environment's parser resolved into tool calls."""

    text: str | None = None
    tool_calls: list[ToolCall] = []


Rejection: TypeAlias = Literal["invalid", "refused"]
"""How an environment rejects an action: it is none of its actions, or one that cannot be executed now."""


class Action(ActionContent, frozen=True):
    """An agent's action; tool calls may be given as any mapping or object of the OpenAI shape, and None for no call.

    Attributes:
        valid: False in a timestep if it is not a valid action of the environment, for example a tool call that does not
            match its schema.
        refused: True in a timestep if it is valid and the environment refused it; unset otherwise.
    """

    valid: bool = True
    refused: bool | msgspec.UnsetType = msgspec.UNSET

    if TYPE_CHECKING:

        def __init__(
            self,
            text: str | None = None,
            tool_calls: Sequence[object] | None = (),
            valid: bool = True,
            refused: bool | msgspec.UnsetType = msgspec.UNSET,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Turn the tool calls into ``ToolCall``; what is none stays, for ``check_act_result`` to reject."""
        calls: object = self.tool_calls
        if calls is None:
            msgspec.structs.force_setattr(self, "tool_calls", [])
        elif isinstance(calls, list | tuple):
            for call in calls:
                if type(call) is not ToolCall:
                    made = [_as_call(each, number) for number, each in enumerate(calls)]
                    msgspec.structs.force_setattr(self, "tool_calls", made)
                    break


def _as_call(value: object, number: int) -> object:
    if isinstance(value, ToolCall) or (call := read_call(value, number)) is None:
        return value
    return ToolCall(*call)


class InvalidAction(msgspec.Struct, frozen=True):
    """An agent's text that is not an action of the environment; ``expected`` describes the valid ones.

    ``reply`` is the observation that the agent gets, if it defines that itself; such a text is no misunderstanding and
    does not count towards ``Limits.max_unparsed``.
    """

    text: str
    expected: str
    reply: str | None = None


StepResult: TypeAlias = tuple[Chat, float, bool]


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one model answer, or the sums over several answers."""

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
        """Prompt tokens, including cached ones, plus completion tokens, including reasoning."""
        return self.prompt + self.completion


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Source, speed, token counts and cost of one model answer.

    Attributes:
        model: model name used by the endpoint that answered; the models of a sum are joined by ``MIX``.
        ttft_s: seconds from the request to the first token; None if the answer was not streamed.
        tokens_per_s: completion tokens per second, measured from the first token if ``ttft_s`` is known; None if the
            number of tokens is unknown.
        cost: cost in the currency of the profile's prices; None if the model has no price.
        warnings: deviations from the configuration, e.g. ``name: reason`` for a skipped endpoint.
        shape: the ``SHAPES`` of the request that change what the model sees, joined by commas; "" for the usual one.
        times: seconds of the answer and their parts; None if they are unknown.
    """

    endpoint: str
    model: str
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    warnings: tuple[str, ...] = ()
    shape: str = ""
    times: AnswerTimes | None = None

    def __add__(self, later: Usage) -> Usage:
        """Return the usage of two answers of one step.

        The model is the ``MIX`` of all models that answered. The endpoint is the first that answered in place of a
        failed one, so that ``skipped_endpoints`` finds the failure; else that of the later answer. The cost, the speed
        and the times are unknown if one of the two is; unknown tokens count as none.
        """
        known = [tokens for tokens in (self.tokens, later.tokens) if tokens is not None]
        return Usage(
            endpoint=(self if skipped_endpoints(self.endpoint, self.warnings) else later).endpoint,
            model=MIX.join(sorted({*split_models(self.model), *split_models(later.model)})),
            ttft_s=self.ttft_s,
            tokens_per_s=_mean_speed(self, later),
            tokens=sum(known, Tokens()) if known else None,
            cost=None if self.cost is None or later.cost is None else self.cost + later.cost,
            warnings=self.warnings + later.warnings,
            shape=join_shapes((self.shape, later.shape)),
            times=None if self.times is None or later.times is None else self.times + later.times,
        )


def _mean_speed(*answers: Usage) -> float | None:
    n_tokens, seconds = 0, 0.0
    for answer in answers:
        if not answer.tokens_per_s or answer.tokens is None:
            return None
        n_tokens += answer.tokens.completion
        seconds += answer.tokens.completion / answer.tokens_per_s
    return n_tokens / seconds if seconds else None


def join_shapes(shapes: Iterable[str | msgspec.UnsetType]) -> str:
    """Return the ``SHAPES`` that any step of an episode was played under, joined by commas; "" if there are none."""
    found = {name for shape in shapes if shape for name in shape.split(", ")}
    return ", ".join(name for name in SHAPES if name in found)


def is_answer(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def received_messages(chats: Sequence[Sequence[Any]], *, full: bool) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield of each chat of a step the number of messages up to its previous answer, and those after it that came in.

    ``full``: all that came in, which is all but the answer of the step at the end of the last chat.
    """
    for number, chat in enumerate(chats, 1):
        messages = chat[:-1] if number == len(chats) and any(map(is_answer, chat[-1:])) else chat
        answers = [place for place, message in enumerate(messages[:-1], 1) if is_answer(message)]
        n_earlier = answers[-1] if answers and not full else 0
        yield n_earlier, messages[n_earlier:]


def shape_note(shapes: Mapping[str, Iterable[str]]) -> str:
    """Return that the requests of the sides, by name, differed, as it may explain other results; else an empty text."""
    if len(set(chain.from_iterable(shapes.values()))) < 2:
        return ""
    sides = (f"{name} {' and '.join(shape or 'as usual' for shape in each)}" for name, each in shapes.items())
    return f"requests differ: {', '.join(sides)}"


def skipped_endpoints(endpoint: str | None, warnings: Iterable[str]) -> list[str]:
    """Return the endpoints that failed before ``endpoint`` answered, in order of their first failure.

    Endpoints that failed after the first failure of ``endpoint`` itself are not included. ``endpoint`` is None for an
    answer without an endpoint.
    """
    failures = (warning.partition(": ") for warning in warnings if endpoint)
    before = takewhile(lambda failure: failure[0] != endpoint, failures)
    return list(dict.fromkeys(name for name, separator, _ in before if separator))


def fallback_endpoints(answers: Iterable[tuple[str | None, Sequence[str]]]) -> str | None:
    """Return the endpoints that answered for a failed one, joined by commas, from endpoint and warnings of answers."""
    fallbacks = (name for name, warnings in answers if name and warnings and skipped_endpoints(name, warnings))
    return ", ".join(dict.fromkeys(fallbacks)) or None


def count_models(answers: Iterable[tuple[str | None, str | None]]) -> dict[str, int]:
    """Return how many steps each model answered, in the order of the first, from endpoint and model of the steps.

    A step with answers of several models counts for each.
    """
    return dict(Counter(name for endpoint, model in answers if endpoint for name in split_models(model)))


def join_models(model: str | None, answered: Iterable[str]) -> str | None:
    """Return the models that answered as one text, ``model`` (the requested one) first; ``model`` if none did."""
    return MIX.join(sorted(set(answered), key=lambda name: (name != model, name))) or model


def split_models(models: str | None) -> list[str]:
    return models.split(MIX) if models else []


class StreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One update of a streamed answer: new text, the endpoint that is queried next, or the failure of an endpoint.

    Attributes:
        call: index of the tool call in the answer, from 0.
        n: number of chunks from the model in this update; a chunk is about one token.
        endpoint: name of the endpoint that is queried next.
        failure: name of an endpoint that failed or was skipped, and the reason.
        restart: whether to discard the text already received for this step.
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

    @property
    def is_text(self) -> bool:
        """Whether it only adds text, and is no news of a request."""
        return self.endpoint is None and self.failure is None and not self.restart


ErrorCategory: TypeAlias = Literal["agent", "environment", "endpoint", "resources", "evaluation"]
"""Part of a run in which an error arose; ``evaluation``: the judge that rates the episode."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as data; ``runner.tracing.tracer`` defines the values of ``type``.

    ``category`` is None where the part of the run in which the error arose is not certain.
    """

    type: str
    message: str
    traceback: str
    category: ErrorCategory | None = None


class Outcome(enum.StrEnum):
    """How an episode ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ERROR = "error"
    INTERRUPTED = "interrupted"


UNFINISHED = frozenset({Outcome.CANCELLED, Outcome.INTERRUPTED})
"""Outcomes of episodes that were stopped; a batch that is resumed plays their tasks again."""

UNRATED = UNFINISHED | {Outcome.ERROR}
"""Outcomes that do not depend on the agent; their episodes are counted, but excluded from rates and means.

Most errors are those of model endpoints and environment servers. The type of an error does not separate the code of the
agent from that of the environment, so no error counts as a failure.
"""


class _Rating(msgspec.Struct):
    rated: object = None


def is_unscored(evaluation: object) -> bool:
    """Return whether evaluation details, any JSON that may still be encoded, leave their episode unscored.

    They do by ``"rated": false``: such an episode shows nothing about the agent, for example because idle play can
    succeed, so it is counted and marked, but excluded from rates and means.
    """
    if not isinstance(evaluation, msgspec.Raw):
        return isinstance(evaluation, dict) and evaluation.get("rated") is False
    try:
        return msgspec.json.decode(evaluation, type=_Rating).rated is False
    except (msgspec.DecodeError, RecursionError):
        return False


Workers: TypeAlias = int | Literal["ray"]
"""Where the episodes of a batch run: in as many local processes, in this process (0), or on a Ray cluster."""
WorkerStatus: TypeAlias = Literal["starting", "idle", "playing", "lost"]


class Limits(msgspec.Struct, frozen=True):
    """Hard limits of one episode; the timesteps of an episode are kept in memory until its end.

    Attributes:
        max_duration_s: maximum duration in seconds, pauses excluded.
        max_unparsed: maximum number of consecutive replies that are not an action, or a tool call that does not match
            its schema.
    """

    max_rounds: int = 15
    max_duration_s: float = 300.0
    max_unparsed: int = 3

    @property
    def label(self) -> str:
        """The rounds and seconds that differ from the usual 15 and 300, such as ``30 rounds``; "" for none."""
        usual = Limits()
        rounds = "" if self.max_rounds == usual.max_rounds else f"{self.max_rounds} rounds"
        seconds = "" if self.max_duration_s == usual.max_duration_s else f"{self.max_duration_s:.15g} s"
        return " ".join(filter(None, (rounds, seconds)))


class TimeStep(msgspec.Struct, kw_only=True):
    """One step, as journals and episode files have it: the agent's chats and action, the observation and the reward.

    Messages are any JSON, as the agent or the environment returned them.

    Attributes:
        chats: the agent's chats for this step, usually one chat; each is a list of messages.
        action: for an action as text, the environment's parser fills ``action.tool_calls``.
        available_tool_schemas: the tools of this step; unset in a stored step.
        tool_schemas_ref: index of these tools in the table of the episode; set in a stored step only.
        reward: reward of this step, finite; None only in an episode of ``runner.Runner`` whose environment gave none.
        model_s: seconds spent in the agent; ``ttft_s`` of them passed before the model's first token.
        tokens_per_s: completion tokens per second while the endpoint answered; excludes other work of the agent.
        env_s: seconds spent in the environment's step; 0 if the reply was not an action.
        warnings: deviations from the configuration, such as an answer from a fallback endpoint.
        shape: as in ``Usage``; unset for the usual one.
        phases: how the step's wall time is split; None in files of earlier versions.
        world: picture of the environment after the step; see ``unpack_cells``.
        tokens_ref: index of the step's record in the episode's token file; unset without token ids.
    """

    index: int = 0
    actor: Literal["agent", "human"] = "agent"
    chats: list[list[Any]]
    action: Action = msgspec.field(default_factory=Action)
    observation: list[Any] = []
    reward: float
    done: bool
    available_tool_schemas: list[ToolSchema] | msgspec.UnsetType = msgspec.UNSET
    tool_schemas_ref: int | msgspec.UnsetType = msgspec.UNSET
    model_s: float = 0.0
    env_s: float = 0.0
    endpoint: str | None = None
    model: str | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    warnings: tuple[str, ...] = ()
    shape: str | msgspec.UnsetType = msgspec.UNSET
    phases: Phases | None = None
    world: PackedCells | None = None
    tokens_ref: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def valid(self) -> bool:
        return self.action.valid

    @property
    def refused(self) -> bool:
        return self.action.refused is True


class AgentGymScore(msgspec.Struct, frozen=True):
    """What AgentGym's Evaluator computes of an episode.

    Attributes:
        score: the reward in the server's last reply: that of the last step, or of all steps where the server adds them.
        success: whether the score is exactly 1, or 100 in SciWorld; our own success follows the environment's verdict.
    """

    score: float
    success: bool


def agentgym_score(env: str, step_rewards: Sequence[float], reward: float | None) -> AgentGymScore | None:
    """Return AgentGym's score of an episode in ``env`` (case is ignored); None if its ``reward`` is unknown.

    ``step_rewards`` may be empty in an import that has a reward.
    """
    if reward is None:
        return None
    score = reward if env.lower() in _ADDED_REWARDS or not step_rewards else step_rewards[-1]
    return AgentGymScore(score, score == best_agentgym_score(env))


def best_agentgym_score(env: str) -> float:
    return 100.0 if env.lower() == "sciworld" else 1.0


AGENTGYM_NAMES: Final[Mapping[str, str]] = {
    **{"WebShop": "webshop", "ALFWorld": "alfworld", "TextCraft": "textcraft", "SciWorld": "sciworld"},
    **{"SQLGym": "sqlgym", "Wordle": "lmrlgym_wordle", "Maze": "lmrlgym_maze", "BabyAI": "babyai"},
    **{"Weather": "weather", "Movie": "movie", "Todo": "todo"},
}
"""Names in AgentGym's ids of tasks, by the environments that its filter of items, ``agentevol_filter.py``, knows."""


def agentgym_item_id(env: str, task_index: int) -> str | None:
    """Return the id of a task as AgentGym writes it, e.g. ``lmrlgym_maze_17``; None if it has none."""
    return None if (name := AGENTGYM_NAMES.get(env)) is None else f"{name}_{task_index}"


class Trajectory(msgspec.Struct, kw_only=True):
    """A finished episode: its steps, its outcome, and the error that ended it, if any.

    ``episode_id`` is the runner's own; of ``runner.Runner``, the environment's, and None after a failed reset.
    """

    episode_id: str | None = None
    timesteps: list[TimeStep] = []
    reset_kwargs: dict[str, Any] = {}
    error_info: ErrorInfo | None = None
    trace_last_response_flow_id: int | None = None
    reset_observation: Chat = []
    reset_world: PackedCells | None = None
    env_episode_id: str | None = None
    outcome: Outcome = Outcome.ERROR
    success: bool = False
    duration_s: float = 0.0
    paused_s: float = 0.0

    @property
    def reward(self) -> float:
        return sum(step.reward or 0.0 for step in self.timesteps)

    def __repr__(self) -> str:
        """Return one line; asyncio logs the repr of task results, and a full repr would contain the transcript."""
        rounds = len(self.timesteps)
        return f"<{type(self).__name__} {self.episode_id} {self.outcome} rounds={rounds} reward={self.reward:g}>"


class EvaluatedTrajectory(Trajectory, kw_only=True):
    """A trajectory, and the environment's evaluation details of it as JSON-encodable data."""

    evaluation: dict[str, Any]


class AREEvaluatedTrajectory(EvaluatedTrajectory, kw_only=True):
    """A trajectory of an ``AREEnvironment``, with its evaluation details under the name of the specification."""

    evaluation: dict[str, Any] = {}
    are_evaluation: dict[str, Any] = None  # type: ignore[assignment]  # set by __post_init__

    def __post_init__(self) -> None:
        given: object = self.are_evaluation
        self.evaluation = self.are_evaluation = self.evaluation if given is None else self.are_evaluation


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that played an episode: a thread of the driver (``local``), a local process, or a Ray actor."""

    host: str
    id: str
    kind: Literal["local", "process", "ray"]


class WorkerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of worker processes of a batch: ``n`` can play or are playing, ``starting`` cannot yet, ``lost`` died."""

    n: int = 0
    starting: int = 0
    lost: int = 0

    @property
    def text(self) -> str:
        if self.starting and not self.n:
            first = f"{self.starting} worker{'' if self.starting == 1 else 's'} starting"
        else:
            first = f"{self.n} worker{'' if self.n == 1 else 's'}"
            first += f", {self.starting} starting" if self.starting else ""
        return first + (f", {self.lost} lost" if self.lost else "")


class Span(msgspec.Struct, kw_only=True, gc=False):
    """A named time interval; start and end are nanoseconds of one monotonic clock."""

    id: int
    parent: int | None
    name: str
    category: str
    track: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int | float | bool | None] = {}


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One end of an arrow between two spans; both ends have the same ``id``, an unsigned 64-bit number."""

    id: int
    span: int
    phase: Literal["start", "end"]
