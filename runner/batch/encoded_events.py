"""Events of an episode that another process plays, decoded from its parts only where they are used."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from runner.batch.observers import LazyItem
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces
from runner.types import (
    AREEvaluatedTrajectory,
    EpisodeEnded,
    EpisodeHeader,
    EvaluatedTrajectory,
    Flow,
    Span,
    SpansClosed,
    TimeStep,
    TimestepPlayed,
    ToolSchema,
    Trajectory,
)

_CHAT = msgspec.json.Decoder(list[Any])
_STEP = msgspec.json.Decoder(TimeStep)
_SCHEMAS = msgspec.json.Decoder(list[list[ToolSchema]])
_SPANS = msgspec.json.Decoder(list[Span])
_FLOWS = msgspec.json.Decoder(list[Flow])
_DETAILS = msgspec.json.Decoder(dict[str, Any])


class EncodedEvents:
    """Keeps the encoded parts of one episode and turns them into items for observers, and into spans for the trace.

    One thread adds the parts; the items are decoded on the threads of the observers.
    """

    def __init__(self, header: EpisodeHeader) -> None:
        """Start without parts."""
        self._header = header
        self._reset = EncodedReset(observation=b"[]", env_episode_id="")
        self._was_reset = False
        self._steps: list[EncodedStep] = []
        self._played: list[LazyItem] = []
        self._traces: list[EncodedTraces] = []
        self._n_emitted = 0
        self._lock = threading.Lock()
        self._schema_parts: list[bytes] = []
        self._schemas: list[list[ToolSchema]] = []

    def add_reset(self, reset: EncodedReset) -> None:
        """Add the result of the reset; its spans are emitted with those of the first step."""
        self._reset, self._was_reset = reset, True
        self._traces.append(reset.traces)

    def add_step(self, step: EncodedStep) -> list[LazyItem]:
        """Add a finished step; return the items of the step and of its spans."""
        with self._lock:
            self._schema_parts.append(step.tool_schemas)
        self._steps.append(step)
        self._traces.append(step.traces)
        played = LazyItem(TimestepPlayed, partial(self._decode_step, step))
        self._played.append(played)
        return [played, *self._closed(step.at, after=step.seq)]

    def add_end(self, end: EncodedEnd) -> list[LazyItem]:
        """Add the end of the episode; return the items of its last spans and of the end, in this order."""
        self._traces.append(end.traces)
        played, self._played = self._played, []  # without a reference to themselves, the parts are freed at once
        ended = LazyItem(EpisodeEnded, partial(self._ended, end, played), partial(self._ended, end))
        return [*self._closed(end.at, before=end.seq), ended]

    def decode_traces(self) -> tuple[list[Span], list[Flow]]:
        """Return all spans and flows of the episode so far.

        Raises:
            msgspec.MsgspecError: they are not valid.
        """
        spans = [span for part in self._traces for span in _SPANS.decode(part.spans)]
        return spans, [flow for part in self._traces for flow in _FLOWS.decode(part.flows)]

    def _closed(self, at: datetime, *, after: int = 0, before: int | None = None) -> list[LazyItem]:
        parts, self._n_emitted = self._traces[self._n_emitted :], len(self._traces)
        n_spans = sum(part.n_spans for part in parts)
        seq = after + 1 if before is None else before - n_spans

        def decode() -> SpansClosed:
            spans = [span for part in parts for span in _SPANS.decode(part.spans)]
            return SpansClosed(at=at, episode_id=self._header.episode_id, seq=seq, spans=spans)

        return [LazyItem(SpansClosed, decode)] if n_spans else []

    def _decode_step(self, step: EncodedStep) -> TimestepPlayed:
        timestep = self._timestep(step)
        reset_observation = _CHAT.decode(self._reset.observation) if timestep.index == 0 else None
        return TimestepPlayed(
            at=step.at,
            episode_id=self._header.episode_id,
            seq=step.seq,
            step=timestep,
            reset_observation=reset_observation,
        )

    def _ended(self, end: EncodedEnd, played: list[LazyItem] | None = None) -> EpisodeEnded:
        """Decode the end; without the items of the steps, with the summaries of the steps in place of their texts."""
        header = self._header
        trajectory = Trajectory(
            episode_id=header.episode_id,
            timesteps=list(map(_summarized, self._steps)) if played is None else _decoded_steps(played),
            reset_kwargs={"task_index": header.task_index, "seed": header.seed},
            error_info=end.error,
            trace_last_response_flow_id=end.trace_last_response_flow_id,
            reset_observation=[] if played is None else _CHAT.decode(self._reset.observation),
            env_episode_id=self._reset.env_episode_id if self._was_reset else None,
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

    def _schemas_at(self, index: int) -> list[ToolSchema]:
        with self._lock:
            if self._schema_parts:
                self._schemas += _decode_schemas(self._schema_parts)
                self._schema_parts.clear()
            return self._schemas[index]


def _decoded_steps(played: Iterable[LazyItem]) -> list[TimeStep]:
    return [item.step for item in map(LazyItem.get, played) if isinstance(item, TimestepPlayed)]


def _summarized(step: EncodedStep) -> TimeStep:
    return msgspec.structs.replace(step.summary, available_tool_schemas=[])


def _decode_schemas(parts: Iterable[bytes]) -> list[list[ToolSchema]]:
    return [schemas for part in parts if part != b"[]" for schemas in _SCHEMAS.decode(part)]
