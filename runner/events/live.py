"""Live items: progress of episodes, batches and nodes; sent without acknowledgement, so some may be lost."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from runner.types import (
    ActionContent,
    BatchProgress,
    DeltaPart,
    EpisodePaused,
    EpisodeResumed,
    Mode,
    Phases,
    Span,
    Tokens,
    WorkerInfo,
    WorkerState,
)
from runner.types.episode_events import EpisodeItemBase, ItemBase
from runner.types.fields import (
    FOREIGN,
    AgentName,
    BatchId,
    BatteryId,
    Boot,
    Cause,
    CostCurrency,
    EnvName,
    EpisodeOutcome,
    HealthStatus,
    Indexing,
    ModelName,
    NodeName,
    ProfileId,
    Reward,
    Rounds,
    Seconds,
    StorageProblem,
    Success,
    TaskIndex,
    Unscored,
)
from runner.types.machine import Machine

MAX_TEXT = 16 * 1024
"""Maximum length of one text of a live item, in bytes of UTF-8."""

MAX_ITEM = 256 * 1024
"""Maximum size of all messages of one timestep, in bytes of JSON."""


class EpisodeStarted(EpisodeItemBase, kw_only=True, tag="episode.started"):
    """An episode is about to reset its environment."""

    batch_id: BatchId
    battery_id: BatteryId
    env: EnvName
    mode: Annotated[
        Mode, Meta(description="`strict`: this project's rules; `compat`: AgentGym's rules, including their quirks")
    ]
    transport: Annotated[str, Meta(description="`embedded` or `http`")]
    data_label: Annotated[str, Meta(description="label of the task data")]
    task_index: TaskIndex
    seed: Annotated[int | None, Meta(description="seed of the agent's random numbers")]
    attempt: Annotated[int, Meta(description="number of earlier attempts at the task in this batch")]
    agent: AgentName
    model: ModelName
    profile: ProfileId
    worker: Annotated[WorkerInfo | None, Meta(description="worker that plays the episode; null when unknown")] = None
    currency: CostCurrency = None
    limits: Annotated[str, Meta(description="limits that are not 15 rounds and 300 s, such as `30 rounds`")] = ""


class EpisodeEnded(EpisodeItemBase, kw_only=True, tag="episode.ended"):
    """An episode ended."""

    outcome: EpisodeOutcome
    success: Success
    reward: Reward
    rounds: Rounds
    duration_s: Seconds
    error: Annotated[
        dict[str, str] | None, Meta(description="`type` and `message` of the error that ended the episode")
    ] = None
    unscored: Unscored = False


class LiveAction(ActionContent, frozen=True, omit_defaults=True, gc=False):
    """Action of the agent, or of the person in its place."""

    full_length: Annotated[
        dict[str, int],
        Meta(description="full length in characters of each truncated text, by `text` or `tool_calls/<n>/arguments`"),
    ] = msgspec.field(default_factory=dict)


class _TimestepFields(EpisodeItemBase, kw_only=True):
    index: Annotated[int, Meta(description="index of the timestep, from 0")]
    actor: Annotated[Literal["agent", "human"], Meta(description="`human` for an action of a person")]
    action: LiveAction
    valid: Annotated[bool, Meta(description="whether the action is a valid action of the environment")]
    refused: Annotated[
        bool | UnsetType, Meta(description="true if the action is valid and the environment refused it; else absent")
    ] = UNSET
    reward: Annotated[float, Meta(description="reward of this timestep")]
    done: Annotated[bool, Meta(description="whether the environment ended the episode")]
    model_s: Annotated[float, Meta(description="seconds spent in the agent")]
    env_s: Annotated[float, Meta(description="seconds spent in the environment")]
    endpoint: Annotated[str | None, Meta(description="model endpoint that responded")] = None
    model: ModelName = None
    ttft_s: Annotated[float | None, Meta(description="seconds from the request to the model's first token")] = None
    tokens_per_s: Annotated[float | None, Meta(description="tokens per second of the model's response")] = None
    tokens: Annotated[Tokens | None, Meta(description="tokens of this timestep")] = None
    cost: Annotated[float | None, Meta(description="cost of this timestep; null when no price is known")] = None
    warnings: Annotated[
        list[str], Meta(description="deviations from the configuration, such as a fallback endpoint that responded")
    ] = msgspec.field(default_factory=list)
    shape: Annotated[
        str | UnsetType,
        Meta(description="shape of the request where the server refused the usual one, e.g. `tools as text`"),
    ] = UNSET
    left_out: Annotated[int, Meta(description="messages left out for size; the episode file has them")] = 0
    phases: Annotated[
        Phases | None,
        Meta(
            description="how the step's wall time is split, in seconds: `queue`, `prefill` and `decode` are parts of "
            "`model`, null when unknown; `about`: they are estimates from the server's metrics"
        ),
    ] = None


class Timestep(_TimestepFields, kw_only=True, tag="timestep"):
    """Timestep of an episode, without tool schemas.

    Texts are truncated to 16 KiB of UTF-8. A JSON object with truncated texts has a field ``full_length``, an object
    that gives the original length of each in characters. All messages together have at most 256 KiB; the oldest are
    left out first.
    """

    chats: Annotated[
        list[list[dict[str, Any]]], Meta(description="chats of the agent in this timestep, as lists of OpenAI messages")
    ]
    observation: Annotated[list[dict[str, Any]], Meta(description="the environment's observation, as OpenAI messages")]
    reset_observation: Annotated[
        list[dict[str, Any]] | None, Meta(description="observation of the reset; in the first timestep only")
    ] = None
    world: Annotated[
        list[Any] | None,
        Meta(
            description="picture of the environment after the timestep, as in the episode file; null if there is none"
        ),
    ] = None
    reset_world: Annotated[
        list[Any] | None, Meta(description="picture after the reset; in the first timestep only")
    ] = None


class LazyTimestep(_TimestepFields, kw_only=True, tag="timestep"):
    """Received ``Timestep`` with messages as raw JSON, as few are displayed; a field without messages is ``null``."""

    chats: msgspec.Raw
    observation: msgspec.Raw
    reset_observation: msgspec.Raw = msgspec.Raw(b"null")
    world: msgspec.Raw = msgspec.Raw(b"null")
    reset_world: msgspec.Raw = msgspec.Raw(b"null")


class TokenText(EpisodeItemBase, kw_only=True, omit_defaults=True, tag="token"):
    """Text streamed by a model for a timestep that has not ended, or a change of endpoint.

    An item with ``endpoint`` or ``failure`` has no text: it reports that a request went to an endpoint, or that one
    failed. Such an item is published like a timestep, also while nothing receives the texts. The texts of each part of
    a response are to be concatenated.
    """

    step: Annotated[int, Meta(description="index of the timestep")]
    text: Annotated[str, Meta(description="text to append to the same part")]
    part: Annotated[
        DeltaPart, Meta(description="part of the response: its text, its reasoning, or the arguments of a tool call")
    ] = "text"
    call: Annotated[int, Meta(description="for a tool call, its number in the response, from 0")] = 0
    tool: Annotated[str, Meta(description="for a tool call, the name of the tool")] = ""
    n: Annotated[int, Meta(description="stream chunks in the text, about one token each; 0 when unknown")] = 0
    ttft_s: Annotated[float | None, Meta(description="seconds from the request to the model's first token")] = None
    endpoint: Annotated[str | None, Meta(description="model endpoint to which the request now goes")] = None
    model: Annotated[str | None, Meta(description="model requested there")] = None
    failure: Annotated[
        str | None, Meta(description="`endpoint: reason` of an endpoint that failed; another one is tried")
    ] = None
    restart: Annotated[
        bool, Meta(description="discard all text of this timestep so far: the endpoint failed and another one is tried")
    ] = False


class SpanClosed(EpisodeItemBase, kw_only=True, tag="span"):
    """A span of an episode's trace ended."""

    span: Span


class LazySpan(EpisodeItemBase, kw_only=True, tag="span"):
    span: msgspec.Raw


class WaitingBatch(msgspec.Struct, kw_only=True):
    """A batch that waits in the queue of a node."""

    batch_id: BatchId
    battery_id: BatteryId
    env: EnvName
    agent: AgentName
    model: ModelName
    n_done: Annotated[int, Meta(description="finished episodes, if it was resumed")]
    n_planned: Annotated[int, Meta(description="episodes in total")]
    paused: Annotated[bool, Meta(description="whether it does not start before it is resumed")] = False


class QueueChanged(ItemBase, kw_only=True, tag="queue"):
    """The queue of a node changed."""

    batches: Annotated[list[WaitingBatch], Meta(description="the first 200 batches that wait, in the order they run")]
    n_waiting: Annotated[int, Meta(description="number of all batches that wait")]


class EnvHealth(ItemBase, kw_only=True, tag="env.health"):
    """Health of an environment."""

    env: EnvName
    status: HealthStatus
    latency_s: Annotated[float | None, Meta(description="response time of its server in seconds")]
    transport: Annotated[str, Meta(description="`embedded` or `http`")]
    open: Annotated[int | None, Meta(description="open instances; null when unknown")]
    cause: Cause
    note: Annotated[str | None, Meta(description="scenarios of a family of environments; null for others"), FOREIGN] = (
        None
    )


class ModelHealth(ItemBase, kw_only=True, tag="model.health"):
    """Health of a model endpoint."""

    endpoint: Annotated[str, Meta(description="name or URL, without credentials")]
    status: HealthStatus
    cause: Cause
    hint: Annotated[str | None, Meta(description="what to do next"), FOREIGN] = None
    model: Annotated[str | None, Meta(description="model name in requests")] = None
    latency_s: Annotated[float | None, Meta(description="response time of the health check in seconds")] = None
    rest_s: Annotated[
        float | None, Meta(description="seconds until agents may use it again after a failure; null when usable")
    ] = None
    requests_per_minute: Annotated[int | None, Meta(description="limit of the profile; null: none")] = None
    concurrent_requests: Annotated[int | None, Meta(description="limit of the profile; null: none")] = None


class ModelMetrics(ItemBase, kw_only=True, tag="model.metrics"):
    """Load of the server behind a model endpoint, from its own metrics; sent every 2 s while episodes or clients run.

    Rates and means are those of the time since the previous item. A field that the server does not have is null.
    """

    endpoint: Annotated[str, Meta(description="name or URL, without credentials")]
    server: Annotated[str, Meta(description="`vllm`, `sglang`, `llama.cpp`, `tensorzero` or `ollama`")]
    running: Annotated[float | None, Meta(description="requests that are being answered")] = None
    waiting: Annotated[float | None, Meta(description="requests in the server's queue")] = None
    kv_cache: Annotated[float | None, Meta(description="used part of the KV cache, from 0 to 1")] = None
    prefix_hits: Annotated[float | None, Meta(description="part of the prompt found in the prefix cache")] = None
    tokens_per_s: Annotated[float | None, Meta(description="generated tokens per second, of all requests")] = None
    prompt_tokens_per_s: Annotated[float | None, Meta(description="prompt tokens per second, of all requests")] = None
    queue_s: Annotated[float | None, Meta(description="mean seconds in the queue, per request")] = None
    prefill_s: Annotated[float | None, Meta(description="mean seconds of prefill, per request")] = None
    decode_s: Annotated[float | None, Meta(description="mean seconds of decode, per request")] = None
    overhead_s: Annotated[float | None, Meta(description="mean seconds that a gateway adds, per request")] = None
    models: Annotated[
        list[str] | None, Meta(description="models that Ollama holds in memory, and how much of each is on the GPU")
    ] = None


class Gpu(msgspec.Struct, kw_only=True):
    """State of one GPU."""

    name: Annotated[str, Meta(description="name given by the driver")]
    util: Annotated[float, Meta(description="utilization in percent")]
    mem_used: Annotated[int, Meta(description="memory in use, in bytes")]
    mem_total: Annotated[int, Meta(description="total memory, in bytes")]


class Host(ItemBase, kw_only=True, tag="host"):
    """Load of the host."""

    cpu: Annotated[float, Meta(description="CPU utilization in percent")]
    ram: Annotated[float, Meta(description="memory in use, in percent")]
    gpu: Annotated[list[Gpu] | None, Meta(description="null when it cannot be read")]


class Heartbeat(ItemBase, kw_only=True, tag="heartbeat"):
    """Sign of life of a node, sent every 2 s; a node without one for 5 s counts as lost."""

    storage: StorageProblem = None
    indexing: Indexing = None
    status: Annotated[str | None, Meta(description="as of `field.status`; null in older items")] = None
    profile: Annotated[str | None, Meta(description="id of the node's profile; null in older items")] = None
    version: Annotated[str | None, Meta(description="version of AgentGym Console; null in older items")] = None
    n_waiting: Annotated[int | None, Meta(description="number of waiting batches; null in older items")] = None


_EpisodeChange: TypeAlias = EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText
_ModelItem: TypeAlias = ModelHealth | ModelMetrics
_HostItem: TypeAlias = Host | Machine | Heartbeat
_StatusItem: TypeAlias = BatchProgress | WorkerState | QueueChanged | EnvHealth | _ModelItem | _HostItem
EpisodeItem: TypeAlias = _EpisodeChange | Timestep | SpanClosed
LiveItem: TypeAlias = EpisodeItem | _StatusItem
LazyItem: TypeAlias = _EpisodeChange | LazyTimestep | LazySpan | _StatusItem


class _Batch(msgspec.Struct, kw_only=True, gc=False):
    node: NodeName
    boot: Boot
    dropped: Annotated[int, Meta(description="items of this boot that were never sent, in total")]


class LiveBatch(_Batch, kw_only=True, gc=False):
    """Message of a live subject."""

    items: list[LiveItem]


class LazyBatch(_Batch, kw_only=True, gc=False):
    """Received ``LiveBatch`` with raw JSON in timesteps and spans."""

    items: list[LazyItem]
