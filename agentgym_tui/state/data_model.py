"""Data model of the console: episodes, steps, environments, batches, nodes, endpoints and the bus link.

Texts are kept as received, including unsafe ones; ``presenters`` sanitize them when they build lines.
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
    """One step of an episode.

    Attributes:
        warnings: deviations from the configuration.
        left_out: number of messages that are not in ``content``.
    """

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
        """Chats that the agent held to choose its action."""
        return self.content.chats

    @property
    def observation(self) -> Messages:
        """Observation of the environment after the action."""
        return self.content.observation

    @property
    def skipped_endpoints(self) -> list[str]:
        """Endpoints that failed before another one answered."""
        return skipped_endpoints(self.endpoint, self.warnings)


class StreamingToolCall(msgspec.Struct, frozen=True):
    """A tool call so far; ``number`` is its position in the answer, ``n_dropped`` as in ``StreamingAnswer``."""

    number: int
    tool: str = ""
    arguments: str = ""
    n_dropped: int = 0


class StreamingAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer for the current step so far.

    Attributes:
        n_text_dropped: characters before ``text`` that are not kept; ``n_reasoning_dropped`` before ``reasoning``.
        endpoint: the endpoint that answers; None where it is not known or all endpoints failed.
        failures: why endpoints before it failed or were skipped, each with its name.
        n_tokens: tokens so far, approximately; ``n_first_tokens`` of them arrived first.
        ttft_s: seconds until the first token.
        first_at: sender's time of the first tokens; ``newest_at`` of the newest ones.
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
        """Endpoints before the one that answers; all that failed where none answers."""
        if self.endpoint is not None:
            return skipped_endpoints(self.endpoint, self.failures)
        return list(dict.fromkeys(failure.partition(": ")[0] for failure in self.failures))

    @property
    def tokens_per_s(self) -> float | None:
        """Approximate token rate; None until a second item has arrived."""
        if self.first_at is None or self.newest_at is None:
            return None
        passed_s = (self.newest_at - self.first_at).total_seconds()
        return (
            (self.n_tokens - self.n_first_tokens) / passed_s
            if passed_s > 0 and self.n_tokens > self.n_first_tokens
            else None
        )


class EndpointState(msgspec.Struct):
    """A model endpoint; the endpoints of a node are in the order in which agents try them.

    Attributes:
        model: model name requested from it.
        rest_s: seconds for which agents skip it after a failure, as of its last health item.
        failure: why its last inference failed; None where it succeeded.
    """

    status: str = "unknown"
    cause: str | None = None
    model: str | None = None
    rest_s: float | None = None
    failure: str | None = None

    @property
    def is_answering(self) -> bool:
        """Whether an agent that uses it now is expected to get an answer."""
        return self.status in ("up", "slow", "embedded") and self.failure is None and self.rest_s is None


class Episode(msgspec.Struct):
    """A running or finished episode; ``outcome`` is None while it runs.

    Attributes:
        streaming: the answer for the current step; None before its inference starts.
        n_missing: live items that were not received; the episode file has their content.
        node_lost: the episode was running when its node was last heard.
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
        """Whether it is running or paused, or was when its node was last heard."""
        return self.outcome is None

    @property
    def is_active(self) -> bool:
        """Whether it is running or paused on a node that is alive."""
        return self.outcome is None and not self.node_lost

    @property
    def last_step_index(self) -> int:
        """Index of the newest step; -1 without steps."""
        return self.steps[-1].index if self.steps else -1

    def steps_after(self, index: int) -> list[StepState]:
        """Return the steps with a larger index."""
        return list(takewhile(lambda step: step.index > index, reversed(self.steps)))[::-1]

    @property
    def fallback(self) -> str | None:
        """Endpoints that answered instead of others; None where none did."""
        return fallback_endpoints((step.endpoint, step.warnings) for step in self.steps)


class EnvironmentState(msgspec.Struct):
    """An environment of a node's profile; ``status`` is None until a health item has arrived."""

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
    """The success counts are of agents without a model, because no model has run this environment yet."""


class BatchRun(msgspec.Struct):
    """A batch that is queued, running, paused or finished; ``ended_at`` is known where a stream stored the event."""

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
    """A node; ``last_seen_at`` is in seconds of the console's monotonic clock."""

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
    """Connection to the bus; ``cause`` names why it is down and what to do."""

    status: BusLinkStatus = "none"
    cause: str = ""
    address: str = ""


class ReadProgress(NamedTuple):
    """Numbers of files that were read and found."""

    n_read: int
    n_found: int


READING_FILES: Final = BusLink("none", "reading files")
"""Link of a session that is reading the files named on the command line."""
