"""The control subject: typed requests to a node and its replies."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class StartArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Play batches, one per environment; idempotent by ``batch_id``. None: what the node's profile says.

    With one environment ``batch_id`` is its batch. With several it is the ``battery_id`` and each environment's batch
    gets an id derived from it. ``resume`` plays what an interrupted batch has not finished.
    """

    batch_id: str
    envs: list[str]
    agent: str | None = None
    model: str | None = None
    repeat: int = 1
    attempts: int = 1
    task_index: int = 0
    seed: int = 0
    concurrency: int | None = None
    max_rounds: int | None = None
    max_duration_sec: float | None = None
    resume: bool = False


class TargetArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ``cancel``, ``pause``, ``resume`` and ``step`` are about: exactly one of the two."""

    batch_id: str | None = None
    episode_id: str | None = None


class EpisodeArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which part of which episode file; ``offset`` in bytes."""

    episode_id: str
    offset: int = 0


class SubmitActionArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An action for an episode that a person plays."""

    episode_id: str
    step: int
    action: str


class ShutdownArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``drain``: play what is queued first."""

    drain: bool = False


class NoArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """For operations without arguments."""


Op: TypeAlias = Literal[
    "start", "cancel", "pause", "resume", "step", "submit_action", "episode", "health", "list", "shutdown"
]
Args: TypeAlias = StartArgs | TargetArgs | EpisodeArgs | SubmitActionArgs | ShutdownArgs | NoArgs
ARGS: dict[Op, type[Args]] = {
    "start": StartArgs,
    "cancel": TargetArgs,
    "pause": TargetArgs,
    "resume": TargetArgs,
    "step": TargetArgs,
    "submit_action": SubmitActionArgs,
    "episode": EpisodeArgs,
    "health": NoArgs,
    "list": NoArgs,
    "shutdown": ShutdownArgs,
}


class Request(msgspec.Struct, kw_only=True):
    """A request; ``args`` fit ``op`` (see ``ARGS``)."""

    id: str
    op: Op
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ControlError(msgspec.Struct, kw_only=True, frozen=True):
    """Why a request was not obeyed: a code for programs, a message and a hint for people."""

    code: str
    message: str
    hint: str = ""


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to the request of the same ``id``: ``result`` when ``ok``, else ``error``."""

    id: str
    ok: bool
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ControlError | msgspec.UnsetType = msgspec.UNSET


class BatchState(msgspec.Struct, kw_only=True):
    """A batch the node knows of."""

    batch_id: str
    battery_id: str | None
    env: str
    agent: str
    model: str | None
    status: Literal["queued", "running", "paused", "completed", "cancelled", "interrupted"]
    n_done: int
    n_planned: int


class EpisodeChunk(msgspec.Struct, kw_only=True):
    """Part of an episode file: ``data`` is base64 of at most 256 KiB, ``sha256`` the hex digest of the whole file."""

    total: int
    sha256: str
    data: bytes


class NodeHealth(msgspec.Struct, kw_only=True):
    """What ``health`` answers."""

    node: str
    boot: str
    pid: int
    profile: str
    version: str
    status: Literal["starting", "running", "idle", "stopping", "stopped"]
    uptime_s: float
    data_dir: str
    egress: str | None


class NodeList(msgspec.Struct, kw_only=True):
    """What ``list`` answers: newest first, and what may be started here."""

    batches: list[BatchState]
    envs: list[str]
    agents: list[str]
    models: list[str]
