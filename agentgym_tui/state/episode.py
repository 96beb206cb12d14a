"""An episode as the console knows it: its steps, the streaming answer and its spans.

Texts are kept as received and may contain control characters. Messages stay the JSON text in which they arrived, and
are decoded where a view reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from sys import intern
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec.json import encode
from msgspec.structs import replace

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, MAX_NAME_CHARS, bounded
from runner.events.live import LazyTimestep, LiveAction
from runner.types import (
    GpuUse,
    Phases,
    Span,
    Tokens,
    WorkerInfo,
    count_models,
    fallback_endpoints,
    join_models,
    join_shapes,
    skipped_endpoints,
)
from runner.types.cells import MAX_CELLS_BYTES
from runner.types.notes import Note

if TYPE_CHECKING:
    from runner.types import TimeStep

Messages: TypeAlias = list[dict[str, Any]]
# ``success``, ``failure``, ``truncated``, ``timeout``, ``cancelled``, ``error``, ``interrupted``, ``UNKNOWN_OUTCOME``
Outcome: TypeAlias = str
EPISODE_BYTES: Final = 1_000
_STEP_BYTES: Final = 1_000
_PART_BYTES: Final = 250  # approximate memory of a span or tool call without texts, as above of others
_NO_JSON: Final = (b"null", b"[]", b"")
_STEP_FIELDS: Final = (  # kept as received
    *("index", "actor", "valid", "reward", "done", "model_s", "env_s", "ttft_s", "tokens_per_s", "tokens", "cost"),
    *("warnings", "phases"),
)


class StepState(msgspec.Struct, gc=False):
    index: int
    actor: str
    raw_chats: bytes  # messages as JSON; empty where they were dropped to free memory
    raw_observation: bytes
    action: LiveAction
    valid: bool
    reward: float
    done: bool
    model_s: float
    env_s: float
    endpoint: str | None = None
    model: str | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    warnings: Sequence[str] = ()  # deviations from the configuration, such as failed endpoints
    shape: str = ""  # of its request, see ``Usage``
    left_out: int = 0  # messages that were not sent, or were dropped
    phases: Phases | None = None  # how the wall time is split
    world: bytes = b""  # picture of the environment after the step, as JSON
    refused: bool = False  # by the environment, though the action is valid

    @property
    def chats(self) -> list[Messages]:
        return [as_messages(chat if isinstance(chat, list) else [chat]) for chat in _decode_list(self.raw_chats)]

    @property
    def observation(self) -> Messages:
        return decode_messages(self.raw_observation)

    @property
    def skipped_endpoints(self) -> list[str]:
        return skipped_endpoints(self.endpoint, self.warnings)

    @property
    def size(self) -> int:
        """Approximate memory in bytes: that of what was received."""
        calls = sum([_PART_BYTES + len(call.arguments) for call in self.action.tool_calls])
        texts = calls + len(self.action.text or "") + sum(map(len, self.warnings))
        return _STEP_BYTES + texts + len(self.raw_chats) + len(self.raw_observation) + len(self.world)

    def stripped(self) -> StepState:
        left_out = self.left_out + sum(map(len, self.chats)) + len(self.observation)
        text = None if self.action.text is None else self.action.text[:MAX_NAME_CHARS]
        return replace(self, raw_chats=b"", raw_observation=b"", world=b"", action=LiveAction(text), left_out=left_out)


def step_of(part: LazyTimestep | TimeStep) -> StepState:
    if isinstance(part, LazyTimestep):
        chats, observation, left_out, action = bytes(part.chats), bytes(part.observation), part.left_out, part.action
    else:
        chats, observation, left_out = to_json(part.chats), to_json(part.observation), 0
        action = LiveAction(part.action.text, part.action.tool_calls)
        bounded(part.phases)
    return StepState(
        **{name: getattr(part, name) for name in _STEP_FIELDS},
        raw_chats=chats,
        raw_observation=observation,
        action=action,
        refused=part.refused is True,
        endpoint=part.endpoint and intern(part.endpoint),  # one object for all steps that have it
        model=part.model and intern(part.model),
        shape=join_shapes([part.shape]),
        left_out=left_out,
        world=picture_of(part.world),
    )


def picture_of(world: object) -> bytes:
    """Return the picture of a live item or a file as JSON; empty if there is none or it is too large."""
    packed = bytes(world) if isinstance(world, msgspec.Raw) else encode(world)
    return packed if packed not in _NO_JSON and len(packed) <= MAX_CELLS_BYTES else b""


class StreamingToolCall(msgspec.Struct, frozen=True):
    number: int  # place among the tool calls of the answer
    tool: str = ""
    arguments: str = ""  # the end of the received JSON text
    n_dropped: int = 0  # characters before ``arguments`` that are not kept


class StreamingAnswer(msgspec.Struct, kw_only=True, gc=False):
    """The received part of the model's answer for the current step; it grows in place."""

    step: int = 0
    text: str = ""
    reasoning: str = ""
    calls: tuple[StreamingToolCall, ...] = ()
    n_text_dropped: int = 0  # characters before ``text`` that are not kept, as for the reasoning
    n_reasoning_dropped: int = 0
    endpoint: str | None = None  # None if it is not known or all endpoints failed
    requested_at: datetime | None = None  # by the sender's clock
    model: str | None = None
    failures: tuple[str, ...] = ()  # name and reason of each endpoint that failed or was skipped
    n_tokens: int = 0  # approximate; ``n_first_tokens``: in the first item with text
    n_first_tokens: int = 0
    ttft_s: float | None = None  # from the request to the first token
    first_at: datetime | None = None  # when the first text was sent, as ``newest_at`` by the sender's clock
    newest_at: datetime | None = None

    @property
    def answered(self) -> tuple[int, str, datetime] | None:
        """Step, endpoint and time of the first text."""
        if self.first_at is None or self.endpoint is None:
            return None
        return self.step, self.endpoint, self.first_at

    @property
    def skipped_endpoints(self) -> list[str]:
        """Endpoints that were passed over before ``endpoint``; all failed endpoints where ``endpoint`` is None."""
        if self.endpoint is not None:
            return skipped_endpoints(self.endpoint, self.failures)
        return list(dict.fromkeys(failure.partition(": ")[0] for failure in self.failures))

    @property
    def tokens_per_s(self) -> float | None:
        """None until tokens have arrived at two different times."""
        if self.first_at is None or self.newest_at is None:
            return None
        passed_s, n = (self.newest_at - self.first_at).total_seconds(), self.n_tokens - self.n_first_tokens
        return n / passed_s if passed_s > 0 and n > 0 else None


class Spans:
    """Spans in the order of arrival; live ones stay JSON, whose bytes are ``size``, until a view reads them."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans, self._raw = list(spans), list[bytes]()
        json_bytes = len(to_json(msgspec.to_builtins(self._spans))) if self._spans else 0
        self.size = json_bytes + _PART_BYTES * len(self._spans)

    def append_raw(self, spans: Sequence[bytes]) -> None:
        self._raw += spans
        self.size += sum(map(len, spans)) + _PART_BYTES * len(spans)

    @property
    def all(self) -> list[Span]:
        pending, self._raw = self._raw, []
        for raw in pending:
            self._spans.append(self._decode_span(raw))
        return self._spans

    def __len__(self) -> int:
        return len(self._spans) + len(self._raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self.all == other.all

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _decode_span(self, raw: bytes) -> Span:
        try:
            return _SPAN_DECODER.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as exc:
            # shown at the end of the span before it
            end_ns = self._spans[-1].end_ns if self._spans else 0
            name = f"span cannot be decoded: {exc}"[:MAX_CAUSE_CHARS]
            return Span(id=0, parent=None, name=name, category="", track="", start_ns=end_ns, end_ns=end_ns)


class Episode(msgspec.Struct):
    episode_id: str
    batch_id: str
    env: str
    started_at: datetime
    battery_id: str | None = None
    node: str = ""
    transport: str = ""
    data_label: str = ""
    mode: str = "strict"
    limits: str = ""
    task_index: int | None = 0
    seed: int | None = None
    attempt: int = 0
    agent: str = ""
    model: str | None = None
    profile: str = ""
    paused: bool = False
    outcome: Outcome | None = None  # how it ended; None while it runs
    success: bool | None = False  # None if it is not known
    reward: float | None = 0.0
    rounds: int = 0
    duration_s: float | None = None
    tokens: Tokens = msgspec.field(default_factory=Tokens)
    cost: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    reset_observation: Messages = msgspec.field(default_factory=list)
    reset_world: bytes = b""  # picture of the environment after the reset, as JSON
    steps: list[StepState] = msgspec.field(default_factory=list)
    spans: Spans = msgspec.field(default_factory=Spans)
    # the unfinished answer for the current step; None before its inference starts
    streaming: StreamingAnswer | None = None
    n_missing: int = 0  # live items or steps that were not received; the episode file has them
    node_lost: bool = False  # while the episode runs on it
    worker: WorkerInfo | None = None
    unscored: bool = False  # by the evaluation, because idle play can succeed
    reported_fallback: str | None = None  # by its event or index row, as the next two, while its steps are not known
    reported_models: str | None = None
    reported_shape: str = ""
    evaluation: dict[str, Any] | None = None  # any JSON object of the episode's file
    gpu: GpuUse | None = None  # what the GPUs did for it
    # names, and the step where each begins; None for the whole episode
    found_flags: tuple[tuple[str, int | None], ...] = ()
    notes: Sequence[Note] = ()  # of the episode and its steps, the oldest first; untrusted texts
    imported: str = ""  # format of another tool's file, and what the file lacks; untrusted
    currency: str = ""  # of its costs; "" if it is not known
    agentgym_score: float | None = None  # see ``AgentGymScore``
    version: int = 0  # grows with each change; a view then draws the episode again

    @property
    def running(self) -> bool:  # as far as is known; also while its node is lost
        return self.outcome is None

    @property
    def is_active(self) -> bool:
        """Running or paused on a node that is not lost."""
        return self.outcome is None and not self.node_lost

    @property
    def last_step_index(self) -> int:
        return self.steps[-1].index if self.steps else -1

    @property
    def n_missing_steps(self) -> int:
        """Gaps between step indices, and rounds without a step after the last step."""
        return max(self.last_step_index + 1, self.rounds) - len(self.steps) if self.steps else 0

    @property
    def fallback(self) -> str | None:
        """Endpoints that answered after another endpoint had failed, as one text."""
        return fallback_endpoints((step.endpoint, step.warnings) for step in self.steps) or self.reported_fallback

    @property
    def models(self) -> str | None:
        """The models that have answered, see ``join_models``; ``model`` if none has."""
        answered = count_models((step.endpoint, step.model) for step in self.steps)
        return self.reported_models or join_models(self.model, answered)

    @property
    def shape(self) -> str:
        """The shapes of requests that its steps were played under; "" if it is the usual one, or not known."""
        return join_shapes(step.shape for step in self.steps) or self.reported_shape

    @property
    def size(self) -> int:
        reset = len(to_json(self.reset_observation)) if self.reset_observation else 0
        steps = sum([step.size for step in self.steps])
        return EPISODE_BYTES + reset + len(self.reset_world) + self.spans.size + steps

    def drop_content(self) -> None:
        """Drop messages, pictures and spans; the file of the episode has them."""
        self.steps = [step.stripped() for step in self.steps]
        self.spans, self.reset_observation, self.reset_world = Spans(), [], b""
        self.version += 1

    def add_totals(self, steps: Sequence[StepState]) -> None:
        """Add new steps, already in the episode, to its totals."""
        self.rounds = len(self.steps)
        self.reward = sum([step.reward for step in steps], self.reward or 0.0)
        self.tokens = sum([step.tokens for step in steps if step.tokens], self.tokens)
        if costs := [step.cost for step in steps if step.cost is not None]:
            self.cost = sum(costs, self.cost or 0.0)


def as_messages(chat: Iterable[Any]) -> Messages:
    """Return a chat's entries; one that is no JSON object becomes the content of a message."""
    return [message if isinstance(message, dict) else {"content": message} for message in chat]


def to_json(value: object) -> bytes:
    """Return messages as JSON, with the lone surrogates of their texts."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_messages(raw: bytes) -> Messages:
    """Decode a list of messages; JSON that cannot be decoded yields one message that contains the error."""
    return as_messages(_decode_list(raw))


def _decode_list(raw: bytes) -> list[Any]:
    if raw in _NO_JSON:
        return []
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        return [{"content": f"messages cannot be decoded: {exc}"[:MAX_CAUSE_CHARS]}]
    return value if isinstance(value, list) else [value]


_SPAN_DECODER: Final = msgspec.json.Decoder(Span)
