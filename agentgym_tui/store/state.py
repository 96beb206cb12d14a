"""Episodes, nodes and batches as the console knows them, whatever they were read from: plain data, no widget, no bus.

Texts are kept as they came, hostile ones included; ``views`` makes them safe when it turns them into lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from runner.types import Action, Span, Tokens

Outcome: TypeAlias = str
"""``success``, ``failure``, ``truncated``, ``timeout``, ``cancelled``, ``error`` or ``interrupted``."""


@dataclass(slots=True)
class Step:
    """One round; ``warnings`` say what went otherwise than configured, ``left_out`` messages were not sent here."""

    index: int
    actor: str
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
    tokens_per_s: float | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    warnings: Sequence[str] = ()
    left_out: int = 0


@dataclass(slots=True)
class Episode:
    """An episode that runs or ran; ``outcome`` None while it runs.

    Attributes:
        streaming: text that a model has produced for the step that is not over.
        n_missing: items of it that never got here; its file has them.
        node_lost: it ran when its node was last heard of.
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
    task_index: int = 0
    seed: int | None = None
    attempt: int = 0
    agent: str = ""
    model: str | None = None
    profile: str = ""
    paused: bool = False
    outcome: Outcome | None = None
    success: bool = False
    reward: float = 0.0
    rounds: int = 0
    duration_s: float | None = None
    tokens: Tokens = field(default_factory=Tokens)
    cost: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    reset_observation: list[dict[str, Any]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    streaming: str = ""
    n_missing: int = 0
    node_lost: bool = False

    @property
    def running(self) -> bool:
        """Whether it is being played, or paused."""
        return self.outcome is None


@dataclass(slots=True)
class Environment:
    """An environment of a node's profile; ``status`` None until a health item arrived."""

    name: str
    tier: str = ""
    ram: str = ""
    status: str | None = None
    cause: str | None = None
    latency_s: float | None = None
    transport: str = ""
    open: int | None = None
    last_reward: float | None = None
    n_rated: int = 0
    n_success: int = 0
    n_running: int = 0
    baseline: bool = False
    """The rated episodes are of agents without a model, as no model has played it."""


@dataclass(slots=True)
class BatchRun:
    """A batch that is queued, running, paused, or over; ``ended_at`` where its end was told by a stream."""

    batch_id: str
    env: str = ""
    battery_id: str | None = None
    agent: str = ""
    model: str | None = None
    status: str = "running"
    n_done: int = 0
    n_planned: int = 0
    n_success: int = 0
    mean_reward: float | None = None
    eta_s: float | None = None
    ended_at: datetime | None = None


@dataclass(slots=True)
class NodeInfo:
    """A node that was heard of; times in seconds of the console's monotonic clock."""

    name: str
    boot: str = ""
    profile: str = ""
    status: str = ""
    version: str = ""
    pid: int | None = None
    data_dir: str = ""
    egress: str | None = None
    heard_at: float = 0.0
    lost: bool = False
    cpu: float | None = None
    ram: float | None = None
    gpus: list[str] = field(default_factory=list)
    dropped: int = 0


LinkStatus: TypeAlias = Literal["none", "starting", "connecting", "connected", "stalled", "disconnected", "failed"]


@dataclass(slots=True)
class Link:
    """The way to the bus; ``cause`` says why it is not there and what to do."""

    status: LinkStatus = "none"
    cause: str = ""
    address: str = ""


READING: Final = Link("none", "reading files")
"""Files that were named are being read."""
