"""Episodes, nodes and batches as the console knows them, whatever they were read from: plain data, no widget, no bus.

Texts are kept as they came, hostile ones included; ``views`` makes them safe when it turns them into lines.
"""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.state.episode_content import DecodedMessages, Messages, RawMessages, Spans
from runner.events.live import LiveAction
from runner.types import Tokens, fallback_endpoints, skipped_endpoints

Outcome: TypeAlias = str
"""``success``, ``failure``, ``truncated``, ``timeout``, ``cancelled``, ``error`` or ``interrupted``."""


class StepState(msgspec.Struct, gc=False):
    """One round; ``warnings`` say what went otherwise than configured, ``left_out`` messages were not sent here."""

    index: int
    actor: str
    content: DecodedMessages | RawMessages
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
    warnings: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def chats(self) -> list[Messages]:
        """What the agent held for it."""
        return self.content.chats

    @property
    def observation(self) -> Messages:
        """What the environment answered."""
        return self.content.observation

    @property
    def skipped_endpoints(self) -> list[str]:
        """The endpoints that gave no answer before another one did."""
        return skipped_endpoints(self.endpoint, self.warnings)


class StreamingToolCall(msgspec.Struct, frozen=True):
    """A tool call as far as it came; ``number`` is its place in the answer, ``n_gone`` as in ``StreamingAnswer``."""

    number: int
    tool: str = ""
    arguments: str = ""
    n_dropped: int = 0


class StreamingAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer for the step that is not over, as far as it came.

    Attributes:
        n_text_gone: characters that came before ``text`` and are not kept; ``n_reasoning_gone`` before ``reasoning``.
        endpoint: who is asked; None where that is not known, or nobody is.
        failures: of those who were asked before, or would have been, each with its name.
        n: pieces the model has written, each about a token; ``n_first`` of them came first.
        ttft_s: seconds until the first of them.
        first_at: when it came, and the newest at ``newest_at``, by the sender's clock.
    """

    step: int = 0
    text: str = ""
    reasoning: str = ""
    calls: tuple[StreamingToolCall, ...] = ()
    n_text_dropped: int = 0
    n_reasoning_dropped: int = 0
    endpoint: str | None = None
    model: str | None = None
    failures: tuple[str, ...] = ()
    n_tokens: int = 0
    n_first_tokens: int = 0
    ttft_s: float | None = None
    first_at: datetime | None = None
    newest_at: datetime | None = None

    @property
    def skipped_endpoints(self) -> list[str]:
        """The endpoints that come before the one that is asked, and gave no answer; all of them when nobody is."""
        if self.endpoint is not None:
            return skipped_endpoints(self.endpoint, self.failures)
        return list(dict.fromkeys(failure.partition(": ")[0] for failure in self.failures))

    @property
    def tokens_per_s(self) -> float | None:
        """About how fast it comes; None as long as that cannot be said."""
        if self.first_at is None or self.newest_at is None:
            return None
        passed_s = (self.newest_at - self.first_at).total_seconds()
        return (self.n_tokens - self.n_first_tokens) / passed_s if passed_s > 0 and self.n_tokens > self.n_first_tokens else None


class EndpointState(msgspec.Struct):
    """A model endpoint; those of a node come in the order they are asked.

    Attributes:
        model: what it is asked for.
        rest_s: seconds for which no agent asks it, as it failed when one did; told with its health.
        failure: why it gave no answer when an agent wanted one the last time, None where it gave one.
    """

    status: str = "unknown"
    cause: str | None = None
    model: str | None = None
    rest_s: float | None = None
    failure: str | None = None

    @property
    def is_answering(self) -> bool:
        """Whether an agent that asks it now gets an answer, as far as is known."""
        return self.status in ("up", "slow", "embedded") and self.failure is None and self.rest_s is None


class Episode(msgspec.Struct):
    """An episode that runs or ran; ``outcome`` None while it runs.

    Attributes:
        streaming: what is known of the answer for the step that is not over, None before anybody is asked for it.
        n_missing: items of it that never got here; its file has them.
        node_lost: it ran when its node was last heard of.
    """

    episode_id: str
    batch_id: str
    env: str
    started_at: datetime
    battery_id: str | None = None
    node: str = ""
    transport: str = ""
    data_label: str = ""
    mode: str = "strict"
    task_index: int = 0
    seed: int | None = None
    attempt: int = 0
    agent: str = ""
    model: str | None = None
    profile: str = ""
    paused: bool = False
    outcome: Outcome | None = None
    success: bool = False
    reward: float = 0.0
    rounds: int = 0
    duration_s: float | None = None
    tokens: Tokens = msgspec.field(default_factory=Tokens)
    cost: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    reset_observation: Messages = msgspec.field(default_factory=list)
    steps: list[StepState] = msgspec.field(default_factory=list)
    spans: Spans = msgspec.field(default_factory=Spans)
    streaming: StreamingAnswer | None = None
    n_missing: int = 0
    node_lost: bool = False

    @property
    def running(self) -> bool:
        """Whether it is being played, or paused, or was when its node was last heard of."""
        return self.outcome is None

    @property
    def is_active(self) -> bool:
        """Whether it is being played, or paused, by a node that is heard of."""
        return self.outcome is None and not self.node_lost

    @property
    def last_step_index(self) -> int:
        """The number of its newest step, -1 where there is none."""
        return self.steps[-1].index if self.steps else -1

    def steps_after(self, index: int) -> list[StepState]:
        """The steps of larger numbers."""
        return list(takewhile(lambda step: step.index > index, reversed(self.steps)))[::-1]

    @property
    def fallback(self) -> str | None:
        """The endpoints that answered in the place of others."""
        return fallback_endpoints((step.endpoint, step.warnings) for step in self.steps)


class EnvironmentState(msgspec.Struct):
    """An environment of a node's profile; ``status`` None until a health item arrived."""

    name: str
    tier: str = ""
    ram: str = ""
    status: str | None = None
    cause: str | None = None
    latency_s: float | None = None
    transport: str = ""
    open: int | None = None
    last_reward: float | None = None
    n_rated: int = 0
    n_success: int = 0
    n_running: int = 0
    baseline: bool = False
    """The rated episodes are of agents without a model, as no model has played it."""


class BatchRun(msgspec.Struct):
    """A batch that is queued, running, paused, or over; ``ended_at`` where its end was told by a stream."""

    batch_id: str
    env: str = ""
    battery_id: str | None = None
    agent: str = ""
    model: str | None = None
    status: str = "running"
    n_done: int = 0
    n_planned: int = 0
    n_success: int = 0
    mean_reward: float | None = None
    eta_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    ended_at: datetime | None = None


class NodeInfo(msgspec.Struct):
    """A node that was heard of; times in seconds of the console's monotonic clock."""

    name: str
    boot: str = ""
    profile: str = ""
    status: str = ""
    data_dir: str = ""
    last_seen_at: float = 0.0
    lost: bool = False
    cpu: float | None = None
    ram: float | None = None
    gpus: list[str] = msgspec.field(default_factory=list)
    dropped: int = 0


BusLinkStatus: TypeAlias = Literal["none", "starting", "connecting", "connected", "stalled", "disconnected", "failed"]


class BusLink(msgspec.Struct):
    """The way to the bus; ``cause`` says why it is not there and what to do."""

    status: BusLinkStatus = "none"
    cause: str = ""
    address: str = ""


class ReadProgress(NamedTuple):
    """Files that were read, and those that were found."""

    n_read: int
    n_found: int


READING_FILES: Final = BusLink("none", "reading files")
"""Files that were named are being read."""
