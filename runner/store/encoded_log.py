"""The encoded parts of a running episode: lines of its journal, the content of its file, and its totals."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces
from runner.store.episode_file import EpisodeRecord, episode_record
from runner.store.journal import Journal, apply_line
from runner.store.safe_json import encode, finite
from runner.types import EpisodeHeader

_EMPTY = b"[]"


class EncodedLog:
    """Collects the parts of one episode in their order; decodes them only in ``journal``.

    One thread adds the parts. Other threads may read ``reset`` and ``steps``, which only grow.

    Attributes:
        end: the end of the episode; None before it, and after an abandonment.
    """

    def __init__(self) -> None:
        self.reset: EncodedReset | None = None
        self.steps: list[EncodedStep] = []
        self.end: EncodedEnd | None = None

    @property
    def traces(self) -> list[EncodedTraces]:
        return [part.traces for part in (self.reset, *self.steps, self.end) if part is not None]

    def add_reset(self, reset: EncodedReset) -> bytes:
        """Return the line of the result in the journal."""
        self.reset = reset
        return _reset_line(reset)

    def add_step(self, step: EncodedStep) -> bytes:
        """Return the line of the step in the journal."""
        self.steps.append(step)
        return _step_line(step)

    def finish(self, header: EpisodeHeader, end: EncodedEnd) -> tuple[EpisodeRecord, EpisodeRecord]:
        """Add the end; return the record of the episode without texts, schemas and traces, and with them encoded.

        The evaluation is encoded in both.
        """
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
