"""Live items: what is said while something runs, and may be lost on the way."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.events.fields import (
    AgentName,
    At,
    BatchId,
    BatteryId,
    Boot,
    Cause,
    EndedHow,
    EnvName,
    EpisodeId,
    EpisodeSeq,
    HealthStatus,
    MeanReward,
    ModelName,
    NodeName,
    ProfileId,
    Reward,
    Rounds,
    Seconds,
    Success,
    TaskIndex,
)
from runner.types import Action, Mode, Part, Span, Tokens

MAX_TEXT = 16 * 1024
"""Bytes of UTF-8 that one text of a live item has at most."""

MAX_ITEM = 256 * 1024
"""Bytes of JSON that the messages of one timestep have at most."""


class _Item(msgspec.Struct, kw_only=True, tag_field="kind", gc=False):
    at: At


class _EpisodeItem(_Item, kw_only=True):
    episode_id: EpisodeId
    seq: EpisodeSeq


class EpisodeStarted(_EpisodeItem, kw_only=True, tag="episode.started"):
    """An episode is about to reset its environment."""

    batch_id: BatchId
    battery_id: BatteryId
    env: EnvName
    mode: Annotated[Mode, Meta(description="our rules, or AgentGym's with their quirks")]
    transport: Annotated[str, Meta(description="`embedded` or `http`")]
    data_label: Annotated[str, Meta(description="which data the tasks come from")]
    task_index: TaskIndex
    seed: Annotated[int | None, Meta(description="feeds the agent's randomness")]
    attempt: Annotated[int, Meta(description="how often the task was played before in this batch")]
    agent: AgentName
    model: ModelName
    profile: ProfileId


class EpisodePaused(_EpisodeItem, kw_only=True, tag="episode.paused"):
    """An episode waits at a step boundary."""


class EpisodeResumed(_EpisodeItem, kw_only=True, tag="episode.resumed"):
    """A paused episode goes on."""


class EpisodeEnded(_EpisodeItem, kw_only=True, tag="episode.ended"):
    """An episode is over."""

    outcome: EndedHow
    success: Success
    reward: Reward
    rounds: Rounds
    duration_s: Seconds
    error: Annotated[dict[str, str] | None, Meta(description="`type` and `message` of what ended it early")] = None


class LiveAction(Action, frozen=True, omit_defaults=True, gc=False):
    """What the agent did."""

    full_length: Annotated[
        dict[str, int],
        Meta(description="`text` or `tool_calls/<n>/arguments` -> its characters, for each text that was cut"),
    ] = msgspec.field(default_factory=dict)


class _Round(_EpisodeItem, kw_only=True):
    index: Annotated[int, Meta(description="number of the round, from 0")]
    actor: Annotated[Literal["agent", "human"], Meta(description="who acted")]
    action: LiveAction
    valid: Annotated[bool, Meta(description="whether the environment knows the action")]
    reward: Annotated[float, Meta(description="this round's reward")]
    done: Annotated[bool, Meta(description="whether the environment ended the episode")]
    model_s: Annotated[float, Meta(description="seconds in the agent")]
    env_s: Annotated[float, Meta(description="seconds in the environment")]
    endpoint: Annotated[str | None, Meta(description="model endpoint that answered")] = None
    model: ModelName = None
    ttft_s: Annotated[float | None, Meta(description="seconds until the model's first token")] = None
    tokens_per_s: Annotated[float | None, Meta(description="tokens per second of the model's answer")] = None
    tokens: Annotated[Tokens | None, Meta(description="tokens of this round")] = None
    cost: Annotated[float | None, Meta(description="cost of this round, null where nothing is priced")] = None
    warnings: Annotated[
        list[str], Meta(description="what went otherwise than configured, such as a fallback that answered")
    ] = msgspec.field(default_factory=list)
    left_out: Annotated[int, Meta(description="messages that had no room here; the episode file has them")] = 0


class Timestep(_Round, kw_only=True, tag="timestep"):
    """A round of an episode, without tool schemas.

    No text is longer than 16 KiB of UTF-8: a JSON object of which texts were cut carries ``full_length``, an object
    with the characters each of them had. All messages together have at most 256 KiB, the oldest are left out first.
    """

    chats: Annotated[
        list[list[dict[str, Any]]], Meta(description="the chats the agent held for this round, OpenAI messages")
    ]
    observation: Annotated[list[dict[str, Any]], Meta(description="the environment's reply")]
    reset_observation: Annotated[
        list[dict[str, Any]] | None, Meta(description="what the reset gave; with the first timestep only")
    ] = None


class HeardTimestep(_Round, kw_only=True, tag="timestep"):
    """A ``Timestep`` as it came: what was said is JSON, as few of them are ever looked at; none is ``null``."""

    chats: msgspec.Raw
    observation: msgspec.Raw
    reset_observation: msgspec.Raw = msgspec.Raw(b"null")


class TokenText(_EpisodeItem, kw_only=True, omit_defaults=True, tag="token"):
    """What a model has produced for a step so far not announced, and who is asked for it.

    An item with ``endpoint`` or ``failure`` has no text: it says that an endpoint is asked from here on, or that one
    gives no answer. Each part of an answer is a text of its own, put together from the items that belong to it.
    """

    step: Annotated[int, Meta(description="number of the round the text is for")]
    text: Annotated[str, Meta(description="the text since the last such item of the same part")]
    part: Annotated[
        Part,
        Meta(description="what the text belongs to: what is said, what is thought, or the arguments of a tool call"),
    ] = "text"
    call: Annotated[int, Meta(description="of a tool call, its number in the answer, from 0")] = 0
    tool: Annotated[str, Meta(description="of a tool call, the tool")] = ""
    n: Annotated[int, Meta(description="pieces the text came in, each about one token; 0 where that is not known")] = 0
    ttft_s: Annotated[float | None, Meta(description="seconds from the request to the model's first token")] = None
    endpoint: Annotated[str | None, Meta(description="model endpoint that is asked from here on")] = None
    model: Annotated[str | None, Meta(description="the model it is asked for")] = None
    failure: Annotated[
        str | None, Meta(description="`endpoint: reason` of an endpoint that gives no answer; another one is asked")
    ] = None
    restart: Annotated[
        bool,
        Meta(description="what came for this step so far does not count: the endpoint failed, another one is asked"),
    ] = False


class SpanClosed(_EpisodeItem, kw_only=True, tag="span"):
    """A span of an episode's trace is over."""

    span: Span


class HeardSpan(_EpisodeItem, kw_only=True, tag="span"):
    """A ``SpanClosed`` as it came."""

    span: msgspec.Raw


class BatchProgress(_Item, kw_only=True, tag="batch.progress"):
    """How far a batch is."""

    batch_id: BatchId
    seq: Annotated[int, Meta(description="number of the item in its batch, from 0")]
    n_done: Annotated[int, Meta(description="episodes that are over")]
    n_planned: Annotated[int, Meta(description="episodes the batch has in all")]
    n_success: Annotated[int, Meta(description="episodes that succeeded")]
    mean_reward: MeanReward
    eta_s: Annotated[float | None, Meta(description="seconds to go; null until one episode has ended")]
    tokens: Annotated[Tokens | None, Meta(description="tokens of the episodes that are over")] = None
    cost: Annotated[float | None, Meta(description="their cost, null where nothing is priced")] = None


class EnvHealth(_Item, kw_only=True, tag="env.health"):
    """Whether an environment can be played."""

    env: EnvName
    status: HealthStatus
    latency_s: Annotated[float | None, Meta(description="seconds its server took to answer")]
    transport: Annotated[str, Meta(description="`embedded` or `http`")]
    open: Annotated[int | None, Meta(description="open instances, null where that is not known")]
    cause: Cause


class ModelHealth(_Item, kw_only=True, tag="model.health"):
    """Whether a model endpoint answers."""

    endpoint: Annotated[str, Meta(description="name or address, without credentials")]
    status: HealthStatus
    cause: Cause
    hint: Annotated[str | None, Meta(description="what to do about it")] = None
    model: Annotated[str | None, Meta(description="the name that is sent")] = None
    latency_s: Annotated[float | None, Meta(description="seconds it took to answer a question of health")] = None
    rest_s: Annotated[
        float | None,
        Meta(description="seconds for which no agent asks it, as it failed when one did; null where one may"),
    ] = None


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU."""

    name: Annotated[str, Meta(description="the driver's name for it")]
    util: Annotated[float, Meta(description="load in percent")]
    mem_used: Annotated[int, Meta(description="bytes in use")]
    mem_total: Annotated[int, Meta(description="bytes it has")]


class Host(_Item, kw_only=True, tag="host"):
    """Load of the machine."""

    cpu: Annotated[float, Meta(description="load of the processors in percent")]
    ram: Annotated[float, Meta(description="memory in use in percent")]
    gpu: Annotated[list[Gpu] | None, Meta(description="null where it cannot be read")]


class Heartbeat(_Item, kw_only=True, tag="heartbeat"):
    """A node lives; sent every 2 s, missed for 5 s it counts as lost."""


_News: TypeAlias = EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText
_State: TypeAlias = BatchProgress | EnvHealth | ModelHealth | Host | Heartbeat
EpisodeItem: TypeAlias = _News | Timestep | SpanClosed
LiveItem: TypeAlias = EpisodeItem | _State
HeardItem: TypeAlias = _News | HeardTimestep | HeardSpan | _State


class _Batch(msgspec.Struct, kw_only=True, gc=False):
    node: NodeName
    boot: Boot
    dropped: Annotated[int, Meta(description="items of this boot that were never sent, all in all")]


class LiveBatch(_Batch, kw_only=True, gc=False):
    """One message of a live subject."""

    items: list[LiveItem]


class HeardBatch(_Batch, kw_only=True, gc=False):
    """A ``LiveBatch`` as it came."""

    items: list[HeardItem]
