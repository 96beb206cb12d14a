"""Durable events, a closed union by type.

Times named ``…_at`` or ``at`` are RFC 3339 in UTC; ``…_s`` are seconds. Receivers ignore unknown fields, so fields may
be added; any other change needs a new version of the subject.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.events import subjects
from runner.types import Tokens
from runner.types.fields import (
    AgentName,
    AnsweringModels,
    BatchId,
    BatteryId,
    Boot,
    CostCurrency,
    EnvName,
    EpisodeId,
    EpisodeOutcome,
    Fallback,
    MeanReward,
    ModelName,
    NodeName,
    NodeStatus,
    Pid,
    ProfileId,
    RatedEpisodes,
    Reward,
    Rounds,
    Seconds,
    Success,
    TaskIndex,
    Unscored,
)


class EpisodeCompleted(msgspec.Struct, kw_only=True):
    """An episode ended and was stored."""

    episode_id: EpisodeId
    env: EnvName
    reward: Reward
    rounds: Rounds
    duration_s: Seconds
    success: Success
    score: Annotated[float, Meta(description="the same as `reward`")]
    duration_sec: Annotated[float, Meta(description="the same as `duration_s`")]
    outcome: EpisodeOutcome
    agent: AgentName
    model: ModelName
    task_index: TaskIndex
    tokens: Annotated[Tokens, Meta(description="tokens of all timesteps")]
    batch_id: BatchId
    node: NodeName
    profile: ProfileId
    cost: Annotated[float | None, Meta(description="cost of all timesteps; null when no price is known")] = None
    unscored: Unscored = False
    fallback: Fallback = None
    models: AnsweringModels = []
    currency: CostCurrency = None


class BatchCompleted(msgspec.Struct, kw_only=True):
    """A batch ended."""

    batch_id: BatchId
    env: EnvName
    n_episodes: Annotated[int, Meta(description="episodes that ended")]
    mean_reward: MeanReward
    success_rate: Annotated[
        float | None, Meta(description="fraction of successful episodes, 0 to 1; null when no episode was scored")
    ]
    status: Annotated[
        Literal["completed", "cancelled", "interrupted"], Meta(description="`completed`: all episodes ended")
    ]
    agent: AgentName
    model: ModelName
    node: NodeName
    battery_id: BatteryId
    tokens: Annotated[Tokens | None, Meta(description="tokens of all episodes")] = None
    cost: Annotated[float | None, Meta(description="cost of all episodes; null when no price is known")] = None
    latency_s: Annotated[float | None, Meta(description="mean seconds per model response; null without responses")] = (
        None
    )
    n_rated: RatedEpisodes = None
    n_errors: Annotated[
        int | None, Meta(description="episodes that ended with an error, which are not scored; null in older events")
    ] = None
    n_planned: Annotated[int | None, Meta(description="episodes of the complete batch; null in older events")] = None
    models: AnsweringModels = []
    currency: CostCurrency = None


class BatteryCompleted(msgspec.Struct, kw_only=True):
    """The last batch of a battery ended: of several environments or models, or of the parts of adaptive repeats."""

    battery_id: Annotated[str, Meta(description="id of the battery, a ULID")]
    batches: Annotated[list[str], Meta(description="ids of its batches in the order in which they began")]
    environments: Annotated[list[str], Meta(description="names of its environments in the same order")]
    n_episodes: Annotated[int, Meta(description="episodes that ended")]
    mean_reward: MeanReward
    models: Annotated[list[str], Meta(description="models that answered, by name; empty for agents that use none")]
    node: NodeName


class FieldStatus(msgspec.Struct, kw_only=True):
    """A node or a foreground run started, stopped or changed its status."""

    node: NodeName
    config: ProfileId
    status: NodeStatus
    role: Annotated[Literal["node", "run"], Meta(description="`node`: a service; `run`: one run in the foreground")]
    boot: Boot
    pid: Pid


class ForeignEpisode(msgspec.Struct, kw_only=True):
    """Completed episode in the format of other field runners, which has no ids; read, never written."""

    env: EnvName
    success: Success
    score: Reward
    rounds: Rounds
    duration_sec: Seconds
    model: ModelName = None


DurableEvent: TypeAlias = EpisodeCompleted | BatchCompleted | BatteryCompleted | FieldStatus
DURABLE_TYPES: dict[str, type[DurableEvent]] = {
    subjects.EPISODE_COMPLETED: EpisodeCompleted,
    subjects.BATCH_COMPLETED: BatchCompleted,
    subjects.BATTERY_COMPLETED: BatteryCompleted,
    subjects.FIELD_STATUS: FieldStatus,
}
