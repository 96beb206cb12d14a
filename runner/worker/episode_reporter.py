"""Reports what one episode does: its large parts as JSON, each encoded once, and its small events as they are."""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

import msgspec

from runner.errors import catch_foreign, log_failure
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces
from runner.store.episode_file import stored_step
from runner.tracing import SpanList, TraceEncoder, Tracer
from runner.types import (
    Action,
    AREEvaluatedTrajectory,
    Chat,
    EpisodeEnded,
    EpisodeEvent,
    EvaluatedTrajectory,
    PackedCells,
    Span,
    TimestepPlayed,
    TokensStreamed,
    ToolSchema,
)
from runner.types.sequences import MAX_EPISODE_BYTES, TokenSequence, pack_sequences
from runner.util.clock import Clock
from runner.util.safe_values import encode, escape_surrogates, finite

logger = logging.getLogger(__name__)

MAX_PACKETS_BYTES = 8 * 1024 * 1024
"""Maximum size of the packets of a trace that are sent with the end of an episode."""


class EpisodeParts(Protocol):
    """Receives the parts of one episode in their order."""

    def on_event(self, event: EpisodeEvent) -> None:
        """Receive the start, a pause or a streamed update."""

    def on_reset(self, reset: EncodedReset) -> None: ...

    def on_step(self, step: EncodedStep) -> None:
        """Receive a finished step, with the spans that have closed since the previous part."""

    def on_end(self, end: EncodedEnd) -> None:
        """Receive the end, with the spans that have closed since the last step."""


class EpisodeReporter:
    """Turns the callbacks of an ``EpisodeContext`` into parts, on the thread of the episode.

    The events are numbered here, because their spans are numbered with them, and streamed texts beyond
    ``max_tokens_per_s`` are not reported (None: no limit).

    ``spans`` is the collector of ``tracer``. ``trace`` encodes the spans for the trace file; without it, the receiver
    of the parts does.
    """

    def __init__(
        self,
        tracer: Tracer,
        spans: SpanList,
        parts: EpisodeParts,
        clock: Clock | None = None,
        *,
        trace: TraceEncoder | None = None,
        max_tokens_per_s: int | None = None,
    ) -> None:
        self._tracer = tracer
        self._spans = spans
        self._parts = parts
        self._trace = trace
        self._clock = clock or Clock()
        self._tool_schemas: list[list[ToolSchema]] = []
        self._n_spans = self._n_flows = 0
        self._seq = self._n_unnumbered = 0
        self._sequences: list[TokenSequence] = []
        self._n_records = self._n_record_bytes = 0
        self._token_times: deque[float] | None = None if max_tokens_per_s is None else deque(maxlen=max_tokens_per_s)

    def emit(self, event: EpisodeEvent) -> None:
        match event:
            case TimestepPlayed():
                self._report_step(event)
            case EpisodeEnded():
                self._report_end(event)
            case TokensStreamed() if self._is_too_fast(event):
                pass
            case _:
                event.seq = self._number()
                self._parts.on_event(event)

    def on_reset(self, observation: Chat, env_episode_id: str, world: PackedCells | None = None) -> None:
        """Report the result of the reset at once, so that a crash in the first step does not lose it."""
        spans = self._pop_closed_spans()
        self._n_unnumbered = len(spans)
        reset = EncodedReset(
            observation=encode(observation),
            env_episode_id=escape_surrogates(env_episode_id),
            world=encode(world or []),
            traces=self._encode_traces(spans),
        )
        self._parts.on_reset(reset)

    def on_sequence(self, sequence: TokenSequence) -> None:
        """Keep the token ids of a model call for the step that is being played."""
        self._sequences.append(sequence)

    def _pack_sequences(self, sequences: list[TokenSequence]) -> bytes:
        self._sequences = []
        if not sequences:
            return b""
        record = pack_sequences(sequences, MAX_EPISODE_BYTES - self._n_record_bytes)
        self._n_records += 1
        self._n_record_bytes += len(record)
        return record

    def _pop_closed_spans(self) -> list[Span]:
        closed = self._spans.spans[self._n_spans :]
        self._n_spans += len(closed)
        return closed

    def _report_step(self, event: TimestepPlayed) -> None:
        seq, spans, schemas = self._number(), self._pop_closed_spans(), self._tool_schemas
        self._number_spans(spans)
        n_known = len(schemas)
        tools = event.step.available_tool_schemas
        stored = stored_step(event.step, _index_of(schemas, [] if tools is msgspec.UNSET else tools))
        ref, tokens = self._n_records, self._pack_sequences(self._sequences)
        if tokens:
            stored.tokens_ref = ref
        step = EncodedStep(
            at=event.at,
            seq=seq,
            data=encode(stored),
            summary=msgspec.structs.replace(
                stored, chats=[], action=Action(valid=stored.valid), observation=[], world=None
            ),
            tool_schemas=encode(schemas[n_known:]),
            tokens=tokens,
            traces=self._encode_traces(spans),
        )
        self._parts.on_step(step)

    def _report_end(self, event: EpisodeEnded) -> None:
        trajectory, spans = event.trajectory, self._pop_closed_spans()
        self._number_spans(spans)
        packets, n_lanes = self._encode_packets()
        unfinished = [each.discarded("its step did not end") for each in self._sequences]
        end = EncodedEnd(
            at=event.at,
            seq=self._number(),
            outcome=trajectory.outcome,
            success=trajectory.success,
            duration_s=finite(trajectory.duration_s),
            paused_s=finite(trajectory.paused_s),
            error=trajectory.error_info,
            evaluation=encode(trajectory.evaluation) if isinstance(trajectory, EvaluatedTrajectory) else None,
            is_are=isinstance(trajectory, AREEvaluatedTrajectory),
            trace_last_response_flow_id=trajectory.trace_last_response_flow_id,
            traces=self._encode_traces(spans),
            packets=packets,
            n_lanes=n_lanes,
            tokens=self._pack_sequences(unfinished),
        )
        self._parts.on_end(end)

    def _encode_packets(self) -> tuple[bytes, int]:
        """Without packets, the receiver encodes the spans."""
        if self._trace is not None:
            with catch_foreign(log_failure(logger, "encoding the trace")):
                packets = self._trace.encode(self._spans.spans, self._spans.flows)
                if len(packets) <= MAX_PACKETS_BYTES:
                    return packets, self._trace.n_lanes
        return b"", 0

    def _is_too_fast(self, event: TokensStreamed) -> bool:
        delta, times = event.delta, self._token_times
        if times is None:
            return False
        now = self._clock.monotonic()
        is_full = len(times) == times.maxlen and now - times[0] < 1
        if is_full and delta.endpoint is None and delta.failure is None and not delta.restart:
            return True
        times.append(now)
        return False

    def _number(self, n_events: int = 1) -> int:
        first = self._seq
        self._seq += n_events
        return first

    def _number_spans(self, spans: list[Span]) -> None:
        """The spans of the reset are published together with those of the next part."""
        self._number(self._n_unnumbered + len(spans))
        self._n_unnumbered = 0

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
