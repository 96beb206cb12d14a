"""The encoded parts of a running episode: lines of its journal, the content of its file, and its totals."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces
from runner.store.episode_file import EpisodeRecord, episode_record
from runner.store.journal import Journal, apply_line, merge_fields
from runner.store.safe_json import encode, finite
from runner.types import EpisodeHeader, TimeStep

_EMPTY = b"[]"


class EncodedLog:
    """Collects the parts of one episode in their order; decodes them only in ``journal``."""

    def __init__(self) -> None:
        """Start empty."""
        self.env_episode_id: str | None = None
        self._lines: list[tuple[bytes, ...]] = []
        self._summaries: list[TimeStep] = []
        self._steps: list[msgspec.Raw] = []
        self._reset_observation = _EMPTY
        self._tool_schemas: list[bytes] = []
        self._traces: list[EncodedTraces] = []

    def add_reset(self, reset: EncodedReset) -> tuple[bytes, ...]:
        """Add the result of the reset; return the objects of its line in the journal."""
        self.env_episode_id = reset.env_episode_id
        self._reset_observation = reset.observation
        fields = b'{"reset_observation":%b,"env_episode_id":%b}' % (reset.observation, encode(reset.env_episode_id))
        return self._add_line(fields, reset.traces)

    def add_step(self, step: EncodedStep) -> tuple[bytes, ...]:
        """Add a finished step; return the objects of its line in the journal."""
        self._summaries.append(step.summary)
        self._steps.append(msgspec.Raw(step.data))
        if step.tool_schemas == _EMPTY:
            return self._add_line(step.data, step.traces)
        self._tool_schemas.append(step.tool_schemas)
        return self._add_line(step.data, step.traces, b'{"tool_schemas":%b}' % step.tool_schemas)

    def finish(self, header: EpisodeHeader, end: EncodedEnd) -> tuple[EpisodeRecord, EpisodeRecord]:
        """Return the record of the ended episode without texts, schemas and traces, and with all of them encoded.

        The evaluation is encoded in both.
        """
        record = episode_record(
            header,
            self._summaries,
            env_episode_id=self.env_episode_id,
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
        traces = [*self._traces, end.traces]
        content = msgspec.structs.replace(
            record,
            timesteps=self._steps,
            reset_observation=msgspec.Raw(self._reset_observation),
            tool_schemas=join_arrays(self._tool_schemas),
            spans=join_arrays(part.spans for part in traces),
            flows=join_arrays(part.flows for part in traces),
        )
        return record, content

    def journal(self, header: EpisodeHeader) -> Journal:
        """Return the decoded parts, as they would be read from the journal, up to the first part that is damaged."""
        journal = Journal(header=header)
        for objects in self._lines:
            if (problem := apply_line(journal, merge_fields(*objects))) is not None:
                journal.damage = problem
                break
        return journal

    def _add_line(self, fields: bytes, traces: EncodedTraces, *more: bytes) -> tuple[bytes, ...]:
        self._traces.append(traces)
        line = (fields, *more, b'{"traces":%b}' % _traces_object(traces))
        self._lines.append(line)
        return line


def join_arrays(arrays: Iterable[bytes]) -> msgspec.Raw:
    """Return the items of several encoded arrays as one array."""
    return msgspec.Raw(b"[%b]" % b",".join([array[1:-1] for array in arrays if array != _EMPTY]))


def _traces_object(traces: EncodedTraces) -> bytes:
    named = ((b"spans", traces.spans), (b"flows", traces.flows), (b"open_spans", traces.open_spans))
    return b"{%b}" % b",".join([b'"%b":%b' % (name, array) for name, array in named if array != _EMPTY])
