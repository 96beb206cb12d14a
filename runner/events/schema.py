"""What is said on the bus, as closed unions: durable events by type, live items by ``kind``, control by ``op``.

Times named ``…_at`` or ``at`` are RFC 3339 in UTC, ``…_s`` are seconds. Fields may be added, receivers ignore those
they do not know; anything else is a new version of the subject.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from runner.events import subjects
from runner.types import Action, Mode, Outcome, Span, Tokens

NodeStatus: TypeAlias = Literal["starting", "running", "idle", "stopping", "stopped"]
HealthStatus: TypeAlias = Literal["up", "slow", "wrong", "down", "embedded", "unknown"]


class EpisodeCompleted(msgspec.Struct, kw_only=True):
    """An episode is over and stored. ``score`` and ``duration_sec`` repeat ``reward`` and ``duration_s`` for others."""

    episode_id: str
    env: str
    reward: float
    rounds: int
    duration_s: float
    success: bool
    score: float
    duration_sec: float
    outcome: Outcome
    agent: str
    model: str | None
    task_index: int
    tokens: Tokens
    batch_id: str
    node: str
    profile: str


class BatchCompleted(msgspec.Struct, kw_only=True):
    """A batch is over; ``mean_reward`` and ``success_rate`` are None when no episode of it counts."""

    batch_id: str
    env: str
    n_episodes: int
    mean_reward: float | None
    success_rate: float | None
    status: Literal["completed", "cancelled", "interrupted"]
    agent: str
    model: str | None
    node: str
    battery_id: str | None


class FieldStatus(msgspec.Struct, kw_only=True):
    """A node or a foreground run started, stopped or changed what it does; ``config`` is the profile's id."""

    node: str
    config: str
    status: NodeStatus
    role: Literal["node", "run"]
    boot: str
    pid: int


class ForeignEpisode(msgspec.Struct, kw_only=True):
    """An episode as other field runners announce it: without ids."""

    env: str
    success: bool
    score: float
    rounds: int
    duration_sec: float
    model: str | None = None


DurableEvent: TypeAlias = EpisodeCompleted | BatchCompleted | FieldStatus
DURABLE_TYPES: dict[str, type[DurableEvent]] = {
    subjects.EPISODE_COMPLETED: EpisodeCompleted,
    subjects.BATCH_COMPLETED: BatchCompleted,
    subjects.FIELD_STATUS: FieldStatus,
}


class _Item(msgspec.Struct, kw_only=True, tag_field="kind"):
    at: datetime


class _EpisodeItem(_Item, kw_only=True):
    episode_id: str
    seq: int


class EpisodeStarted(_EpisodeItem, kw_only=True, tag="episode.started"):
    """An episode is about to reset its environment; ``seq`` counts its items from 0."""

    batch_id: str
    battery_id: str | None
    env: str
    mode: Mode
    transport: str
    data_label: str
    task_index: int
    seed: int | None
    attempt: int
    agent: str
    model: str | None
    profile: str


class EpisodePaused(_EpisodeItem, kw_only=True, tag="episode.paused"):
    """An episode waits at a step boundary."""


class EpisodeResumed(_EpisodeItem, kw_only=True, tag="episode.resumed"):
    """A paused episode goes on."""


class EpisodeEnded(_EpisodeItem, kw_only=True, tag="episode.ended"):
    """An episode is over; ``error`` is its type and message."""

    outcome: Outcome
    success: bool
    reward: float
    rounds: int
    duration_s: float
    error: dict[str, str] | None = None


class Timestep(_EpisodeItem, kw_only=True, tag="timestep"):
    """A round of an episode, without tool schemas.

    A message whose text is longer than ``MAX_TEXT`` bytes of UTF-8 is cut and carries ``full_length``, its characters.
    The first timestep also brings ``reset_observation``.
    """

    index: int
    actor: Literal["agent", "human"]
    chats: list[list[dict[str, Any]]]
    action: Action
    valid: bool
    observation: list[dict[str, Any]]
    reward: float
    done: bool
    model_s: float
    env_s: float
    endpoint: str | None = None
    model: str | None = None
    ttft_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    reset_observation: list[dict[str, Any]] | None = None


MAX_TEXT = 16 * 1024
"""Bytes of one text in a live timestep."""


class TokenText(_EpisodeItem, kw_only=True, tag="token"):
    """Text that a model has produced for a step so far not announced."""

    step: int
    text: str


class SpanClosed(_EpisodeItem, kw_only=True, tag="span"):
    """A span of an episode's trace is over."""

    span: Span


class BatchProgress(_Item, kw_only=True, tag="batch.progress"):
    """How far a batch is; ``eta_s`` is None until one episode has ended."""

    batch_id: str
    seq: int
    n_done: int
    n_planned: int
    n_success: int
    mean_reward: float | None
    eta_s: float | None


class EnvHealth(_Item, kw_only=True, tag="env.health"):
    """Whether an environment can be played; ``open`` counts its open instances where that is known."""

    env: str
    status: HealthStatus
    latency_s: float | None
    transport: str
    open: int | None
    cause: str | None


class ModelHealth(_Item, kw_only=True, tag="model.health"):
    """Whether a model endpoint answers."""

    endpoint: str
    status: HealthStatus
    cause: str | None


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU: load in percent, memory in bytes."""

    name: str
    util: float
    mem_used: int
    mem_total: int


class Host(_Item, kw_only=True, tag="host"):
    """Load of the machine: ``cpu`` and ``ram`` in percent, ``gpu`` None where it cannot be read."""

    cpu: float
    ram: float
    gpu: list[Gpu] | None


class Heartbeat(_Item, kw_only=True, tag="heartbeat"):
    """A node lives; sent every 2 s, missed for 5 s it counts as lost."""


EpisodeItem: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | Timestep | TokenText | SpanClosed
)
LiveItem: TypeAlias = EpisodeItem | BatchProgress | EnvHealth | ModelHealth | Host | Heartbeat


class LiveBatch(msgspec.Struct, kw_only=True):
    """One message of a live subject; ``dropped`` counts all items of this boot that were never sent."""

    node: str
    boot: str
    dropped: int
    items: list[LiveItem]
