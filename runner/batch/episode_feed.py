"""Everything that a running episode reports: recorded, published to the observers, and written to the trace."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import msgspec

from runner.batch.observers import LazyItem
from runner.batch.result import UnstoredEpisode
from runner.errors import ServerGone, StoreError, catch_foreign, log_failure
from runner.store import EpisodeRecorder
from runner.store.encoded import EncodedEnd, EncodedLog, EncodedReset, EncodedStep, EncodedTraces
from runner.store.episode_file import EpisodeRecord
from runner.store.journal import TraceDelta
from runner.tracing import PerfettoFile, TraceEncoder
from runner.types import (
    AREEvaluatedTrajectory,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodeStarted,
    ErrorInfo,
    EvaluatedTrajectory,
    Flow,
    Outcome,
    PackedCells,
    Span,
    SpansClosed,
    TimeStep,
    TimestepPlayed,
    ToolSchema,
    Trajectory,
)
from runner.util.resources import Resource, SpareResources, find_shortage

logger = logging.getLogger(__name__)

Publish: TypeAlias = Callable[[EpisodeEvent | LazyItem], object]

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
        self._unemitted.append(reset.traces)  # emitted with the spans of the next part

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
        timestep, ref = _STEP.decode(step.data), step.summary.tool_schemas_ref
        timestep.available_tool_schemas = [] if ref is msgspec.UNSET else self._schemas_at(ref)
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
        if played is None:
            steps = [msgspec.structs.replace(step.summary, available_tool_schemas=[]) for step in self._log.steps]
        else:
            steps = [item.step for item in map(LazyItem.get, played) if isinstance(item, TimestepPlayed)]
        trajectory = Trajectory(
            episode_id=header.episode_id,
            timesteps=steps,
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


class EpisodeFeed:
    """The receiver of one episode; its slot calls the ``on_…`` methods, the thread of the batch the others.

    Args:
        recorder: records the episode; its errors become ``problems`` and are not raised in the episode.
        on_free: called when the slot is done with the episode, with the exception that ended it or its worker, if any.
        on_played: called before that if the slot may play its next episode while this one is stored.
        can_put_back: whether the episode may start again later if its server is gone before the reset is complete.
        was_started: whether observers know the episode from an earlier start.
        spare: files and memory that are released as soon as the episode runs out of them.

    Attributes:
        problems: errors of the recorder, and the exception that ended the episode outside its agent and environment.
        gone: the error that ended the episode, if its server was gone.
        shortage: what the episode or its recorder ran out of, if anything.
    """

    def __init__(
        self,
        header: EpisodeHeader,
        recorder: EpisodeRecorder,
        *,
        publish: Publish,
        trace_file: PerfettoFile,
        track: str,
        on_free: Callable[[BaseException | None], object],
        on_played: Callable[[], object] = lambda: None,
        now: Callable[[], float],
        can_put_back: bool = False,
        was_started: bool = False,
        spare: SpareResources | None = None,
    ) -> None:
        self.recorder = recorder
        self.problems: list[BaseException] = []
        self.gone: ServerGone | None = None
        self.shortage: Resource | None = None
        self.started_s: float | None = None
        self._publish = publish
        self._trace_file = trace_file
        self._track = track
        self._on_free = on_free
        self._on_played = on_played
        self._now = now
        self._can_put_back = can_put_back
        self._was_started = was_started
        self._spare = spare
        self._events = EncodedEvents(header, recorder.log)
        self._held: EncodedEnd | None = None
        self._unstored_end: LazyItem | None = None
        self._abandoned = False

    def on_source(self, traces: Callable[[], TraceDelta]) -> None:
        self.recorder.traces = traces

    def on_event(self, event: EpisodeEvent) -> None:
        is_start = isinstance(event, EpisodeStarted)
        if is_start:
            self.started_s = self._now()
            with catch_foreign(self.note_problem):
                self.recorder.on_event(event)
            self._note_journal_error()
        self._events.add_event(event)
        if not (is_start and self._was_started):
            self._publish_all([event])

    def on_reset(self, reset: EncodedReset) -> None:
        with catch_foreign(self.note_problem):
            self.recorder.on_reset(reset)
        self._events.add_reset(reset)
        self._note_journal_error()

    def on_step(self, step: EncodedStep) -> None:
        with catch_foreign(self.note_problem):
            self.recorder.on_step(step)
        self._note_journal_error()
        self._publish_all(self._events.add_step(step))

    def on_end(self, end: EncodedEnd) -> None:
        if self._can_put_back and self.gone is not None and self.recorder.log.reset is None:
            self._held = end
        else:
            self._deliver(end)

    def on_error(self, exc: BaseException) -> None:
        self._note_shortage(exc)
        self.gone = exc if isinstance(exc, ServerGone) and self.shortage is None else None

    def on_played(self) -> None:
        """Report that the slot may play its next episode, unless this one may end the batch."""
        if not self.problems and self.shortage is None and self.gone is None:
            self._on_played()

    def on_done(self, problem: BaseException | None) -> None:
        if not self._abandoned or self.recorder.traces is not None:
            self._flush_trace()
        self._on_free(problem)

    def note_problem(self, exc: BaseException) -> None:
        self.problems.append(exc)
        self._note_shortage(exc)

    @property
    def has_ended(self) -> bool:
        return self.recorder.record is not None

    @property
    def is_held(self) -> bool:
        """Whether the end of the episode is held back, because the episode may start again."""
        return self._held is not None

    def release(self, outcome: Outcome | None) -> None:
        """Record and publish the end that was held back; ``outcome`` replaces the error of the episode, if given."""
        held, self._held = self._held, None
        if held is not None:
            self._deliver(held if outcome is None else msgspec.structs.replace(held, outcome=outcome, error=None))

    def abandon(self, outcome: Outcome, error: ErrorInfo | None) -> None:
        """Store and publish the end of what has been recorded; whatever the slot still reports is ignored."""
        self._abandoned, had_ended = True, self.has_ended
        with catch_foreign(self.note_problem):
            self.recorder.abandon(outcome, error)
        if self.recorder.record is not None and not had_ended:
            ended = self._events.add_abandoned(self.recorder.record)
            if self.recorder.is_stored:
                self._publish(ended)
            else:
                self._unstored_end = ended
        if self.recorder.traces is None:
            self._flush_trace()

    def finish(self, record: EpisodeRecord) -> UnstoredEpisode | None:
        """Store the episode again if files ran out, and publish its end if that succeeds; return it if it does not."""
        self._store_again()
        if not self.recorder.is_stored:
            return UnstoredEpisode(record, self.recorder.content or record, self._unstored_end)
        if self._unstored_end is not None:
            self._publish(self._unstored_end)
        return None

    def _deliver(self, end: EncodedEnd) -> None:
        *spans, ended = self._events.add_end(end)
        self._publish_all(spans)
        with catch_foreign(self.note_problem):
            self.recorder.on_end(end)
        # not before it is stored, because another end would be stored if the process died
        if not self.recorder.is_stored:
            self._unstored_end = ended
        else:
            self._publish_all([ended])

    def _publish_all(self, items: Sequence[EpisodeEvent | LazyItem]) -> None:
        for item in items if not self._abandoned else ():
            self._publish(item)

    def _note_journal_error(self) -> None:
        if self.shortage is None and self.recorder.journal_error is not None:
            self._note_shortage(self.recorder.journal_error)

    def _note_shortage(self, exc: BaseException) -> None:
        self.shortage = self.shortage or find_shortage(exc)
        if self.shortage is not None and self._spare is not None:
            self._spare.release()

    def _store_again(self) -> None:
        if not any(isinstance(problem, StoreError) and find_shortage(problem) for problem in self.problems):
            return
        failures: list[BaseException] = []
        with catch_foreign(failures.append):
            self.recorder.store_again()
        if not failures:
            self.problems = [problem for problem in self.problems if find_shortage(problem) is None]

    def _flush_trace(self) -> None:
        with catch_foreign(log_failure(logger, "writing the trace")):
            end, traces = self.recorder.log.end, self.recorder.traces
            if end is not None and end.packets:
                self._trace_file.append(self._track, end.packets, end.n_lanes)
                return
            # The episode was abandoned, or the version of its worker does not encode the packets.
            decoded = decode_traces(self.recorder.log.traces) if traces is None else traces()
            encoder = TraceEncoder(self._trace_file.boot, self._track)
            packets = encoder.encode(decoded.spans, decoded.flows)
            self._trace_file.append(self._track, packets, encoder.n_lanes)
