"""Encoded parts of an episode: they are stored without decoding them, in the process that played it or another."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from runner.store.episode_file import EpisodeRecord, episode_record
from runner.store.journal import Journal, apply_line
from runner.types import EpisodeHeader, ErrorInfo, Outcome, TimeStep
from runner.util.safe_values import encode, finite

_EMPTY = b"[]"


class EncodedTraces(msgspec.Struct, frozen=True, kw_only=True):
    """Spans and flows closed since the previous part (``n_spans``: how many spans), and the open spans; JSON arrays."""

    spans: bytes = _EMPTY
    flows: bytes = _EMPTY
    open_spans: bytes = _EMPTY
    n_spans: int = 0


class EncodedReset(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reset; ``world`` is the JSON array of the rows of the environment's picture, if it has one."""

    observation: bytes
    env_episode_id: str
    world: bytes = _EMPTY
    traces: EncodedTraces = EncodedTraces()


class EncodedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A finished timestep.

    Attributes:
        seq: number of the step's event within its episode; the events of its spans follow.
        summary: the step without chats, action and observation.
        tool_schemas: JSON array of the lists of tool schemas that no earlier step refers to.
        tokens: record of the step's token ids, see ``runner.types.sequences``; empty if it has none.
    """

    at: datetime
    seq: int
    data: bytes
    summary: TimeStep
    tool_schemas: bytes = _EMPTY
    tokens: bytes = b""
    traces: EncodedTraces = EncodedTraces()


class EncodedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an episode: the fields of its ``Trajectory`` that no other part has.

    Attributes:
        seq: number of the end's event within its episode; the events of its spans precede it.
        evaluation: JSON of the environment's evaluation details.
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
        if data != _EMPTY and not (data.startswith(b"[") and data.endswith(b"]") and b"\n" not in data):
            return "an array is incomplete or has several lines"
    for data in objects:
        if not (data.startswith(b"{") and data.endswith(b"}") and b"\n" not in data):
            return "an object is incomplete or has several lines"
    return None


class EncodedLog:
    """Collects the parts of one episode in their order; decodes them only in ``journal``.

    One thread adds the parts. Other threads may read ``reset`` and ``steps``, which only grow. ``end`` is None before
    the end, and after an abandonment.
    """

    def __init__(self) -> None:
        self.reset: EncodedReset | None = None
        self.steps: list[EncodedStep] = []
        self.end: EncodedEnd | None = None

    @property
    def traces(self) -> list[EncodedTraces]:
        return [part.traces for part in (self.reset, *self.steps, self.end) if part is not None]

    def add_reset(self, reset: EncodedReset) -> bytes:
        """Return the line of the journal, as ``add_step`` does."""
        self.reset = reset
        return _reset_line(reset)

    def add_step(self, step: EncodedStep) -> bytes:
        self.steps.append(step)
        return _step_line(step)

    def finish(self, header: EpisodeHeader, end: EncodedEnd) -> tuple[EpisodeRecord, EpisodeRecord]:
        """Add the end; return the record of the episode without texts, schemas and traces, and with them encoded."""
        self.end, traces = end, [*self.traces, end.traces]
        record = episode_record(
            header,
            [step.summary for step in self.steps],
            env_episode_id=None if self.reset is None else self.reset.env_episode_id,
            ended_at=end.at,
            duration_s=finite(end.duration_s),
            paused_s=finite(end.paused_s),
            outcome=end.outcome,
            success=end.success,
            reset_observation=[],
            tool_schemas=[],
            spans=[],
            flows=[],
            error=end.error,
            evaluation=None if end.evaluation is None else msgspec.Raw(end.evaluation),
            trace_last_response_flow_id=end.trace_last_response_flow_id,
        )
        content = msgspec.structs.replace(
            record,
            timesteps=[msgspec.Raw(step.data) for step in self.steps],
            reset_observation=msgspec.Raw(_EMPTY if self.reset is None else self.reset.observation),
            reset_world=None if self.reset is None or self.reset.world == _EMPTY else msgspec.Raw(self.reset.world),
            tool_schemas=join_arrays(step.tool_schemas for step in self.steps),
            spans=join_arrays(part.spans for part in traces),
            flows=join_arrays(part.flows for part in traces),
        )
        return record, content

    def journal(self, header: EpisodeHeader) -> Journal:
        """Return the decoded parts, as they would be read from the journal, up to the first part that is damaged."""
        journal = Journal(header=header)
        lines = [] if self.reset is None else [_reset_line(self.reset)]
        for line in (*lines, *map(_step_line, self.steps)):
            if (problem := apply_line(journal, line)) is not None:
                journal.damage = problem
                break
        return journal


def join_arrays(arrays: Iterable[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[%b]" % b",".join([array[1:-1] for array in arrays if array != _EMPTY]))


def _reset_line(reset: EncodedReset) -> bytes:
    fields = b'{"reset_observation":%b,"env_episode_id":%b}' % (reset.observation, encode(reset.env_episode_id))
    world = b"{}" if reset.world == _EMPTY else b'{"reset_world":%b}' % reset.world
    return _merge(fields, world, _traces_field(reset.traces))


def _step_line(step: EncodedStep) -> bytes:
    schemas = b"{}" if step.tool_schemas == _EMPTY else b'{"tool_schemas":%b}' % step.tool_schemas
    return _merge(step.data, schemas, _traces_field(step.traces))


def _traces_field(traces: EncodedTraces) -> bytes:
    named = ((b"spans", traces.spans), (b"flows", traces.flows), (b"open_spans", traces.open_spans))
    return b'{"traces":{%b}}' % b",".join([b'"%b":%b' % (name, array) for name, array in named if array != _EMPTY])


def _merge(*objects: bytes) -> bytes:
    return b"{%b}" % b",".join([fields[1:-1] for fields in objects if fields != b"{}"])
