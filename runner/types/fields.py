"""Field types shared by several messages; the generated ``docs/data/events.md`` has their descriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.types.data import Outcome

FOREIGN: Final = Meta(extra_json_schema={"x-foreign": True})
"""Marks fields whose texts quote models, environments, servers or other programs, or that such texts are part of."""

At: TypeAlias = Annotated[datetime, Meta(tz=True, description="when the event happened, by the sender's clock")]
EpisodeId: TypeAlias = Annotated[str, Meta(description="id of the episode, a ULID")]
BatchId: TypeAlias = Annotated[str, Meta(description="id of the batch, a ULID")]
BatteryId: TypeAlias = Annotated[
    str | None,
    Meta(description="id of the battery, or of the batch that this one extends, a ULID; null for a single batch"),
]
Boot: TypeAlias = Annotated[str, Meta(description="id of the process, a ULID; new at each start")]
NodeName: TypeAlias = Annotated[str, Meta(description="name of the node")]
EnvName: TypeAlias = Annotated[str, Meta(description="name of the environment")]
AgentName: TypeAlias = Annotated[str, Meta(description="name of the agent")]
ModelName: TypeAlias = Annotated[str | None, Meta(description="name of the model; null for agents that use none")]
AnsweringModels: TypeAlias = Annotated[
    list[str],
    Meta(
        description="models that answered, `model` first; `model` alone if none did; empty for agents that use none, "
        "and in older events"
    ),
]
ProfileId: TypeAlias = Annotated[str, Meta(description="id of the profile")]
Pid: TypeAlias = Annotated[int, Meta(description="process id of the operating system")]
TaskIndex: TypeAlias = Annotated[int, Meta(description="index of the task, modulo the environment's number of tasks")]
Reward: TypeAlias = Annotated[float, Meta(description="sum of the step rewards")]
Success: TypeAlias = Annotated[bool, Meta(description="whether the task was solved, by the environment's rule")]
Unscored: TypeAlias = Annotated[
    bool, Meta(description="whether the evaluation leaves the episode unscored, because idle play can succeed")
]
Fallback: TypeAlias = Annotated[
    str | None,
    Meta(description="model endpoints that answered in place of a failed one, joined by commas; null if none did"),
]
CostCurrency: TypeAlias = Annotated[
    str | None, Meta(description="currency of the cost; null when no price is known, and in older events")
]
Rounds: TypeAlias = Annotated[int, Meta(description="number of timesteps")]
Seconds: TypeAlias = Annotated[float, Meta(description="seconds from start to end, pauses included")]
EpisodeOutcome: TypeAlias = Annotated[Outcome, Meta(description="how the episode ended")]
MeanReward: TypeAlias = Annotated[float | None, Meta(description="mean reward; null when no episode was scored")]
RatedEpisodes: TypeAlias = Annotated[
    int | None, Meta(description="episodes that count for the success rate and the mean reward; null in older events")
]
NodeStatus: TypeAlias = Annotated[
    Literal["starting", "running", "idle", "stopping", "stopped"], Meta(description="status of the process")
]
HealthStatus: TypeAlias = Annotated[
    Literal["up", "slow", "wrong", "down", "embedded", "unknown"],
    Meta(description="`wrong`: responds, but is not the expected server; `embedded`: runs without a server"),
]
Cause: TypeAlias = Annotated[
    str | None, Meta(description="what is wrong; null when there is nothing to report"), FOREIGN
]
EpisodeSeq: TypeAlias = Annotated[int, Meta(description="number of the item within its episode, from 0 without gaps")]
StorageProblem: TypeAlias = Annotated[
    str | None,
    Meta(description="why nothing can be stored, and how many batches wait for room; null while there is room"),
    FOREIGN,
]
Indexing: TypeAlias = Annotated[
    str | None,
    Meta(description="how many stored episodes a starting node has read, as `indexing n of N`; null once it plays"),
    FOREIGN,
]
WaitingFor: TypeAlias = Annotated[
    str | None,
    Meta(description="address and problem of the server or disk that the batch waits for; null while the batch plays"),
    FOREIGN,
]
Interruption: TypeAlias = Annotated[
    str | None,
    Meta(description="why the batch was interrupted; null if it was not, or on request, or by the end of its node"),
    FOREIGN,
]
WaitingSeconds: TypeAlias = Annotated[
    float | None,
    Meta(description="seconds until the batch is interrupted because its server is gone; null while the batch plays"),
]
_Cost: TypeAlias = Annotated[float, Meta(gt=0, le=1e15)]
_Limit: TypeAlias = Annotated[int, Meta(ge=1, le=2**62)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a batch may use up each time it is started or resumed, before it is interrupted; null: no limit."""

    cost: Annotated[_Cost | None, Meta(description="in the currency of the profile's prices, above 0")] = None
    tokens: Annotated[_Limit | None, Meta(description="prompt and completion tokens, at least 1")] = None
    errors_in_a_row: Annotated[_Limit | None, Meta(description="consecutive episodes with an error, at least 1")] = None
