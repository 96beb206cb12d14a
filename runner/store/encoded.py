"""Encoded parts of an episode: they are stored without decoding them, in the process that played it or another."""

from __future__ import annotations

from datetime import datetime

import msgspec

from runner.types import ErrorInfo, Outcome, TimeStep


class EncodedTraces(msgspec.Struct, frozen=True, kw_only=True):
    """Spans and flows that were closed since the previous part of the episode, and the open spans; JSON arrays.

    Attributes:
        n_spans: number of closed spans in ``spans``.
    """

    spans: bytes = b"[]"
    flows: bytes = b"[]"
    open_spans: bytes = b"[]"
    n_spans: int = 0


class EncodedReset(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an episode's reset.

    Attributes:
        world: JSON array of the rows of the environment's picture; empty if there is none.
    """

    observation: bytes
    env_episode_id: str
    world: bytes = b"[]"
    traces: EncodedTraces = EncodedTraces()


class EncodedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A finished timestep.

    Attributes:
        at: time at which the step ended.
        seq: number of the step's event within its episode; the events of its spans follow.
        summary: the step without chats, action and observation.
        tool_schemas: JSON array of the lists of tool schemas that no earlier step refers to; empty if there are none.
        tokens: record of the step's token ids, see ``runner.types.sequences``; empty if it has none.
    """

    at: datetime
    seq: int
    data: bytes
    summary: TimeStep
    tool_schemas: bytes = b"[]"
    tokens: bytes = b""
    traces: EncodedTraces = EncodedTraces()


class EncodedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an episode: the fields of its ``Trajectory`` that no other part has.

    Attributes:
        at: time at which the episode ended.
        seq: number of the end's event within its episode; the events of its spans precede it.
        evaluation: JSON of the environment's evaluation details; None if there are none.
        is_are: whether they are those of an ``AREEnvironment``.
        packets: all spans and flows of the episode as slices of the trace file, see ``runner.tracing.TraceEncoder``;
            empty if the process that played the episode did not encode them.
        tokens: record of the token ids of calls whose step did not end; empty if there are none.
    """

    at: datetime
    seq: int
    outcome: Outcome
    success: bool
    duration_s: float
    paused_s: float
    error: ErrorInfo | None = None
    evaluation: bytes | None = None
    is_are: bool = False
    trace_last_response_flow_id: int | None = None
    traces: EncodedTraces = EncodedTraces()
    packets: bytes = b""
    n_lanes: int = 0
    tokens: bytes = b""


def encoding_problem(part: EncodedReset | EncodedStep | EncodedEnd) -> str | None:
    """Return why a part cannot be a line of a journal; None if it can be.

    Only the form of the bytes is checked, because a worker runs the same encoder as the driver.
    """
    traces = part.traces
    arrays, objects = [traces.spans, traces.flows, traces.open_spans], []
    match part:
        case EncodedReset():
            arrays += [part.observation, part.world]
        case EncodedStep():
            arrays.append(part.tool_schemas)
            objects.append(part.data)
        case EncodedEnd() if part.evaluation is not None:
            objects.append(part.evaluation)
    for data in arrays:
        if data != b"[]" and not (data.startswith(b"[") and data.endswith(b"]") and b"\n" not in data):
            return "an array is incomplete or has several lines"
    for data in objects:
        if not (data.startswith(b"{") and data.endswith(b"}") and b"\n" not in data):
            return "an object is incomplete or has several lines"
    return None
