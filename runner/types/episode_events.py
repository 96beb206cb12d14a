"""Events that an episode or batch emits to its observers: a closed union, tagged by the field ``kind``."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from runner.types.data import (
    Chat,
    Mode,
    Span,
    StreamDelta,
    TimeStep,
    Tokens,
    Trajectory,
    WorkerCounts,
    WorkerInfo,
    WorkerStatus,
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
    n_planned: int | None = None
    worker: WorkerInfo | None = None


class _EpisodeEventBase(msgspec.Struct, kw_only=True, tag_field="kind"):
    at: datetime
    episode_id: str
    seq: int


class EpisodeStarted(_EpisodeEventBase, kw_only=True, tag="episode.started"):
    """An episode is about to reset its environment."""

    header: EpisodeHeader


class EpisodePaused(_EpisodeEventBase, kw_only=True, tag="episode.paused"):
    """An episode is paused between two steps."""


class EpisodeResumed(_EpisodeEventBase, kw_only=True, tag="episode.resumed"):
    """A paused episode continues."""


class TimestepPlayed(_EpisodeEventBase, kw_only=True, tag="timestep"):
    """A step has ended; the event of the first step also has the observation that the reset returned."""

    step: TimeStep
    reset_observation: Chat | None = None


class TokensStreamed(_EpisodeEventBase, kw_only=True, tag="token"):
    """The streamed answer for the unfinished step ``step`` has an update."""

    step: int
    delta: StreamDelta


class SpansClosed(_EpisodeEventBase, kw_only=True, tag="span"):
    """Spans of the trace have closed; they are numbered consecutively, and the first of them has the number ``seq``."""

    spans: list[Span]


class EpisodeEnded(_EpisodeEventBase, kw_only=True, tag="episode.ended"):
    """An episode has ended and is cleaned up; its trajectory is final."""

    trajectory: Trajectory


class BatchProgress(msgspec.Struct, kw_only=True, tag_field="kind", tag="batch.progress"):
    """Progress of a batch.

    Attributes:
        n_rated: number of ended episodes with an outcome outside ``UNRATED`` that are not unscored.
        eta_s: estimated seconds until the end; None before the first episode has ended.
        errors: number of episodes that ended with an error.
        tokens: token counts, summed over all ended episodes.
        cost: cost, summed over all ended episodes; None if no answer has a price.
        waiting_for: the server that the batch waits for and its problem; None while the batch plays.
        waiting_s: seconds left until the batch is interrupted because its server is gone; None while the batch plays.
        interrupted: whether the batch ends, or has ended, with unfinished episodes that can be resumed.
        interruption: why the batch was interrupted; None if it was not, or on request.
        workers: numbers of worker processes; None if the episodes run in the process of the batch.
    """

    at: datetime
    batch_id: str
    seq: int
    n_done: int
    n_planned: int
    n_success: int
    mean_reward: float | None
    eta_s: float | None
    tokens: Tokens | None = None
    cost: float | None = None
    n_rated: int
    errors: int = 0
    waiting_for: str | None = None
    waiting_s: float | None = None
    interrupted: bool = False
    interruption: str | None = None
    workers: WorkerCounts | None = None


class WorkerState(msgspec.Struct, kw_only=True, tag_field="kind", tag="worker"):
    """A worker process of a batch has changed its state.

    Attributes:
        seq: number of the item among the items of workers of its batch.
        id: id of the worker, as in ``WorkerInfo``.
        pid: its process id on ``host``; None if it is not known yet.
        state: ``lost``, the last state, means that its process ended, or does not answer, before the batch closed it.
    """

    at: datetime
    batch_id: str
    seq: int
    id: str
    host: str
    pid: int | None
    state: WorkerStatus


EpisodeEvent: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | TokensStreamed | TimestepPlayed | SpansClosed | EpisodeEnded
)
Item: TypeAlias = EpisodeEvent | BatchProgress | WorkerState
