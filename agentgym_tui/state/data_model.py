"""Data model of the console: episodes, steps, environments, batches, nodes, endpoints and the bus link.

Texts are kept as received and may contain control characters; ``presenters`` sanitize texts when they build lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agentgym_tui.state.episode_content import DecodedMessages, Messages, RawMessages, Spans
from agentgym_tui.state.machine import MachineInfo
from agentgym_tui.state.normalize import as_aware
from runner.events.live import LiveAction
from runner.types import (
    GpuUse,
    Phases,
    Tokens,
    WorkerCounts,
    WorkerInfo,
    count_models,
    fallback_endpoints,
    join_models,
    join_shapes,
    skipped_endpoints,
)
from runner.types.notes import Note

Outcome: TypeAlias = str
"""``success``, ``failure``, ``truncated``, ``timeout``, ``cancelled``, ``error``, ``interrupted``,
or ``UNKNOWN_OUTCOME``.
"""


class StepState(msgspec.Struct, gc=False):
    """One step of an episode.

    Attributes:
        warnings: deviations of the step from the configuration, such as failed endpoints.
        shape: the shape of its request, see ``Usage``.
        left_out: number of messages of the step that are missing from ``content``.
        phases: how the step's wall time is split; None in data of earlier versions.
        world: picture of the environment after the step, as JSON; empty if there is none.
        refused: whether the environment refused the action, which is valid.
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
    shape: str = ""
    left_out: int = 0
    phases: Phases | None = None
    world: bytes = b""
    refused: bool = False

    @property
    def chats(self) -> list[Messages]:
        """Chats with the model in which the agent chose its action."""
        return self.content.chats

    @property
    def observation(self) -> Messages:
        """Messages in which the environment described its state after the action."""
        return self.content.observation

    @property
    def skipped_endpoints(self) -> list[str]:
        """Endpoints that failed in this step before ``endpoint`` answered."""
        return skipped_endpoints(self.endpoint, self.warnings)


class StreamingToolCall(msgspec.Struct, frozen=True):
    """The received part of a tool call in an answer.

    Attributes:
        number: position of the call among the tool calls of the answer.
        arguments: end of the received arguments, as JSON text.
        n_dropped: number of characters before ``arguments`` that are not kept.
    """

    number: int
    tool: str = ""
    arguments: str = ""
    n_dropped: int = 0


class StreamingAnswer(msgspec.Struct, kw_only=True, gc=False):
    """The received part of the model's answer for the current step; it grows in place.

    Attributes:
        n_text_dropped, n_reasoning_dropped: number of characters before ``text`` and ``reasoning`` that are not kept.
        endpoint: the endpoint that answers; None if it is not known or all endpoints failed.
        requested_at: time of the request to ``endpoint``, by the sender's clock; None if it is not known.
        failures: reason for each endpoint that failed or was skipped, preceded by the name of the endpoint.
        n_tokens, n_first_tokens: approximate number of tokens received, and of those in the first item with text.
        ttft_s: seconds from the request to the first token.
        first_at, newest_at: time of the first and of the newest item with text, by the sender's clock.
    """

    step: int = 0
    text: str = ""
    reasoning: str = ""
    calls: tuple[StreamingToolCall, ...] = ()
    n_text_dropped: int = 0
    n_reasoning_dropped: int = 0
    endpoint: str | None = None
    requested_at: datetime | None = None
    model: str | None = None
    failures: tuple[str, ...] = ()
    n_tokens: int = 0
    n_first_tokens: int = 0
    ttft_s: float | None = None
    first_at: datetime | None = None
    newest_at: datetime | None = None

    @property
    def answered(self) -> tuple[int, str, datetime] | None:
        """Step, endpoint and time of the first text; None before it or where the endpoint is not known."""
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
        """Approximate number of tokens per second; None until tokens have arrived at two different times."""
        if self.first_at is None or self.newest_at is None:
            return None
        passed_s = (self.newest_at - self.first_at).total_seconds()
        return (
            (self.n_tokens - self.n_first_tokens) / passed_s
            if passed_s > 0 and self.n_tokens > self.n_first_tokens
            else None
        )


class Episode(msgspec.Struct):
    """A running or ended episode.

    Attributes:
        outcome: how the episode ended; None while the episode runs.
        success: whether it solved its task; None if that is not known, like ``task_index``.
        streaming: the unfinished answer for the current step; None before the inference of the step starts.
        reset_world: picture of the environment after the reset, as JSON; empty if there is none.
        n_missing: number of live items or steps that were not received; the episode file has their content.
        node_lost: whether the node was lost while the episode ran on it.
        worker: the worker that plays or played the episode; None if it is not known.
        unscored: whether the evaluation leaves the episode unscored, because idle play can succeed.
        reported_fallback: ``fallback`` of the completion event or the index row, for an episode without its steps.
        reported_models: the models that answered, by its event or index row, likewise.
        reported_shape: ``shape`` of the index row, likewise.
        evaluation: the evaluation in the episode's file, any JSON object; None if it is not known or there is none.
        gpu: what the GPUs did for it; None if it is not known.
        found_flags: what is wrong with it: names of flags, and the step where each begins, None for the whole episode.
        notes: tags and notes of the episode and its steps, the oldest first; their texts are untrusted.
        imported: format of the file of another tool that it comes from, and what the file lacks; untrusted text.
        currency: currency of the costs of the episode and its steps; "" if it is not known.
        agentgym_score: see ``AgentGymScore``; None until the episode has ended.
        version: counter that grows with each change; a view draws the episode again when the counter has changed.
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
    limits: str = ""
    task_index: int | None = 0
    seed: int | None = None
    attempt: int = 0
    agent: str = ""
    model: str | None = None
    profile: str = ""
    paused: bool = False
    outcome: Outcome | None = None
    success: bool | None = False
    reward: float | None = 0.0
    rounds: int = 0
    duration_s: float | None = None
    tokens: Tokens = msgspec.field(default_factory=Tokens)
    cost: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    reset_observation: Messages = msgspec.field(default_factory=list)
    reset_world: bytes = b""
    steps: list[StepState] = msgspec.field(default_factory=list)
    spans: Spans = msgspec.field(default_factory=Spans)
    streaming: StreamingAnswer | None = None
    n_missing: int = 0
    node_lost: bool = False
    worker: WorkerInfo | None = None
    unscored: bool = False
    reported_fallback: str | None = None
    reported_models: str | None = None
    reported_shape: str = ""
    evaluation: dict[str, Any] | None = None
    gpu: GpuUse | None = None
    found_flags: tuple[tuple[str, int | None], ...] = ()
    notes: Sequence[Note] = ()
    imported: str = ""
    currency: str = ""
    agentgym_score: float | None = None
    version: int = 0

    @property
    def running(self) -> bool:
        """Whether the episode has not ended as far as is known; true also while its node is lost."""
        return self.outcome is None

    @property
    def is_active(self) -> bool:
        """Whether the episode is running or paused on a node that is not lost."""
        return self.outcome is None and not self.node_lost

    @property
    def last_step_index(self) -> int:
        """Index of the newest step; -1 where the episode has no steps."""
        return self.steps[-1].index if self.steps else -1

    def steps_after(self, index: int) -> list[StepState]:
        """Return the steps whose index is larger than ``index``."""
        return list(takewhile(lambda step: step.index > index, reversed(self.steps)))[::-1]

    @property
    def fallback(self) -> str | None:
        """Endpoints that answered after another endpoint had failed, as one text; None if no endpoint failed."""
        return fallback_endpoints((step.endpoint, step.warnings) for step in self.steps) or self.reported_fallback

    @property
    def models(self) -> str | None:
        """The models that have answered, see ``join_models``; ``model`` if none has."""
        answered = count_models((step.endpoint, step.model) for step in self.steps)
        return self.reported_models or join_models(self.model, answered)

    @property
    def shape(self) -> str:
        """The shape of requests that its steps were played under; "" if it is the usual one, or not known."""
        return join_shapes(step.shape for step in self.steps) or self.reported_shape


class EnvironmentState(msgspec.Struct):
    """State of an environment.

    Attributes:
        ram: memory that the environment's server needs, as written in the profile.
        status: health of the environment; None until a health item has arrived.
        note: scenarios of a family of environments; None for other environments.
        open: number of open instances of the environment; None if it is not known.
        n_rated: number of ended episodes that count for the success rate.
        n_success: number of rated episodes that succeeded.
        n_errors: number of episodes that ended with an error; they are not rated.
        n_running: number of running episodes.
    """

    name: str
    tier: str = ""
    ram: str = ""
    status: str | None = None
    cause: str | None = None
    note: str | None = None
    latency_s: float | None = None
    transport: str = ""
    open: int | None = None
    last_reward: float | None = None
    n_rated: int = 0
    n_success: int = 0
    n_errors: int = 0
    n_running: int = 0
    n_players: int = 0
    """Number of different agents and models whose episodes the success counts sum up."""
    baseline: str | None = None
    """The agent without a model whose success counts these are; None where a model has run this environment."""
    unscored: bool = False
    """Whether the evaluation of any ended episode left it unscored."""


class BatchRun(msgspec.Struct):
    """A batch of episodes: queued, running, paused, interrupted or finished.

    Attributes:
        n_done: number of ended episodes.
        n_rated: number of ended episodes that count for the success rate; nodes of older versions do not send it, and
            all ended episodes count.
        n_errors: number of episodes that ended with an error; they are not rated.
        eta_s: estimated seconds until the batch ends; None if it is not known.
        eta_at_s: when the estimate was received, in seconds of the console's monotonic clock.
        waiting_for: the server that the batch waits for and its problem; None while the batch plays.
        waiting_s: seconds left until the batch is interrupted because its server is gone; None while the batch plays.
        interruption: why the batch was interrupted; None if it was not, on request, and where it is not known.
        workers: numbers of worker processes; None if the node's own process plays, and where they are not known.
        ended_at: when the batch ended; None while it runs, and where no stream stored its completion event.
        published_at: when a stream stored the completion event; None as for ``ended_at``.
        position: number of batches that wait before it; None where it does not wait or that is not known.
        is_held: whether it waits and does not start before it is resumed.
        node_paused: whether the node reports that all of its episodes are paused.
        started_at: when its first known episode started; None until one has started.
        has_totals: whether its stored episodes were summed.
        reported_models: the models that answered, by its event or its stored episodes; None while it runs.
        has_end_event: whether its completion event has arrived, whose values are final.
    """

    batch_id: str
    env: str = ""
    battery_id: str | None = None
    agent: str = ""
    model: str | None = None
    status: str = "running"
    n_done: int = 0
    n_planned: int = 0
    n_rated: int = 0
    n_success: int = 0
    n_errors: int = 0
    mean_reward: float | None = None
    eta_s: float | None = None
    eta_at_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    currency: str = ""
    waiting_for: str | None = None
    waiting_s: float | None = None
    interruption: str | None = None
    workers: WorkerCounts | None = None
    ended_at: datetime | None = None
    published_at: datetime | None = None
    position: int | None = None
    is_held: bool = False
    node_paused: bool = False
    started_at: datetime | None = None
    has_totals: bool = False
    node: str = ""
    has_end_event: bool = False
    reported_models: str | None = None

    @property
    def models(self) -> str | None:
        """The models that have answered, see ``join_models``; ``model`` while they are not known."""
        return self.reported_models or self.model

    @property
    def duration_s(self) -> float | None:
        """Seconds from its first episode to its end; None while it runs, and where they are not known."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max((as_aware(self.ended_at) - as_aware(self.started_at)).total_seconds(), 0.0)


class NodeInfo(msgspec.Struct):
    """A node and the load of its host.

    Attributes:
        boot: id of the current process of the node; "" where it is not known.
        last_seen_at: when the node last sent a message, in seconds of the console's monotonic clock.
        lost: whether the node has been silent for too long or its process is gone.
        dropped: number of live items that the current process of the node never sent.
        storage: why the node cannot store anything, and what waits; "" while it can.
        indexing: how far a starting node has read its episodes; "" once it has.
        egress: address of its external broker; "" without one.
        n_held: number of events that are not sent to it, because they are from before its first use.
        machine: the samples of its machine; None before the first one.
    """

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
    storage: str = ""
    indexing: str = ""
    egress: str = ""
    n_held: int = 0
    machine: MachineInfo | None = None

    @property
    def sends_heartbeats(self) -> bool:
        """Whether the node is silent only if it is lost; one of another kind reports nothing but its status."""
        return bool(self.boot) and self.status != "stopped"


BusLinkStatus: TypeAlias = Literal["none", "starting", "connecting", "connected", "stalled", "disconnected", "failed"]


class BusLink(msgspec.Struct):
    """Connection to the bus; while the bus is down, ``cause`` explains why and how to fix it."""

    status: BusLinkStatus = "none"
    cause: str = ""
    address: str = ""


READING_FILES: Final = BusLink("none", "reading files")
"""Link that a session shows while it reads the files named on the command line."""
