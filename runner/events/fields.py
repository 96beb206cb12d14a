"""Fields that several messages share, each with its meaning; ``docs/events.md`` is written from these."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from runner.types import Outcome

At: TypeAlias = Annotated[datetime, Meta(tz=True, description="when it happened, by the sender's clock")]
EpisodeId: TypeAlias = Annotated[str, Meta(description="id of the episode, a ULID")]
BatchId: TypeAlias = Annotated[str, Meta(description="id of the batch, a ULID")]
BatteryId: TypeAlias = Annotated[
    str | None, Meta(description="id of the battery, a ULID; null for a batch that was started alone")
]
Boot: TypeAlias = Annotated[str, Meta(description="id of the process, a ULID; new with each start")]
NodeName: TypeAlias = Annotated[str, Meta(description="name of the machine that played")]
EnvName: TypeAlias = Annotated[str, Meta(description="name of the environment")]
AgentName: TypeAlias = Annotated[str, Meta(description="name of the agent")]
ModelName: TypeAlias = Annotated[str | None, Meta(description="the model; null for agents without one")]
ProfileId: TypeAlias = Annotated[str, Meta(description="id of the profile")]
Pid: TypeAlias = Annotated[int, Meta(description="id of the process in its operating system")]
TaskIndex: TypeAlias = Annotated[int, Meta(description="the task, modulo the environment's number of tasks")]
Reward: TypeAlias = Annotated[float, Meta(description="sum of the step rewards")]
Success: TypeAlias = Annotated[bool, Meta(description="the environment's own verdict")]
Rounds: TypeAlias = Annotated[int, Meta(description="number of timesteps")]
Seconds: TypeAlias = Annotated[float, Meta(description="seconds from start to end, pauses included")]
EndedHow: TypeAlias = Annotated[Outcome, Meta(description="how the episode ended")]
MeanReward: TypeAlias = Annotated[float | None, Meta(description="mean reward; null when no episode counts")]
NodeStatus: TypeAlias = Annotated[
    Literal["starting", "running", "idle", "stopping", "stopped"], Meta(description="what the process does")
]
HealthStatus: TypeAlias = Annotated[
    Literal["up", "slow", "wrong", "down", "embedded", "unknown"],
    Meta(description="`wrong`: it answers, but not as what it should be; `embedded`: played without a server"),
]
Cause: TypeAlias = Annotated[str | None, Meta(description="why it is not well")]
EpisodeSeq: TypeAlias = Annotated[int, Meta(description="number of the item in its episode, from 0 without gaps")]
