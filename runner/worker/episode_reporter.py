"""Reports what one episode does, part by part: to its journal, to the driver, and to those who watch it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from runner.episode.control import EpisodeControl
from runner.episode.live_items import span_items, timestep_item, token_item
from runner.errors import ServerGone, catch_foreign, log_failure
from runner.store.journal import EpisodeJournal, stored_step
from runner.store.parts import Decided, EncodedTraces, Ended, Part, Paused, Reset, Started, Step, Tokens
from runner.tracing import SpanList, TraceEncoder, Tracer
from runner.types import (
    Action,
    Chat,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    ErrorInfo,
    EvaluatedTrajectory,
    Outcome,
    PackedCells,
    Span,
    StreamDelta,
    TimestepPlayed,
    TokensStreamed,
    ToolSchema,
)
from runner.types.sequences import MAX_EPISODE_BYTES, TokenSequence, pack_sequences
from runner.util.clock import Clock
from runner.util.resources import find_shortage
from runner.util.safe_values import encode, escape_surrogates, finite, safe_str
from runner.worker.frames import Watch

logger = logging.getLogger(__name__)

MAX_PACKETS_BYTES = 8 * 1024 * 1024
"""Maximum size of the packets of a trace that are sent with the end of an episode."""
MAX_TOKENS_PER_S = 20
"""Maximum number of updates of streamed answers per second and episode; further texts are dropped."""

SendPart: TypeAlias = Callable[[Part], None]


class EpisodeReporter:
    """Turns the callbacks of an ``EpisodeContext`` into parts, on the thread of the episode.

    The events are numbered here, because their spans are numbered with them.

    Args:
        spans: the collector of ``tracer``.
        send: passes a part on without blocking; raises ``FrameTooLarge`` for one that no channel can carry.
        journal: gets each part before it is sent; None if the receiver of the parts writes it.
        trace: encodes the spans for the trace file.
    """

    def __init__(
        self,
        header: EpisodeHeader,
        control: EpisodeControl,
        tracer: Tracer,
        spans: SpanList,
        send: SendPart,
        *,
        journal: EpisodeJournal | None,
        trace: TraceEncoder,
        watched: Callable[[], Watch],
        clock: Clock,
    ) -> None:
        self._id = header.episode_id
        self._control = control
        self._tracer = tracer
        self._spans = spans
        self._send = send
        self._journal = journal
        self._trace = trace
        self._watched = watched
        self._clock = clock
        self._tool_schemas: list[list[ToolSchema]] = []
        self._n_spans = self._n_flows = self._seq = 0
        self._unnumbered: list[Span] = []
        self._sequences: list[TokenSequence] = []
        self._n_records = self._n_record_bytes = 0
        self._token_times: deque[float] = deque(maxlen=MAX_TOKENS_PER_S)
        self._failure: BaseException | None = None

    def emit(self, event: EpisodeEvent) -> None:
        match event:
            case EpisodeStarted():
                self._report(Started(episode_id=self._id, at=event.at, seq=self._number()))
            case TimestepPlayed():
                self._report_step(event)
            case EpisodePaused() | EpisodeResumed():
                resumed, paused_s = isinstance(event, EpisodeResumed), self._control.paused_s()
                seq = self._number()
                self._send(Paused(episode_id=self._id, at=event.at, seq=seq, resumed=resumed, paused_s=paused_s))
            case TokensStreamed() if self._is_watched(event.delta):
                event.seq, is_text = self._number(), event.delta.is_text
                self._send(Tokens(episode_id=self._id, seq=event.seq, live=token_item(event), is_text=is_text))
            case EpisodeEnded():
                self._report_end(event)

    def on_reset(self, observation: Chat, env_episode_id: str, world: PackedCells | None = None) -> None:
        """Report the result of the reset at once, so that a crash in the first step does not lose it."""
        self._unnumbered = spans = self._pop_closed_spans()
        reset = Reset(
            episode_id=self._id,
            observation=encode(observation),
            env_episode_id=escape_surrogates(env_episode_id),
            world=encode(world or []),
            traces=self._encode_traces(spans),
        )
        self._report(reset)

    def on_sequence(self, sequence: TokenSequence) -> None:
        """Keep the token ids of a model call for the step that is being played."""
        self._sequences.append(sequence)

    def on_error(self, exc: BaseException) -> None:
        self._failure = exc

    def on_decided(self, outcome: Outcome, error: ErrorInfo | None) -> None:
        """Report the outcome before the cleanup, with what the driver decides on."""
        failure = self._failure
        gone = failure if isinstance(failure, ServerGone) else None
        decided = Decided(
            episode_id=self._id,
            outcome=outcome,
            error=error,
            gone=None if gone is None else escape_surrogates(safe_str(gone, "the server is gone")),
            timed_out=gone is not None and gone.timed_out,
            shortage=None if failure is None else find_shortage(failure),
        )
        self._send(decided)

    def _report(self, part: Part) -> None:
        if self._journal is not None and (unjournaled := self._journal.write(part)) is not None:
            self._journal = None
            self._send(unjournaled)
        self._send(part)

    def _report_step(self, event: TimestepPlayed) -> None:
        seq, spans, schemas = self._number(), self._pop_closed_spans(), self._tool_schemas
        live_spans = self._number_spans(event, spans)
        n_known = len(schemas)
        tools = event.step.available_tool_schemas
        stored = stored_step(event.step, _index_of(schemas, [] if tools is msgspec.UNSET else tools))
        ref, tokens = self._n_records, self._pack_sequences(self._sequences)
        if tokens:
            stored.tokens_ref = ref
        event.seq = seq
        step = Step(
            episode_id=self._id,
            at=event.at,
            seq=seq,
            data=encode(stored),
            summary=msgspec.structs.replace(
                stored, chats=[], action=Action(valid=stored.valid), observation=[], world=None
            ),
            tool_schemas=encode(schemas[n_known:]),
            tokens=tokens,
            traces=self._encode_traces(spans),
            live=self._live_step(event),
            live_spans=live_spans,
        )
        self._report(step)

    def _report_end(self, event: EpisodeEnded) -> None:
        trajectory, spans = event.trajectory, self._pop_closed_spans()
        live_spans = self._number_spans(event, spans)
        packets, n_lanes = self._encode_packets()
        unfinished = [each.discarded("its step did not end") for each in self._sequences]
        end = Ended(
            episode_id=self._id,
            at=event.at,
            seq=self._number(),
            outcome=trajectory.outcome,
            success=trajectory.success,
            duration_s=finite(trajectory.duration_s),
            paused_s=finite(trajectory.paused_s),
            error=trajectory.error_info,
            evaluation=encode(trajectory.evaluation) if isinstance(trajectory, EvaluatedTrajectory) else None,
            trace_last_response_flow_id=trajectory.trace_last_response_flow_id,
            traces=self._encode_traces(spans),
            packets=packets,
            n_lanes=n_lanes,
            tokens=self._pack_sequences(unfinished),
            live_spans=live_spans,
        )
        self._report(end)

    def _live_step(self, event: TimestepPlayed) -> bytes:
        if self._watched().steps:
            with catch_foreign(log_failure(logger, "encoding a live item")):
                return bytes(timestep_item(event))
        return b""

    def _encode_packets(self) -> tuple[bytes, int]:
        with catch_foreign(log_failure(logger, "encoding the trace")):
            packets = self._trace.encode(self._spans.spans, self._spans.flows)
            if len(packets) <= MAX_PACKETS_BYTES:
                return packets, self._trace.n_lanes
        return b"", 0

    def _pack_sequences(self, sequences: list[TokenSequence]) -> bytes:
        self._sequences = []
        if not sequences:
            return b""
        record = pack_sequences(sequences, MAX_EPISODE_BYTES - self._n_record_bytes)
        self._n_records += 1
        self._n_record_bytes += len(record)
        return record

    def _is_watched(self, delta: StreamDelta) -> bool:
        """News of a request is watched like a step: one who begins to watch during the answer needs it, too."""
        watched, now, times = self._watched(), self._clock.monotonic(), self._token_times
        is_full = len(times) == times.maxlen and now - times[0] < 1
        is_watched = watched.tokens and not is_full if delta.is_text else watched.steps
        if is_watched:
            times.append(now)
        return is_watched

    def _number(self, n_events: int = 1) -> int:
        first = self._seq
        self._seq += n_events
        return first

    def _number_spans(self, event: EpisodeEvent, spans: list[Span]) -> tuple[bytes, ...]:
        """Number the spans and return their live items; those of the reset come with those of the next part."""
        numbered, self._unnumbered = [*self._unnumbered, *spans], []
        first = self._number(len(numbered))
        return span_items(event.at, self._id, first, numbered) if self._watched().steps else ()

    def _pop_closed_spans(self) -> list[Span]:
        closed = self._spans.spans[self._n_spans :]
        self._n_spans += len(closed)
        return closed

    def _encode_traces(self, spans: list[Span]) -> EncodedTraces:
        flows = self._spans.flows[self._n_flows :]
        self._n_flows += len(flows)
        return EncodedTraces(
            spans=encode(spans),
            flows=encode(flows),
            open_spans=encode(self._tracer.open_spans()),
            n_spans=len(spans),
        )


def _index_of(known: list[list[ToolSchema]], schemas: list[ToolSchema]) -> int:
    """Return the index of ``schemas`` in ``known``; append them first if they are new."""
    for index, each in enumerate(known):
        if each is schemas or each == schemas:
            return index
    known.append(schemas)
    return len(known) - 1
