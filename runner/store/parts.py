"""What the player of an episode reports about it, in this order: one closed union of small structs.

The large texts of a part are JSON already, encoded once where the episode is played. From there they go unchanged over
the channel of a worker, into the line of the journal and into the episode file.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeAlias

import msgspec

from runner.types import ErrorInfo, Outcome, TimeStep

EMPTY = b"[]"


class EncodedTraces(msgspec.Struct, frozen=True, kw_only=True):
    """Spans and flows closed since the previous part (``n_spans``: how many spans), and the open spans; JSON arrays."""

    spans: bytes = EMPTY
    flows: bytes = EMPTY
    open_spans: bytes = EMPTY
    n_spans: int = 0


class _Part(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="t"):
    episode_id: str


class Started(_Part, frozen=True):
    """An episode is about to reset its environment."""

    at: datetime
    seq: int


class Reset(_Part, frozen=True):
    """The result of a reset; ``world`` is the JSON array of the rows of the environment's picture, if it has one."""

    observation: bytes
    env_episode_id: str
    world: bytes = EMPTY
    traces: EncodedTraces = EncodedTraces()


class Step(_Part, frozen=True):
    """A finished timestep.

    Attributes:
        seq: number of the step's event within its episode; the events of its spans follow.
        data: the stored step as JSON.
        summary: the step without chats, action and observation.
        tool_schemas: JSON array of the lists of tool schemas that no earlier step refers to.
        tokens: record of the step's token ids, see ``runner.types.sequences``; empty if it has none.
        live: the live item of the step as JSON, and ``live_spans`` those of the spans that have closed since the last
            step; empty without a watcher.
    """

    at: datetime
    seq: int
    data: bytes
    summary: TimeStep
    tool_schemas: bytes = EMPTY
    tokens: bytes = b""
    traces: EncodedTraces = EncodedTraces()
    live: bytes = b""
    live_spans: tuple[bytes, ...] = ()


class Paused(_Part, frozen=True):
    """An episode is paused between two steps; ``resumed``: it continues. ``paused_s`` are all its paused seconds."""

    at: datetime
    seq: int
    resumed: bool = False
    paused_s: float = 0.0


class Tokens(_Part, frozen=True):
    """The streamed answer for an unfinished step has an update, a live item as JSON; ``is_text`` as in the delta."""

    seq: int
    live: bytes
    is_text: bool = True


class Unjournaled(_Part, frozen=True):
    """The journal of the episode cannot be written; ``shortage`` is what ran out, see ``runner.util.resources``."""

    problem: str
    shortage: str | None = None


class Decided(_Part, frozen=True):
    """The outcome of an episode is final; its cleanup is still in progress.

    Attributes:
        gone: message of the ``ServerGone`` that ended the episode; None if its server is not gone.
        timed_out: see ``ServerGone``.
        shortage: what ran out and ended the episode, see ``runner.util.resources``; None if nothing did.
    """

    outcome: Outcome
    error: ErrorInfo | None = None
    gone: str | None = None
    timed_out: bool = False
    shortage: str | None = None


class Ended(_Part, frozen=True):
    """An episode has ended and is cleaned up: the fields of its ``Trajectory`` that no other part has.

    Attributes:
        seq: number of the end's event within its episode; the events of its spans precede it.
        evaluation: JSON of the environment's evaluation details.
        packets: all spans and flows of the episode as slices of the trace file, see ``runner.tracing.TraceEncoder``;
            empty if there are too many.
        tokens: record of the token ids of calls whose step did not end; empty if there are none.
        live_spans: see ``Step``.
    """

    at: datetime
    seq: int
    outcome: Outcome
    success: bool
    duration_s: float
    paused_s: float
    error: ErrorInfo | None = None
    evaluation: bytes | None = None
    trace_last_response_flow_id: int | None = None
    traces: EncodedTraces = EncodedTraces()
    packets: bytes = b""
    n_lanes: int = 0
    tokens: bytes = b""
    live_spans: tuple[bytes, ...] = ()


class Free(_Part, frozen=True):
    """The player is done with an episode, its last part; ``problem`` describes the exception that ended it, if any."""

    problem: str | None = None
    shortage: str | None = None


Part: TypeAlias = Started | Reset | Step | Paused | Tokens | Unjournaled | Decided | Ended | Free


def part_problem(part: Part) -> str | None:
    """Return why a part of another process cannot be a line of a journal; None if it can be.

    Only the form of the bytes is checked, because a worker runs the same encoder as the driver.
    """
    if not isinstance(part, Reset | Step | Ended):
        return None
    traces = part.traces
    arrays, objects = [traces.spans, traces.flows, traces.open_spans], []
    match part:
        case Reset():
            arrays += [part.observation, part.world]
        case Step():
            arrays.append(part.tool_schemas)
            objects.append(part.data)
        case Ended() if part.evaluation is not None:
            objects.append(part.evaluation)
    for data in arrays:
        if data != EMPTY and not (data.startswith(b"[") and data.endswith(b"]") and b"\n" not in data):
            return "an array is incomplete or has several lines"
    for data in objects:
        if not (data.startswith(b"{") and data.endswith(b"}") and b"\n" not in data):
            return "an object is incomplete or has several lines"
    return None


def join_arrays(arrays: Iterable[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[%b]" % b",".join([array[1:-1] for array in arrays if array != EMPTY]))
