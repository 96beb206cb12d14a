"""Reports what one episode of a worker does to the driver: its events as frames, with the large parts as JSON."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from datetime import datetime

import msgspec

from runner.episode.control import EpisodeControl
from runner.errors import ServerGone
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces
from runner.store.episode_file import ActionRecord, TimestepLog, TimestepRecord
from runner.store.safe_json import encode, finite
from runner.tracing import SpanList, Tracer
from runner.types import (
    AREEvaluatedTrajectory,
    Chat,
    EpisodeEnded,
    EpisodeEvent,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    EvaluatedTrajectory,
    Outcome,
    Span,
    SpansClosed,
    TimestepPlayed,
    TokensStreamed,
)
from runner.util.clock import Clock
from runner.util.resources import find_shortage
from runner.util.safe_values import escape_surrogates, safe_str
from runner.worker.frames import Decided, Ended, Failed, Paused, Reset, Started, Stepped, Streamed, WorkerFrame

MAX_TOKEN_FRAMES = 20
"""Maximum number of ``Streamed`` frames per second and episode; further texts are dropped."""

Send = Callable[[WorkerFrame], None]


class ReportedControl(EpisodeControl):
    """Control of an episode in a worker; reports the outcome as soon as it is final.

    Args:
        episode_id: id of the episode.
        send: sends a frame to the driver.
        clock: measures how long pauses last.
    """

    def __init__(self, episode_id: str, send: Send, clock: Clock | None = None) -> None:
        """Start in the running state."""
        self._final_outcome: Outcome | None = None
        self._episode_id, self._send = episode_id, send
        super().__init__(clock)

    @property
    def final_outcome(self) -> Outcome | None:
        """Outcome of the episode; None until it is final."""
        return self._final_outcome

    @final_outcome.setter
    def final_outcome(self, outcome: Outcome | None) -> None:
        self._final_outcome = outcome
        if outcome is not None:
            self._send(Decided(episode_id=self._episode_id, outcome=outcome, error=self.final_error))


class EpisodeReporter:
    """Turns the callbacks of an ``EpisodeContext`` into frames; used on the episode's thread only.

    The events get their own numbers, because streamed tokens beyond ``MAX_TOKEN_FRAMES`` are not sent.

    Args:
        episode_id: id of the episode.
        tracer: the tracer of the episode.
        spans: the collector of ``tracer``.
        control: the control of the episode.
        send: sends a frame to the driver.
        clock: the clock of the driver, as seen by the worker.
    """

    def __init__(
        self,
        episode_id: str,
        tracer: Tracer,
        spans: SpanList,
        control: EpisodeControl,
        send: Send,
        clock: Clock,
    ) -> None:
        """Start at the first event."""
        self._id = episode_id
        self._tracer = tracer
        self._spans = spans
        self._control = control
        self._send = send
        self._clock = clock
        self._steps = TimestepLog()
        self._n_spans = self._n_flows = 0
        self._seq = self._n_unnumbered = 0
        self._ended_spans: list[Span] = []
        self._token_times: deque[float] = deque(maxlen=MAX_TOKEN_FRAMES)

    def emit(self, event: EpisodeEvent) -> None:
        """Send the frame of an event; a step takes along the spans that have closed since the previous part."""
        match event:
            case EpisodeStarted():
                self._send(Started(episode_id=self._id, at=event.at, seq=self._number()))
            case TimestepPlayed():
                self._send_step(event)
            case TokensStreamed():
                self._send_tokens(event)
            case EpisodePaused():
                self._send_pause(event.at, resumed=False)
            case EpisodeResumed():
                self._send_pause(event.at, resumed=True)
            case SpansClosed():
                self._ended_spans += event.spans
            case EpisodeEnded():
                self._send_end(event)

    def on_reset(self, observation: Chat, env_episode_id: str) -> None:
        """Send the result of the reset."""
        spans = self.pop_closed_spans()
        self._n_unnumbered = len(spans)
        reset = EncodedReset(
            observation=encode(observation),
            env_episode_id=escape_surrogates(env_episode_id),
            traces=self._encode_traces(spans),
        )
        self._send(Reset(episode_id=self._id, reset=reset))

    def on_error(self, exc: BaseException) -> None:
        """Send the part of the error that the driver decides on."""
        gone = isinstance(exc, ServerGone)
        self._send(
            Failed(
                episode_id=self._id,
                gone=escape_surrogates(safe_str(exc, "the server is gone")) if gone else None,
                timed_out=isinstance(exc, ServerGone) and exc.timed_out,
                shortage=find_shortage(exc),
            )
        )

    def pop_closed_spans(self) -> list[Span]:
        """Return the spans that no frame contains yet."""
        closed = self._spans.spans[self._n_spans :]
        self._n_spans += len(closed)
        return closed

    def _send_step(self, event: TimestepPlayed) -> None:
        seq, spans = self._number(), self.pop_closed_spans()
        self._number_spans(spans)
        table = self._steps.table.lists
        n_known = len(table)
        data = self._steps.add(event.step)
        record = self._steps.records.pop()
        del self._steps.encoded[:]  # the driver keeps the steps
        step = EncodedStep(
            at=event.at,
            seq=seq,
            data=data,
            summary=_summary(record),
            tool_schemas=encode(table[n_known:]),
            traces=self._encode_traces(spans),
        )
        try:
            self._send(Stepped(episode_id=self._id, step=step))
        except (TypeError, ValueError, OverflowError):  # a name or a warning of the agent
            self._send(Stepped(episode_id=self._id, step=_repaired(step)))

    def _send_tokens(self, event: TokensStreamed) -> None:
        delta, now, times = event.delta, self._clock.monotonic(), self._token_times
        is_full = len(times) == MAX_TOKEN_FRAMES and now - times[0] < 1
        is_text = delta.endpoint is None and delta.failure is None and not delta.restart
        if is_full and is_text:
            return
        times.append(now)
        frame = Streamed(episode_id=self._id, at=event.at, seq=self._number(), step=event.step, delta=delta)
        with contextlib.suppress(TypeError, ValueError):  # half a character of a model that sends invalid text
            self._send(frame)

    def _send_pause(self, at: datetime, *, resumed: bool) -> None:
        seq, paused_s = self._number(), self._control.paused_s()
        self._send(Paused(episode_id=self._id, at=at, seq=seq, resumed=resumed, paused_s=paused_s))

    def _send_end(self, event: EpisodeEnded) -> None:
        trajectory, spans = event.trajectory, self._ended_spans
        self._number_spans(spans)
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
        )
        self._send(Ended(episode_id=self._id, end=end))

    def _number(self, n_events: int = 1) -> int:
        """Number the next ``n_events`` events; return the number of the first one."""
        first = self._seq
        self._seq += n_events
        return first

    def _number_spans(self, spans: list[Span]) -> None:
        """Number the spans of a part; the driver emits the spans of the reset together with those of the next part."""
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


def _summary(record: TimestepRecord) -> TimestepRecord:
    action = ActionRecord(valid=record.action.valid)
    return msgspec.structs.replace(record, chats=[], action=action, observation=[])


def _repaired(step: EncodedStep) -> EncodedStep:
    """Return a step whose summary has only texts and numbers that MessagePack can hold."""
    return msgspec.structs.replace(step, summary=msgspec.json.decode(encode(step.summary), type=TimestepRecord))
