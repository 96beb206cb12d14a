"""Events that an episode or batch emits to its observers: a closed union, tagged by the field ``kind``.

Events that are live items as they are have descriptions, from which ``docs/data/events.md`` is generated.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from runner.types.cells import PackedCells
from runner.types.data import (
    Chat,
    Mode,
    Outcome,
    StreamDelta,
    TimeStep,
    Tokens,
    Trajectory,
    WorkerCounts,
    WorkerInfo,
    WorkerStatus,
)
from runner.types.fields import (
    At,
    BatchId,
    EpisodeId,
    EpisodeSeq,
    Interruption,
    MeanReward,
    RatedEpisodes,
    WaitingFor,
    WaitingSeconds,
)


class EpisodeHeader(msgspec.Struct, kw_only=True):
    """What is known of an episode before its reset; the first line of its journal and the first fields of its file."""

    schema: int = 1
    episode_id: str
    batch_id: str
    battery_id: str | None = None
    node: str = "local"
    boot: str = ""
    profile: str = ""
    env: str
    transport: str = "embedded"
    data_label: str = ""
    mode: Mode = "strict"
    task_index: int = 0
    seed: int | None = None
    attempt: int = 0
    agent: str = ""
    model: str | None = None
    started_at: datetime
    parent: dict[str, str | int] | None = None
    versions: dict[str, str] = {}
    limits: str = ""
    n_planned: int | None = None
    worker: WorkerInfo | None = None
    currency: str | None = None


class ItemBase(msgspec.Struct, kw_only=True, tag_field="kind", gc=False):
    """An event or a live item."""

    at: At


class EpisodeItemBase(ItemBase, kw_only=True):
    """An event or a live item of an episode."""

    episode_id: EpisodeId
    seq: EpisodeSeq


class EpisodeStarted(EpisodeItemBase, kw_only=True, tag="episode.started"):
    """An episode is about to reset its environment."""

    header: EpisodeHeader


class EpisodePaused(EpisodeItemBase, kw_only=True, tag="episode.paused"):
    """An episode was paused between two timesteps."""


class EpisodeResumed(EpisodeItemBase, kw_only=True, tag="episode.resumed"):
    """A paused episode was resumed."""


class TimestepPlayed(EpisodeItemBase, kw_only=True, tag="timestep"):
    """A step has ended; the event of the first step also has the observation and the picture of the reset."""

    step: TimeStep
    reset_observation: Chat | None = None
    reset_world: PackedCells | None = None


class TokensStreamed(EpisodeItemBase, kw_only=True, tag="token"):
    """The streamed answer for the unfinished step ``step`` has an update."""

    step: int
    delta: StreamDelta


class EpisodeEnded(EpisodeItemBase, kw_only=True, tag="episode.ended"):
    """An episode has ended and is cleaned up; its trajectory is final."""

    trajectory: Trajectory


class BatchProgress(ItemBase, kw_only=True, tag="batch.progress"):
    """Progress of a batch."""

    batch_id: BatchId
    seq: Annotated[int, Meta(description="number of the item within its batch, from 0")]
    n_done: Annotated[int, Meta(description="finished episodes")]
    n_planned: Annotated[int, Meta(description="episodes in total")]
    n_success: Annotated[int, Meta(description="successful episodes")]
    mean_reward: MeanReward
    eta_s: Annotated[float | None, Meta(description="estimated seconds left; null until one episode has ended")]
    tokens: Annotated[Tokens | None, Meta(description="tokens of the finished episodes")] = None
    cost: Annotated[float | None, Meta(description="cost of the finished episodes; null when no price is known")] = None
    n_rated: RatedEpisodes = None
    errors: Annotated[int, Meta(description="episodes that ended with an error, which are not scored")] = 0
    waiting_for: WaitingFor = None
    waiting_s: WaitingSeconds = None
    interrupted: Annotated[
        bool, Meta(description="whether the batch ends, or has ended, with unfinished episodes, which can be resumed")
    ] = False
    interruption: Interruption = None
    workers: Annotated[
        WorkerCounts | None, Meta(description="worker processes; null when the batch's own process plays the episodes")
    ] = None
    paused: Annotated[bool | None, Meta(description="whether its episodes are paused; null in older items")] = None


class WorkerState(ItemBase, kw_only=True, tag="worker"):
    """A worker process of a batch changed its state."""

    batch_id: BatchId
    seq: Annotated[int, Meta(description="number of the item among the `worker` items of its batch, from 0")]
    id: Annotated[str, Meta(description="id of the worker")]
    host: Annotated[str, Meta(description="name of its machine")]
    pid: Annotated[int | None, Meta(description="process id there; null until it is known")]
    state: Annotated[
        WorkerStatus, Meta(description="`lost`: its process ended or stopped answering before the end of the batch")
    ]


EpisodeEvent: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | TokensStreamed | TimestepPlayed | EpisodeEnded
)

IMPORTED: Final = "import"
"""Transport of an imported episode."""
UNKNOWN_OUTCOME: Final = "unknown"
"""Stands for the outcome of an ended episode whose outcome is not known; the episode is in no success rate."""


def is_result_unknown(transport: str, outcome: str | None, *, unscored: bool) -> bool:
    """Return whether an imported episode has no outcome, in whose place it is interrupted."""
    return transport == IMPORTED and outcome == Outcome.INTERRUPTED and unscored
