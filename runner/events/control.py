"""The control subject: typed requests to a node and its replies."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.events.fields import AgentName, BatchId, BatteryId, Boot, EnvName, EpisodeId, ModelName, NodeStatus, Pid
from runner.events.live import EnvHealth, Host, ModelHealth

_Choice: TypeAlias = Annotated[str | None, Meta(description="null: what the node's profile says")]
_Limit: TypeAlias = Annotated[int | None, Meta(description="null: what the node's profile says")]


class StartArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Play batches, one per environment; asked again with the same ``batch_id`` it changes nothing.

    With one environment ``batch_id`` is its batch. With several it is the ``battery_id`` and each environment's batch
    gets an id derived from it.
    """

    batch_id: Annotated[str, Meta(description="a new ULID, made by who asks")]
    envs: Annotated[list[str], Meta(description="environments of the node's profile")]
    agent: _Choice = None
    model: _Choice = None
    repeat: Annotated[int, Meta(description="number of tasks")] = 1
    attempts: Annotated[int, Meta(description="how often each task is played")] = 1
    task_index: Annotated[int, Meta(description="the first task")] = 0
    seed: Annotated[int, Meta(description="feeds the agent's randomness")] = 0
    concurrency: _Limit = None
    max_rounds: _Limit = None
    max_duration_sec: Annotated[float | None, Meta(description="null: what the node's profile says")] = None
    resume: Annotated[bool, Meta(description="play what an interrupted batch has not finished")] = False


class TargetArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the operation is about: exactly one of the two."""

    batch_id: Annotated[str | None, Meta(description="a batch, or all of a battery")] = None
    episode_id: Annotated[str | None, Meta(description="an episode that is being played")] = None


class EpisodeArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which part of which episode file."""

    episode_id: EpisodeId
    offset: Annotated[int, Meta(description="bytes to leave out at the beginning")] = 0


class SubmitActionArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An action for an episode that a person plays."""

    episode_id: EpisodeId
    step: Annotated[int, Meta(description="the round it is for")]
    action: Annotated[str, Meta(description="the action's text")]


class ShutdownArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to stop the node."""

    drain: Annotated[bool, Meta(description="play what is queued first")] = False


class ServerArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose server: the one that ``server_cmd`` starts."""

    env: Annotated[str, Meta(description="an environment of the node's profile")]


class NoArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing to say."""


Op: TypeAlias = Literal[
    "start",
    "cancel",
    "pause",
    "resume",
    "step",
    "submit_action",
    "episode",
    "health",
    "list",
    "server_start",
    "server_stop",
    "shutdown",
]
Args: TypeAlias = StartArgs | TargetArgs | EpisodeArgs | SubmitActionArgs | ServerArgs | ShutdownArgs | NoArgs
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
    "server_start": ServerArgs,
    "server_stop": ServerArgs,
    "shutdown": ShutdownArgs,
}


class Request(msgspec.Struct, kw_only=True):
    """A request; ``args`` fit ``op`` (see ``ARGS``)."""

    id: Annotated[str, Meta(description="comes back in the reply")]
    op: Annotated[Op, Meta(description="what to do")]
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ControlError(msgspec.Struct, kw_only=True, frozen=True):
    """Why a request was not obeyed."""

    code: Annotated[str, Meta(description="for programs, see below")]
    message: Annotated[str, Meta(description="for people")]
    hint: Annotated[str, Meta(description="what to do about it")] = ""


ERRORS: Final[dict[str, str]] = {
    "bad_request": "it cannot be read, or its arguments do not fit the operation",
    "unknown_agent": "the node has no agent of that name",
    "unknown_model": "the node's profile has no model of that name",
    "no_model": "the agent asks a model, and no endpoint answers",
    "not_found": "there is no such batch, or no such episode is being played",
    "not_running": "the batch is not being played now",
    "no_control": "the node takes no requests on this bus",
    "stopping": "the node is about to stop",
    "not_human": "the episode is not played by a person",
    "refused": "the node cannot do it; the message says why",
    "internal": "the node failed; its log says more",
}
"""What ``ControlError.code`` may be."""


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to the request of the same ``id``."""

    id: Annotated[str, Meta(description="the request's")]
    ok: Annotated[bool, Meta(description="whether the request was obeyed")]
    result: Annotated[msgspec.Raw | msgspec.UnsetType, Meta(description="when it was, see the operation")] = (
        msgspec.UNSET
    )
    error: Annotated[ControlError | msgspec.UnsetType, Meta(description="when it was not")] = msgspec.UNSET


class BatchState(msgspec.Struct, kw_only=True):
    """A batch the node knows of."""

    batch_id: BatchId
    battery_id: BatteryId
    env: EnvName
    agent: AgentName
    model: ModelName
    status: Annotated[
        Literal["queued", "running", "paused", "completed", "cancelled", "interrupted"],
        Meta(description="`interrupted`: may be resumed"),
    ]
    n_done: Annotated[int, Meta(description="episodes that are over")]
    n_planned: Annotated[int, Meta(description="episodes it has in all")]


class EpisodeChunk(msgspec.Struct, kw_only=True):
    """Part of an episode file."""

    total: Annotated[int, Meta(description="bytes of the whole file")]
    sha256: Annotated[str, Meta(description="hex digest of the whole file")]
    data: Annotated[bytes, Meta(description="base64 of at most 256 KiB from the offset on")]


ServerStatus: TypeAlias = Literal["starting", "running", "stopped", "failed"]


class ServerInfo(msgspec.Struct, kw_only=True):
    """A server that the node starts or stops; that takes a while, and ``env.health`` tells how it went."""

    env: EnvName
    status: Annotated[ServerStatus, Meta(description="`failed`: it ended by itself, or never answered")]
    cause: Annotated[str | None, Meta(description="why it does not run, with its last words; null while it runs")]


HealthItem: TypeAlias = EnvHealth | ModelHealth | Host


class NodeHealth(msgspec.Struct, kw_only=True):
    """How the node is."""

    node: Annotated[str, Meta(description="its name")]
    boot: Boot
    pid: Pid
    profile: Annotated[str, Meta(description="id of its profile")]
    version: Annotated[str, Meta(description="of the software")]
    status: NodeStatus
    uptime_s: Annotated[float, Meta(description="seconds since it started")]
    data_dir: Annotated[str, Meta(description="its state directory")]
    egress: Annotated[str | None, Meta(description="the other broker, without credentials; null without one")]
    items: Annotated[list[HealthItem], Meta(description="the latest `env.health`, `model.health` and `host` items")] = (
        msgspec.field(default_factory=list)
    )


class NodeList(msgspec.Struct, kw_only=True):
    """Batches, newest first, and what may be started here."""

    batches: list[BatchState]
    envs: Annotated[list[str], Meta(description="environments of the profile")]
    agents: Annotated[list[str], Meta(description="installed agents")]
    models: Annotated[list[str], Meta(description="models of the profile")]


RESULTS: Final[dict[Op, Any]] = {
    "start": list[BatchState],
    "cancel": NoArgs,
    "pause": NoArgs,
    "resume": NoArgs,
    "step": NoArgs,
    "submit_action": NoArgs,
    "episode": EpisodeChunk,
    "health": NodeHealth,
    "list": NodeList,
    "server_start": ServerInfo,
    "server_stop": ServerInfo,
    "shutdown": NoArgs,
}
"""What ``Reply.result`` is."""
