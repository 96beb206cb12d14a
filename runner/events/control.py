"""Control protocol of a node: request arguments per operation, replies, error codes and result types."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.events.live import EnvHealth, Host, ModelHealth
from runner.types import Budget, Limits, Workers
from runner.types.fields import (
    FOREIGN,
    AgentName,
    BatchId,
    BatteryId,
    Boot,
    EnvName,
    EpisodeId,
    Indexing,
    Interruption,
    ModelName,
    NodeStatus,
    Pid,
    StorageProblem,
    TaskIndex,
    WaitingFor,
    WaitingSeconds,
)
from runner.types.machine import Machine
from runner.types.notes import MAX_STEP

Op: TypeAlias = Literal[
    "start",
    "cancel",
    "pause",
    "resume",
    "step",
    "move",
    "set",
    "extend",
    "replay",
    "episode",
    "annotate",
    "health",
    "list",
    "results",
    "episodes",
    "logs",
    "server_start",
    "server_stop",
    "send_history",
    "shutdown",
]
ServerStatus: TypeAlias = Literal["starting", "running", "stopped", "failed"]
HealthItem: TypeAlias = EnvHealth | ModelHealth | Host | Machine
_Choice: TypeAlias = Annotated[str | None, Meta(description="null: use the profile's value")]
_Step: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_STEP)]
_Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
_Tags: TypeAlias = Annotated[list[str], Meta(max_length=50)]
ERRORS: Final[dict[str, str]] = {
    "bad_request": "the request cannot be decoded, or its arguments do not match the operation",
    "unknown_agent": "the node has no agent with this name",
    "unknown_model": "the node's profile has no model with this name",
    "no_model": "the agent needs a model, and no endpoint responds",
    "not_found": "no batch, episode or log has this id or name, or the episode is not running",
    "not_running": "the batch is not running",
    "not_queued": "the batch does not wait in the queue",
    "nothing_left": "no episode of the batch ended with an error",
    "no_egress": "the node has no external broker",
    "no_control": "the node accepts no control requests on this bus",
    "stopping": "the node is stopping",
    "indexing": "the node has started and still reads its episodes, which this operation needs",
    "busy": "too many requests of this sender are waiting",
    "queue_full": "too many batches wait in the node's queue",
    "refused": "the node rejected the request, for a reason that it gives",
    "internal": "the node failed; see its log",
}
"""Values of ``ControlError.code`` and their meanings."""


class StartArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Start one batch per environment and model; repeating a request with the same ``batch_id`` has no effect.

    With one batch, ``batch_id`` is its id. With several, or with ``until_width``, it is the ``battery_id``, and the id
    of each batch is derived from it.
    """

    batch_id: Annotated[str, Meta(description="a new ULID, chosen by the client")]
    envs: Annotated[list[str], Meta(description="environments of the node's profile")]
    agent: _Choice = None
    model: _Choice = None
    models: Annotated[
        list[str],
        Meta(
            description="several models in place of `model`: each plays the same tasks, and all batches of one model "
            "come before those of the next one",
            max_length=200,
        ),
    ] = msgspec.field(default_factory=list)
    repeat: Annotated[int, Meta(description="number of tasks; at most 1000000 episodes in one batch")] = 1
    attempts: Annotated[int, Meta(description="number of episodes per task")] = 1
    task_index: Annotated[int, Meta(description="the first task, from 0 to 2^62 - 1")] = 0
    tasks: Annotated[
        dict[str, list[int]],
        Meta(
            description="the tasks by environment, in their order, in place of `repeat` and `task_index`; {}: those of "
            "`repeat` and `task_index`"
        ),
    ] = msgspec.field(default_factory=dict)
    seed: Annotated[int, Meta(description="seed of the agent's random numbers, below 2^62 in size")] = 0
    concurrency: Annotated[int | None, Meta(description="from 1 to 256; null: use the profile's value")] = None
    workers: Annotated[
        Workers | None,
        Meta(
            description="from 0 to 256 processes that play the episodes on the node's machine (0: the node's own), or "
            "`ray`; null: use the profile's value"
        ),
    ] = None
    max_rounds: Annotated[
        int | None,
        Meta(description="from 1 to the profile's value, or with `allow_longer` to 1000000; null: the profile's value"),
    ] = None
    max_duration_sec: Annotated[
        float | None,
        Meta(
            description="above 0 and at most the profile's value, or with `allow_longer` 1000000000; null: the "
            "profile's value"
        ),
    ] = None
    allow_longer: Annotated[
        bool, Meta(description="whether `max_rounds` and `max_duration_sec` may exceed the profile's hard limits")
    ] = False
    budget: Annotated[
        Budget | None,
        Meta(
            description="interrupts a batch after as much `cost`, as many `tokens`, or as many `errors_in_a_row` (each "
            "optional), since its start or resume; each batch of a battery has its own; null: no limit"
        ),
    ] = None
    until_width: Annotated[
        float | None,
        Meta(
            description="adaptive repeats: play batches of 32, 32, 64, 128, … tasks, at most `repeat` tasks with one "
            "attempt, until the 95% interval of the success rate is at most this wide (above 0, at most 1); null: all"
        ),
    ] = None
    resume: Annotated[
        bool,
        Meta(
            description="run the unfinished episodes of an interrupted batch, and those with the error `resources`; "
            "`concurrency`, `workers` and `budget` may then differ from those of the batch"
        ),
    ] = False


class TargetArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Target of the operation; exactly one of the fields is set."""

    batch_id: Annotated[
        str | None,
        Meta(description="a batch, or all batches of a battery; `resume` queues those again that were interrupted"),
    ] = None
    episode_id: Annotated[str | None, Meta(description="a running episode")] = None
    everything: Annotated[
        bool, Meta(description="all that runs or waits, for `cancel` and `pause`; all that is paused, for `resume`")
    ] = False


class ListArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Batches of this node, and what a `start` may name."""

    batch_id: Annotated[
        str | None, Meta(description="only this batch, or those of this battery, whatever their number; null: all")
    ] = None


class MoveArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Move a batch that waits, or the waiting batches of a battery, to another place in the queue."""

    batch_id: Annotated[str, Meta(description="a batch, or all batches of a battery")]
    to: Annotated[
        int, Meta(ge=0, le=1_000_000, description="number of other waiting batches that run before; 0: it is the next")
    ]


class SetArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Change how a batch that has not ended is played; null: as before. Repeating a request has no effect.

    What plays goes on with the new values once its running episodes have ended, and only its other episodes have the
    new limits.
    """

    batch_id: Annotated[str, Meta(description="a batch, or all batches of a battery that have not ended")]
    concurrency: Annotated[int | None, Meta(description="from 1 to 256")] = None
    workers: Annotated[Workers | None, Meta(description="from 0 to 256 processes, or `ray`")] = None
    max_rounds: Annotated[int | None, Meta(description="from 1 to the profile's value")] = None
    max_duration_sec: Annotated[float | None, Meta(description="above 0, at most the profile's value")] = None
    budget: Annotated[
        Budget | None, Meta(description="the fields to change; what was used since the start or resume counts")
    ] = None
    requests_per_minute: Annotated[
        _Positive | None, Meta(description="to each model endpoint; a lower limit of the profile holds, too")
    ] = None
    concurrent_requests: Annotated[_Positive | None, Meta(description="to each model endpoint, likewise")] = None
    dry_run: Annotated[bool, Meta(description="only reply with what would be so afterwards")] = False


class ExtendArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Plan more tasks or attempts of a batch; numbers of tasks and seeds go on. Repeating a request has no effect.

    What has ended is continued by a new batch, which `extends` it; their results are one row. It also plays what a
    cancelled batch has left.
    """

    batch_id: Annotated[str, Meta(description="a batch, or all batches of a battery")]
    repeat: Annotated[_Positive | None, Meta(description="number of all tasks afterwards; null: as now")] = None
    attempts: Annotated[_Positive | None, Meta(description="number of all attempts at a task; null: as now")] = None
    dry_run: Annotated[bool, Meta(description="only reply with what would be so afterwards")] = False


class ResultsArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sum up the stored episodes of a batch, or of the batches of a battery, and group those that failed."""

    batch_id: Annotated[str, Meta(description="a batch, or all batches of a battery")]


class EpisodesArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """List stored episodes by a query as of `agentgym-runner episodes`, the newest first."""

    query: Annotated[str, Meta(max_length=2_000, description="an empty query selects every episode")] = ""
    limit: Annotated[int, Meta(ge=1, le=200, description="maximum number of episodes")] = 50
    before: Annotated[str | None, Meta(description="only episodes with smaller ids, for the next page")] = None


class LogsArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Return the last lines of a log of the node, and the names of its logs."""

    log: Annotated[str | None, Meta(description="one of the names; null: the first")] = None
    n_lines: Annotated[int, Meta(ge=1, le=500)] = 50


class ReplayArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Play a batch, or the batches of a battery, again in new batches; the episodes of the old ones stay.

    Repeating a request with the same ``new_batch_id`` has no effect.
    """

    batch_id: Annotated[str, Meta(description="a batch, or all batches of a battery")]
    only: Annotated[
        Literal["errors", "all"],
        Meta(description="`errors`: only the episodes that ended with an error, at most 3000 of each batch"),
    ] = "all"
    new_batch_id: Annotated[
        str | None,
        Meta(description="a new ULID for the new batch, or for the battery of several; null: the node chooses it"),
    ] = None


class EpisodeArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Episode file to read, and the offset of the requested chunk."""

    episode_id: EpisodeId
    offset: Annotated[  # at most what the numbers of every client hold exactly
        int, Meta(ge=0, le=2**53, description="offset in bytes from the start of the file")
    ] = 0


class AnnotateArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Add tags and a note to an episode or a step, and remove others; without a change, only return what it has.

    Several clients may change the same episode at the same time. Repeating a request has no effect.
    """

    episode_id: EpisodeId
    step: Annotated[_Step | None, Meta(description="index of the timestep; null: the whole episode")] = None
    add: Annotated[_Tags, Meta(description="tags to add: 1 to 64 printable characters without spaces and commas")] = (
        msgspec.field(default_factory=list)
    )
    remove: Annotated[_Tags, Meta(description="tags to remove")] = msgspec.field(default_factory=list)
    note: Annotated[str | None, Meta(description="note to add: 1 to 4000 characters")] = None
    note_id: Annotated[
        str | None,
        Meta(description="a new ULID for the note, chosen by the client; without `note`, the note to remove"),
    ] = None
    author: Annotated[str | None, Meta(description="name of the author: 1 to 64 characters")] = None


class ShutdownArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options for stopping the node."""

    drain: Annotated[bool, Meta(description="run all queued batches first")] = False


class ServerArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Environment whose ``server_cmd`` server is started or stopped."""

    env: Annotated[str, Meta(description="an environment of the node's profile")]


class NoArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """No arguments, or an empty result."""


Args: TypeAlias = (
    StartArgs
    | TargetArgs
    | ListArgs
    | MoveArgs
    | SetArgs
    | ExtendArgs
    | ResultsArgs
    | EpisodesArgs
    | LogsArgs
    | ReplayArgs
    | EpisodeArgs
    | AnnotateArgs
    | ServerArgs
    | ShutdownArgs
    | NoArgs
)
ARGS: Final[dict[Op, type[Args]]] = {
    "start": StartArgs,
    "cancel": TargetArgs,
    "pause": TargetArgs,
    "resume": TargetArgs,
    "step": TargetArgs,
    "move": MoveArgs,
    "set": SetArgs,
    "extend": ExtendArgs,
    "replay": ReplayArgs,
    "episode": EpisodeArgs,
    "annotate": AnnotateArgs,
    "health": NoArgs,
    "list": ListArgs,
    "results": ResultsArgs,
    "episodes": EpisodesArgs,
    "logs": LogsArgs,
    "server_start": ServerArgs,
    "server_stop": ServerArgs,
    "send_history": NoArgs,
    "shutdown": ShutdownArgs,
}
"""Type of ``ControlRequest.args`` for each operation."""


class ControlRequest(msgspec.Struct, kw_only=True):
    id: Annotated[str, Meta(description="repeated in the reply")]
    op: Annotated[Op, Meta(description="operation to perform")]
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ControlError(msgspec.Struct, kw_only=True, frozen=True):
    """Why a request was rejected; programs decide by the code, since messages may change."""

    code: Annotated[str, Meta(description="for programs: one of the codes that `docs/data/events.md` lists")]
    message: Annotated[str, Meta(description="for people")]
    hint: Annotated[str, Meta(description="what to do next")] = ""


class ControlReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Reply to the request with the same ``id``."""

    id: Annotated[str, Meta(description="id of the request")]
    ok: Annotated[bool, Meta(description="whether the request succeeded")]
    result: Annotated[
        msgspec.Raw | msgspec.UnsetType, Meta(description="present on success; its type depends on the operation")
    ] = msgspec.UNSET
    error: Annotated[ControlError | msgspec.UnsetType, Meta(description="present on failure")] = msgspec.UNSET


class BatchState(msgspec.Struct, kw_only=True):
    """A batch of this node that waits, runs or has ended, with what was requested for it."""

    batch_id: BatchId
    battery_id: BatteryId
    env: EnvName
    agent: AgentName
    model: ModelName
    status: Annotated[
        Literal["queued", "running", "paused", "completed", "cancelled", "interrupted"],
        Meta(description="`interrupted`: can be resumed"),
    ]
    n_done: Annotated[int, Meta(description="finished episodes")]
    n_planned: Annotated[int, Meta(description="episodes in total")]
    waiting_for: WaitingFor = None
    waiting_s: WaitingSeconds = None
    interruption: Interruption = None
    paused: Annotated[bool, Meta(description="whether a waiting batch does not start before it is resumed")] = False
    concurrency: Annotated[int | None, Meta(description="requested number of parallel episodes")] = None
    workers: Annotated[
        Workers | None,
        Meta(description="requested processes; null: the node's own for one episode at a time, else one per CPU core"),
    ] = None
    warning: Annotated[
        str | None,
        Meta(
            description="what the node lowers to fit its limit of open files, with the numbers, and the models that a "
            "budget of cost does not count, because they have no price; null: nothing"
        ),
        FOREIGN,
    ] = None
    limits: Annotated[Limits | None, Meta(description="hard limits of an episode; null in older replies")] = None
    budget: Annotated[Budget | None, Meta(description="what it may use up; null: no limit")] = None
    requests_per_minute: Annotated[int | None, Meta(description="limit of each model endpoint; null: none")] = None
    concurrent_requests: Annotated[int | None, Meta(description="limit of each model endpoint; null: none")] = None
    extends: Annotated[str | None, Meta(description="id of the ended batch that it continues; null: none")] = None


class ResultSummary(msgspec.Struct, kw_only=True):
    """Results of one agent and its models in one environment; rates and means cover the rated episodes."""

    env: EnvName
    mode: Annotated[str, Meta(description="`strict` or `compat`")]
    data_label: Annotated[str, Meta(description="label of the task data")]
    agent: AgentName
    model: Annotated[str | None, Meta(description="models that answered; null for a baseline")]
    limits: Annotated[str, Meta(description="hard limits that differ from 15 rounds and 300 s; empty for none")] = ""
    n: Annotated[int, Meta(description="episodes that ended")]
    n_rated: Annotated[int, Meta(description="episodes that count in rates")]
    n_success: Annotated[int, Meta(description="successful episodes")]
    n_errors: Annotated[int, Meta(description="episodes that ended with an error")]
    n_unscored: Annotated[int, Meta(description="episodes that their evaluation does not rate")]
    outcomes: Annotated[dict[str, int], Meta(description="number of episodes by outcome")]
    success_rate: Annotated[float | None, Meta(description="from 0 to 1; null if no episode is rated")]
    success_interval: Annotated[tuple[float, float] | None, Meta(description="95% interval of the success rate")]
    score: Annotated[float | None, Meta(description="mean reward")]
    avg_rounds: Annotated[float | None, Meta(description="mean number of rounds")]
    cost: Annotated[float | None, Meta(description="cost of all episodes; null when no price is known")]


class EpisodeEntry(msgspec.Struct, kw_only=True):
    """A stored episode."""

    episode_id: EpisodeId
    batch_id: BatchId
    env: EnvName
    agent: AgentName
    models: Annotated[str | None, Meta(description="models that answered; null for a baseline")]
    task_index: TaskIndex
    attempt: Annotated[int, Meta(description="number of earlier attempts at the task in this batch")]
    ended_at: Annotated[datetime, Meta(description="when it ended")]
    outcome: Annotated[str | None, Meta(description="how it ended; null if its file does not have it")]
    success: Annotated[bool | None, Meta(description="verdict of the environment; null if its file does not have it")]
    reward: Annotated[float | None, Meta(description="sum of the rewards; null if its file does not have it")]
    rounds: Annotated[int, Meta(description="number of timesteps")]
    duration_s: Annotated[float, Meta(description="duration in seconds, pauses excluded")]
    cost: Annotated[float | None, Meta(description="cost of all timesteps; null when no price is known")]
    flags: Annotated[str | None, Meta(description="names of the flags, with commas; null if its steps are damaged")]
    error_type: Annotated[str | None, Meta(description="type of the error that ended it; null for other outcomes")]


class FailureCluster(msgspec.Struct, kw_only=True):
    """Episodes of an environment that failed in the same way."""

    id: Annotated[str, Meta(description="the same for the same way of failing")]
    env: EnvName
    cause: Annotated[str, Meta(description="class of the cause, as in the query field `failure`")]
    action: Annotated[str, Meta(description="template of the action that failed; empty without one"), FOREIGN]
    observation: Annotated[str, Meta(description="template of the answer to it, or of the error"), FOREIGN]
    n: Annotated[int, Meta(description="number of its episodes")]
    representative: Annotated[str, Meta(description="id of the shortest of them")]
    step: Annotated[int | None, Meta(description="where that one failed; null when unknown")]
    flags: Annotated[dict[str, int], Meta(description="number of its episodes by flag")]
    episodes: Annotated[list[str], Meta(description="ids of the first 20 of them")]


class RunResults(msgspec.Struct, kw_only=True):
    """What the stored episodes of a batch or battery show."""

    rows: list[ResultSummary]
    clusters: Annotated[list[FailureCluster], Meta(description="the 50 largest, in this order")]
    n_clusters: Annotated[int, Meta(description="number of all of them")]


class LogLines(msgspec.Struct, kw_only=True):
    """The end of a log; its lines quote models, environments and servers."""

    names: Annotated[list[str], Meta(description="names of the node's logs")]
    lines: Annotated[list[str], Meta(description="the last lines, at most 600 bytes each on average"), FOREIGN]


class EpisodeChunk(msgspec.Struct, kw_only=True):
    """At most 256 KiB of an episode file, with the size and hash of the whole file to check what was put together."""

    total: Annotated[int, Meta(description="bytes of the whole file")]
    sha256: Annotated[str, Meta(description="hex digest of the whole file")]
    data: Annotated[bytes, Meta(description="at most 256 KiB from the offset on, in base64")]


class ServerInfo(msgspec.Struct, kw_only=True):
    """State of an environment server; starting and stopping take time, and ``env.health`` items report the outcome."""

    env: EnvName
    status: Annotated[ServerStatus, Meta(description="`failed`: the process exited, or never responded")]
    cause: Annotated[
        str | None, Meta(description="why it is not running, with its last log line; null while it runs"), FOREIGN
    ]


class SentHistory(msgspec.Struct, kw_only=True):
    """Events from before the first use of the external broker's address, which are now sent to it."""

    n: Annotated[int, Meta(description="number of events; 0 if they were requested before")]


class NodeInfo(msgspec.Struct, kw_only=True):
    """What runs as a node, and where it sends to."""

    node: Annotated[str, Meta(description="name of the node")]
    boot: Boot
    pid: Pid
    profile: Annotated[str, Meta(description="id of the node's profile")]
    version: Annotated[str, Meta(description="version of AgentGym Console")]
    status: NodeStatus
    uptime_s: Annotated[float, Meta(description="seconds since the node started")]
    egress: Annotated[str | None, Meta(description="URL of the external broker, without credentials; null without one")]
    n_held: Annotated[
        int,
        Meta(
            description="number of events from before the first use of the external broker, which gets them only after "
            "`send_history`; at most a minute old"
        ),
    ] = 0
    indexing: Indexing = None


class NodeHealth(NodeInfo, kw_only=True):
    """What runs as this node, where it stores and sends to, and the latest health of what it uses."""

    data_dir: Annotated[str, Meta(description="the node's state directory")]
    items: Annotated[
        list[HealthItem], Meta(description="the latest `env.health`, `model.health`, `host` and `machine` items")
    ] = msgspec.field(default_factory=list)


class NodeList(msgspec.Struct, kw_only=True):
    """Batches, newest first, and the environments, agents and models available on the node.

    Of the waiting batches the first 200 are listed, of the others those that run and the newest 200.
    """

    batches: list[BatchState]
    envs: Annotated[list[str], Meta(description="environments of the profile")]
    agents: Annotated[list[str], Meta(description="installed agents")]
    models: Annotated[list[str], Meta(description="models of the profile")]
    storage: StorageProblem = None
    queue: Annotated[
        str | None,
        Meta(description="what the queue file had lost when the node started, and what was restored; null: nothing"),
        FOREIGN,
    ] = None
    n_waiting: Annotated[int | None, Meta(description="number of all waiting batches; null in older replies")] = None
    batteries: Annotated[
        dict[str, list[str]], Meta(description="environments by the tier of the profile; {} in older replies")
    ] = msgspec.field(default_factory=dict)
