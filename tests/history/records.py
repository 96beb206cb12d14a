"""Records of a history: what independent observers saw of a node, its brokers, servers and consoles.

A history is a set of files with one JSON object per line. Each observer (a control client, an environment server, a
reader of a stream, a console, the schedule of faults) appends to its own file through a ``Recorder``, so that the death
of one costs at most the line it was writing. ``read_history`` merges the files.

``at`` is the time of the observation in seconds of the system-wide monotonic clock, which all processes of a machine
share and which clock jumps of the node do not change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

Sink: TypeAlias = Literal["own", "foreign"]
FaultKind: TypeAlias = Literal["kill", "stop", "partition", "disk_full", "clock", "delete"]


class Record(msgspec.Struct, kw_only=True, tag_field="record", tag=str.lower):
    """One observation.

    Attributes:
        at: seconds of the system-wide monotonic clock.
    """

    at: float = msgspec.field(default_factory=time.monotonic)


class Begin(Record):
    """Start of a history; exactly one.

    Attributes:
        node: name of the node.
        sinks: brokers that every durable event must reach.
        servers: environment by name of its server; ``Fault.target`` and the records of servers use these names.
        concurrency: largest number of episodes that any batch plays at the same time.
    """

    seed: int
    node: str
    sinks: list[Sink]
    servers: dict[str, str]
    concurrency: int


class End(Record):
    """End of a history; exactly one. The faults are over, the node was given time to settle, all was read."""


class Call(Record):
    """A control request, recorded when it was answered or given up; ``at`` is when it was sent.

    Attributes:
        ended_at: when the reply arrived, or the client gave up.
        reply: the decoded reply; None if it was lost, in which case the outcome of the request is unknown.
    """

    ended_at: float
    op: str
    args: dict[str, Any]
    reply: dict[str, Any] | None


class Reset(Record):
    """A server put a task into an instance; written before the answer is sent.

    Attributes:
        instance: id of the instance, as in ``env_episode_id`` (``<env>-<task>@<instance>``). No id is used twice in a
            history, not even by another server or after a restart.
    """

    server: str
    instance: str
    task_index: int
    observation: str


class Step(Record):
    """A server executed a step; written before the answer is sent."""

    server: str
    instance: str
    action: str
    observation: str
    reward: float
    done: bool
    truncated: bool = False


class EpisodeFile(Record):
    """An episode file that is new, has changed or, at the end, exists; read by the observer itself.

    Attributes:
        document: the decoded file; None if the file is gone or cannot be decoded.
        sha256: hex digest of the file; None if the file is gone.
    """

    path: str
    sha256: str | None
    document: dict[str, Any] | None


class Journal(Record):
    """A journal that exists at the end of the history, after the node has ended."""

    path: str


class Message(Record):
    """A message of a stream, read by a consumer of the test; reading it several times does no harm.

    Attributes:
        created: creation time of the stream, which tells a stream from its successor after a loss of the store.
    """

    sink: Sink
    stream: str
    created: str
    seq: int
    subject: str
    headers: dict[str, str]
    payload: dict[str, Any]


class StreamRead(Record):
    """All messages of a stream up to ``last_seq`` are recorded; one per sink at the end of the history."""

    sink: Sink
    stream: str
    created: str
    last_seq: int


class Live(Record):
    """A message of a live subject, as a subscriber received it.

    Attributes:
        subscription: number of the subscription; a new one begins after each lost connection.
        channel: third word of the subject.
    """

    sink: Sink
    subscription: int
    channel: str
    node: str
    boot: str
    dropped: int
    items: list[dict[str, Any]]


class Shown(Record):
    """An ended episode or the progress of a batch, as a console showed it.

    Attributes:
        console: name of the console.
        id: id of the episode or batch, or the part of it that the console shows.
        fields: shown values by the field names of the durable events; of a batch also ``n_done`` and ``n_planned``.
    """

    console: str
    what: Literal["episode", "batch", "battery"]
    id: str
    fields: dict[str, Any]


class Probe(Record):
    """Resources of a process.

    Attributes:
        process: ``node``, ``own_broker``, ``console``, …
        n_children: number of its child processes, without one that adds to the full-text index.
        idle: whether no batch was running or queued, and no fault was in progress.
    """

    process: str
    pid: int
    rss_bytes: int
    n_files: int
    n_threads: int
    idle: bool
    n_children: int = 0


class Process(Record):
    """A process was started by the schedule, or its end was noticed.

    Attributes:
        exit_status: None when it started; negative numbers are signals.
        expected: whether the schedule ended it; an unexpected end is a crash.
    """

    name: str
    pid: int
    exit_status: int | None = None
    expected: bool = True


class Fault(Record):
    """A fault began or ended; ``at`` of the end is when the schedule did its part, such as starting the process again.

    Attributes:
        number: the same for the beginning and the end of one fault.
        target: ``node``, ``worker``, ``fork_server``, ``own_broker``, ``foreign_broker``, ``disk``, ``clock``,
            ``console``, or the name of a server.
        detail: what exactly, such as the deleted file or the seconds of a clock jump.
        effect: at the end, what was measured of the fault, such as the error of a write to the full disk; "" if it had
            no effect, for example because its process was dead already.
    """

    number: int
    kind: FaultKind
    target: str
    phase: Literal["begin", "end"]
    detail: str = ""
    effect: str = ""


AnyRecord: TypeAlias = (
    Begin
    | End
    | Call
    | Reset
    | Step
    | EpisodeFile
    | Journal
    | Message
    | StreamRead
    | Live
    | Shown
    | Probe
    | Process
    | Fault
)
_DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


class Recorder:
    """Appends records to a file, each with one ``write``; may be used by several threads and processes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: AnyRecord) -> None:
        os.write(self._fd, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_history(paths: Iterable[Path]) -> list[AnyRecord]:
    """Return the records of all files by time; the last line of a file may be cut off by the death of its writer."""
    records: list[AnyRecord] = []
    for path in paths:
        *lines, _cut = path.read_bytes().split(b"\n")
        records += [_DECODER.decode(line) for line in lines]
    return sorted(records, key=lambda record: record.at)
