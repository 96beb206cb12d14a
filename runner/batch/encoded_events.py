"""Events of an episode, decoded from its parts only where they are used."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from runner.batch.observers import LazyItem
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces
from runner.store.encoded_log import EncodedLog
from runner.store.episode_file import EpisodeRecord
from runner.store.journal import TraceDelta
from runner.types import (
    AREEvaluatedTrajectory,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EvaluatedTrajectory,
    Flow,
    PackedCells,
    Span,
    SpansClosed,
    TimeStep,
    TimestepPlayed,
    ToolSchema,
    Trajectory,
)

_LIST = msgspec.json.Decoder(list[Any])
_STEP = msgspec.json.Decoder(TimeStep)
_SCHEMAS = msgspec.json.Decoder(list[list[ToolSchema]])
_SPANS = msgspec.json.Decoder(list[Span])
_FLOWS = msgspec.json.Decoder(list[Flow])
_DETAILS = msgspec.json.Decoder(dict[str, Any])


class EncodedEvents:
    """Turns the encoded parts of one episode into items for observers, and into spans for the trace.

    One thread adds the parts, each after it is in ``log``; the items are decoded on the threads of the observers.
    """

    def __init__(self, header: EpisodeHeader, log: EncodedLog) -> None:
        self._header = header
        self._log = log
        self._played: list[LazyItem] = []
        self._unemitted: list[EncodedTraces] = []
        self._lock = threading.Lock()
        self._n_schema_parts = 0
        self._schemas: list[list[ToolSchema]] = []
        self._next_seq = 0

    def add_event(self, event: EpisodeEvent) -> None:
        """Note the number of an item that was not encoded."""
        self._next_seq = max(self._next_seq, event.seq + 1)

    def add_reset(self, reset: EncodedReset) -> None:
        """Add the result of the reset; its spans are emitted with those of the next part."""
        self._unemitted.append(reset.traces)

    def add_step(self, step: EncodedStep) -> list[LazyItem]:
        played = LazyItem(TimestepPlayed, partial(self._decode_step, step))
        self._played.append(played)
        self._next_seq = step.seq + 1
        return [played, *self._closed(step.traces, step.at, after=step.seq)]

    def add_end(self, end: EncodedEnd) -> list[LazyItem]:
        """Return the items of its last spans and of the end, in this order."""
        return [*self._closed(end.traces, end.at, before=end.seq), self._end_item(end)]

    def add_abandoned(self, record: EpisodeRecord) -> LazyItem:
        """End the episode as it is stored, without an end from its worker; return the item of the end."""
        end = EncodedEnd(
            at=record.ended_at,
            seq=self._next_seq,
            outcome=record.outcome,
            success=record.success,
            duration_s=record.duration_s,
            paused_s=record.paused_s,
            error=record.error,
        )
        return self._end_item(end)

    def _end_item(self, end: EncodedEnd) -> LazyItem:
        played, self._played = self._played, []  # without a reference to themselves, the parts are freed at once
        return LazyItem(EpisodeEnded, partial(self._ended, end, played), partial(self._ended, end))

    def _closed(
        self, traces: EncodedTraces, at: datetime, *, after: int = 0, before: int | None = None
    ) -> list[LazyItem]:
        parts, self._unemitted = [*self._unemitted, traces], []
        n_spans = sum(part.n_spans for part in parts)
        self._next_seq += n_spans
        seq = after + 1 if before is None else before - n_spans

        def decode() -> SpansClosed:
            spans = [span for part in parts for span in _SPANS.decode(part.spans)]
            return SpansClosed(at=at, episode_id=self._header.episode_id, seq=seq, spans=spans)

        return [LazyItem(SpansClosed, decode)] if n_spans else []

    def _decode_step(self, step: EncodedStep) -> TimestepPlayed:
        timestep = self._timestep(step)
        is_first = timestep.index == 0
        return TimestepPlayed(
            at=step.at,
            episode_id=self._header.episode_id,
            seq=step.seq,
            step=timestep,
            reset_observation=self._reset_observation() if is_first else None,
            reset_world=self._reset_world() if is_first else None,
        )

    def _ended(self, end: EncodedEnd, played: list[LazyItem] | None = None) -> EpisodeEnded:
        """Decode the end; without the items of the steps, with the summaries of the steps in place of their texts."""
        header = self._header
        trajectory = Trajectory(
            episode_id=header.episode_id,
            timesteps=list(map(_summarized, self._log.steps)) if played is None else _decoded_steps(played),
            reset_kwargs={"task_index": header.task_index, "seed": header.seed},
            error_info=end.error,
            trace_last_response_flow_id=end.trace_last_response_flow_id,
            reset_observation=[] if played is None else self._reset_observation(),
            reset_world=None if played is None else self._reset_world(),
            env_episode_id=None if self._log.reset is None else self._log.reset.env_episode_id,
            outcome=end.outcome,
            success=end.success,
            duration_s=end.duration_s,
            paused_s=end.paused_s,
        )
        if end.evaluation is not None:
            evaluated = AREEvaluatedTrajectory if end.is_are else EvaluatedTrajectory
            fields = msgspec.structs.asdict(trajectory)
            trajectory = evaluated(**fields, evaluation=_DETAILS.decode(end.evaluation))
        return EpisodeEnded(at=end.at, episode_id=header.episode_id, seq=end.seq, trajectory=trajectory)

    def _timestep(self, step: EncodedStep) -> TimeStep:
        timestep, ref = _STEP.decode(step.data), step.summary.tool_schemas_ref
        timestep.available_tool_schemas = [] if ref is msgspec.UNSET else self._schemas_at(ref)
        return timestep

    def _reset_observation(self) -> list[Any]:
        return [] if self._log.reset is None else _LIST.decode(self._log.reset.observation)

    def _reset_world(self) -> PackedCells | None:
        return None if self._log.reset is None else _LIST.decode(self._log.reset.world) or None

    def _schemas_at(self, index: int) -> list[ToolSchema]:
        with self._lock:
            steps = self._log.steps[self._n_schema_parts :]
            self._n_schema_parts += len(steps)
            self._schemas += [schemas for step in steps for schemas in _SCHEMAS.decode(step.tool_schemas)]
            return self._schemas[index]


def decode_traces(parts: Sequence[EncodedTraces]) -> TraceDelta:
    spans = [span for part in parts for span in _SPANS.decode(part.spans)]
    return TraceDelta(spans, [flow for part in parts for flow in _FLOWS.decode(part.flows)])


def _decoded_steps(played: Iterable[LazyItem]) -> list[TimeStep]:
    return [item.step for item in map(LazyItem.get, played) if isinstance(item, TimestepPlayed)]


def _summarized(step: EncodedStep) -> TimeStep:
    return msgspec.structs.replace(step.summary, available_tool_schemas=[])
