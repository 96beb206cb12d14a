"""Durable events, a closed union by type.

Times named ``…_at`` or ``at`` are RFC 3339 in UTC; ``…_s`` are seconds. Receivers ignore unknown fields, so fields may
be added; any other change needs a new version of the subject. Fields with a default are those that other field runners
leave out; None stands for unknown. This project's own events have all fields.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.events import subjects
from runner.types import AgentGymScore, Tokens
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
    """An episode ended."""

    episode_id: EpisodeId
    env: EnvName
    reward: Reward
    rounds: Rounds
    duration_s: Seconds
    success: Success | None = None
    score: Annotated[float | None, Meta(description="the same as `reward`")] = None
    duration_sec: Annotated[float | None, Meta(description="the same as `duration_s`")] = None
    outcome: EpisodeOutcome | None = None
    agent: AgentName | None = None
    model: ModelName = None
    task_index: TaskIndex | None = None
    tokens: Annotated[Tokens | None, Meta(description="tokens of all timesteps")] = None
    batch_id: BatchId | None = None
    node: NodeName | None = None
    profile: ProfileId | None = None
    cost: Annotated[float | None, Meta(description="cost of all timesteps; null when no price is known")] = None
    unscored: Unscored = False
    fallback: Fallback = None
    models: AnsweringModels = []
    currency: CostCurrency = None
    agentgym: Annotated[AgentGymScore | None, Meta(description="score and success by AgentGym's Evaluator")] = None


class BatchCompleted(msgspec.Struct, kw_only=True):
    """A batch ended."""

    batch_id: BatchId
    env: EnvName
    n_episodes: Annotated[int, Meta(description="episodes that ended")]
    mean_reward: MeanReward
    success_rate: Annotated[
        float | None, Meta(description="fraction of successful episodes, 0 to 1; null when no episode was scored")
    ] = None
    status: Annotated[
        Literal["completed", "cancelled", "interrupted"], Meta(description="`completed`: all episodes ended")
    ] = "completed"
    agent: AgentName | None = None
    model: ModelName = None
    node: NodeName | None = None
    battery_id: BatteryId = None
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
    """The last batch of a battery ended: of several environments or models, or of the parts of adaptive repeats.

    What extends it later is announced by its batches alone.
    """

    battery_id: Annotated[str, Meta(description="id of the battery, a ULID")]
    batches: Annotated[list[str], Meta(description="ids of its batches in the order in which they began")]
    environments: Annotated[list[str], Meta(description="names of its environments in the same order")]
    n_episodes: Annotated[int, Meta(description="episodes that ended")]
    mean_reward: MeanReward
    models: Annotated[list[str], Meta(description="models that answered, by name; empty for agents that use none")]
    node: NodeName
    n_cancelled: Annotated[
        int | None, Meta(description="batches that were cancelled or not begun; null in older events")
    ] = None


class FieldStatus(msgspec.Struct, kw_only=True):
    """A node or a foreground run started, stopped or changed its status."""

    node: NodeName
    config: ProfileId
    status: Annotated[str, Meta(description="`starting`, `running`, `idle`, `stopping`, `stopped`; others may differ")]
    role: Annotated[
        Literal["node", "run"] | None, Meta(description="`node`: a service; `run`: one run in the foreground")
    ] = None
    boot: Boot | None = None
    pid: Pid | None = None


DurableEvent: TypeAlias = EpisodeCompleted | BatchCompleted | BatteryCompleted | FieldStatus
DURABLE_TYPES: dict[str, type[DurableEvent]] = {
    subjects.EPISODE_COMPLETED: EpisodeCompleted,
    subjects.BATCH_COMPLETED: BatchCompleted,
    subjects.BATTERY_COMPLETED: BatteryCompleted,
    subjects.FIELD_STATUS: FieldStatus,
}
