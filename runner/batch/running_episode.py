"""A running episode in its batch: its slot, commands and deadlines, and what becomes of all that it reports."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from runner.batch.observers import BatchItem, Encoded, EpisodeStored, LiveItems, UnstoredEpisode
from runner.batch.spec import MAX_STORING, PlannedEpisode
from runner.episode.live_items import ended_item, started_item
from runner.errors import ServerGone, StoreError, catch_foreign, log_failure
from runner.pool.worker import RemoteControl, Slot, WorkerLost
from runner.store import EpisodeRecorder
from runner.store.episode_file import EpisodeRecord
from runner.store.parts import Decided, EncodedTraces, Ended, Part, Paused, Reset, Started, Step, Tokens, Unjournaled
from runner.tracing import PerfettoFile, TraceEncoder, create_error_info
from runner.types import (
    EpisodeHeader,
    EpisodePaused,
    EpisodeResumed,
    ErrorInfo,
    Flow,
    Outcome,
    Span,
)
from runner.util.clock import Clock
from runner.util.resources import Resource, SpareResources, find_shortage, is_resource

CommandName: TypeAlias = Literal["cancel", "interrupt", "abort", "pause", "resume", "step", "wind_down"]

STEP_GRACE_S = 2.0
"""Seconds that a cancelled episode has to finish its step before its asyncio task is cancelled."""
OVERDUE_S = 1.0
"""Seconds that an episode must be past its deadline before its slot is abandoned."""
START_TIMEOUT_S = 120.0
"""Seconds that a worker has to start an episode; more than a pool needs to give up a worker that does not start."""
MAX_PUT_BACKS = 3
"""Maximum number of times that an episode is put back; after that, the episode is recorded as an error."""


logger = logging.getLogger(__name__)

Publish: TypeAlias = Callable[[BatchItem], object]

_SPANS = msgspec.json.Decoder(list[Span])
_FLOWS = msgspec.json.Decoder(list[Flow])


class EpisodeFeed:
    """The receiver of one episode; its slot calls ``receive`` and ``on_…``, the thread of the batch the other methods.

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
        can_put_back: bool = False,
        was_started: bool = False,
        spare: SpareResources | None = None,
    ) -> None:
        self.recorder = recorder
        self.problems: list[BaseException] = []
        self.gone: ServerGone | None = None
        self.shortage: Resource | None = None
        self._header = header
        self._publish = publish
        self._trace_file = trace_file
        self._track = track
        self._on_free = on_free
        self._on_played = on_played
        self._can_put_back = can_put_back
        self._was_started = was_started
        self._spare = spare
        self._next_seq = self._n_unnumbered = 0
        self._held: Ended | None = None
        self._has_shown_end = self._has_trace = self._is_abandoned = False

    def receive(self, part: Part) -> None:
        with catch_foreign(self.note_problem):
            self.recorder.receive(part)
        match part:
            case Started():
                self._next_seq = part.seq + 1
                if not self._was_started:
                    self._show(started_item(part.at, part.seq, self._header))
            case Reset():
                self._n_unnumbered = part.traces.n_spans  # numbered with the spans of the next part
            case Step():
                self._next_seq = part.seq + 1 + self._n_unnumbered + part.traces.n_spans
                self._n_unnumbered = 0
                self._show_live("timestep", part.live)
                self._show_live("span", *part.live_spans)
            case Paused():
                self._next_seq = part.seq + 1
                kind = EpisodeResumed if part.resumed else EpisodePaused
                self._show(kind(at=part.at, episode_id=part.episode_id, seq=part.seq))
            case Tokens():
                self._next_seq = part.seq + 1  # those that were dropped have numbers, too
                self._show_live("token" if part.is_text else "request", part.live)
            case Unjournaled():
                self._note_shortage(part.shortage)
            case Decided():
                self._note_shortage(part.shortage)
                if part.gone is not None and self.shortage is None:
                    self.gone = ServerGone(part.gone, timed_out=part.timed_out)
            case Ended():
                self._receive_end(part)

    def on_played(self) -> None:
        """Report that the slot may play its next episode, unless this one may end the batch."""
        if not self.problems and self.shortage is None and self.gone is None:
            self._on_played()

    def on_done(self, problem: BaseException | None) -> None:
        self._write_trace()
        self._on_free(problem)

    def note_problem(self, exc: BaseException) -> None:
        self.problems.append(exc)
        self._note_shortage(find_shortage(exc))

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
        if self.recorder.started_s is None and not self._was_started:  # a lost worker could not send the start
            self._next_seq = 1
            self._show(started_item(self._header.started_at, 0, self._header))
        self._is_abandoned = True
        with catch_foreign(self.note_problem):
            self.recorder.abandon(outcome, error)
        self._show_end()
        self._write_trace()

    def finish(self, record: EpisodeRecord) -> UnstoredEpisode | None:
        """Store the episode again if files ran out, and publish its end if that succeeds; return it if it does not."""
        self._store_again()
        if not self.recorder.is_stored:
            stored = EpisodeStored(record, ended_item(self._next_seq, record))
            return UnstoredEpisode(stored, self.recorder.content or record)
        self._show_end()
        return None

    def _receive_end(self, end: Ended) -> None:
        if self._can_put_back and self.gone is not None and self.recorder.log.reset is None:
            self._held = end
        else:
            self._deliver(end)

    def _deliver(self, end: Ended) -> None:
        self._next_seq = max(self._next_seq, end.seq)
        self._show_live("span", *end.live_spans)
        with catch_foreign(self.note_problem):
            self.recorder.finish(end)
        self._show_end()

    def _show_end(self) -> None:
        """Show the end once, and not before it is stored: another end would be stored if the process died."""
        record = self.recorder.record
        if record is not None and self.recorder.is_stored and not self._has_shown_end:
            self._has_shown_end = True
            self._publish(EpisodeStored(record, ended_item(self._next_seq, record)))

    def _show(self, item: BatchItem) -> None:
        if not self._is_abandoned:
            self._publish(item)

    def _show_live(self, kind: Encoded, *items: bytes) -> None:
        if any(items):
            self._show(LiveItems(kind, items))

    def _note_shortage(self, resource: str | None) -> None:
        if is_resource(resource):
            self.shortage = self.shortage or resource
            if self._spare is not None:
                self._spare.release()

    def _store_again(self) -> None:
        if not any(isinstance(problem, StoreError) and find_shortage(problem) for problem in self.problems):
            return
        failures: list[BaseException] = []
        with catch_foreign(failures.append):
            self.recorder.store_again()
        if not failures:
            self.problems = [problem for problem in self.problems if find_shortage(problem) is None]

    def _write_trace(self) -> None:
        if self._has_trace:
            return
        self._has_trace = True
        with catch_foreign(log_failure(logger, "writing the trace")):
            end = self.recorder.log.end
            if end is not None and end.packets:
                self._trace_file.append(self._track, end.packets, end.n_lanes)
                return
            # The episode was abandoned, or its packets are too large for a frame.
            spans, flows = decode_traces(self.recorder.log.traces)
            encoder = TraceEncoder(self._trace_file.boot, self._track)
            self._trace_file.append(self._track, encoder.encode(spans, flows), encoder.n_lanes)


def decode_traces(parts: list[EncodedTraces]) -> tuple[list[Span], list[Flow]]:
    spans = [span for part in parts for span in _SPANS.decode(part.spans)]
    return spans, [flow for part in parts for flow in _FLOWS.decode(part.flows)]


class EpisodeCommand(msgspec.Struct, frozen=True):
    """A command to one episode of a batch, or to the whole batch if ``episode_id`` is None.

    ``cancel`` ends the target for good. ``interrupt`` ends it so that it can be resumed later. ``abort`` is a
    ``cancel`` that does not wait for running steps. ``wind_down`` starts no further episode of a batch.
    """

    name: CommandName
    episode_id: str | None = None

    @property
    def end_outcome(self) -> Outcome | None:
        if self.name in ("cancel", "abort"):
            return Outcome.CANCELLED
        return Outcome.INTERRUPTED if self.name == "interrupt" else None


class EpisodePlayed(msgspec.Struct, frozen=True):
    """Message from a slot to its batch: it may play its next episode while this one is stored."""

    slot: Slot
    episode_id: str


class EpisodeDone(msgspec.Struct, frozen=True):
    """Message from a slot to its batch: the episode is over; ``problem`` is the exception that ended it, if any."""

    slot: Slot
    episode_id: str
    problem: BaseException | None


class RunningEpisode(msgspec.Struct):
    """An episode that a slot plays.

    Attributes:
        deadline_s: seconds since the start, without pauses, after which the slot is abandoned.
        grace_s: seconds that a cancelled episode has to end after its asyncio task was cancelled.
        n_put_backs: number of times that this episode was put back, because its server was gone before the reset was
            complete.
        is_played: whether its slot may play the next episode, while this one is stored.
    """

    slot: Slot
    header: EpisodeHeader
    feed: EpisodeFeed
    clock: Clock
    deadline_s: float
    grace_s: float
    step_grace_s: float = STEP_GRACE_S
    n_put_backs: int = 0
    control: RemoteControl = msgspec.field(default_factory=lambda: RemoteControl("", lambda frame: None, Clock()))
    is_played: bool = False
    _task_stopped: bool = False
    _cancelled_at: float | None = None
    _overdue_since: float | None = None
    _created_s: float = 0.0

    def __post_init__(self) -> None:
        self._created_s = self.clock.monotonic()

    def start(self, *, paused: bool) -> None:
        self.control = self.slot.play(self.header, self.feed, paused=paused)

    @property
    def planned(self) -> PlannedEpisode:
        header = self.header
        return PlannedEpisode(task_index=header.task_index, attempt=header.attempt, seed=header.seed or 0)

    def apply(self, command: EpisodeCommand) -> None:
        if (outcome := command.end_outcome) is not None:
            self.control.cancel(outcome)
            self._cancelled_at = self._cancelled_at or self.clock.monotonic()
            if command.name == "abort":
                self._cancelled_at = float("-inf")
            return
        match command.name:
            case "pause":
                self.control.pause()
            case "resume":
                self.control.resume()
            case "step":
                self.control.step()

    def remaining_s(self) -> float:
        """Return the seconds after which ``is_overdue`` must be called again."""
        if self._cancelled_at is not None:
            return 0.1
        if self._overdue_since is not None:
            return self._overdue_since + OVERDUE_S - self.clock.monotonic()
        return self._time_left_s()

    def is_overdue(self) -> bool:
        """Return whether the slot must be abandoned: past the deadline, or too long after a cancellation.

        If a cancelled episode does not end within ``step_grace_s``, its asyncio task is cancelled. An episode is past
        its deadline only after it has been so for ``OVERDUE_S``: if this process was stopped for a time, its end may
        have arrived and not been read yet.
        """
        now = self.clock.monotonic()
        if self._cancelled_at is None:
            if self._time_left_s() >= 0:
                self._overdue_since = None
            elif self._overdue_since is None:
                self._overdue_since = now
            return self._overdue_since is not None and now - self._overdue_since > OVERDUE_S
        waited_s = now - self._cancelled_at
        if waited_s > self.step_grace_s and not (self._task_stopped or self.is_played):
            self._task_stopped = True
            self.control.stop_task()
        return waited_s > self.step_grace_s + self.grace_s

    def _time_left_s(self) -> float:
        now, started_s = self.clock.monotonic(), self.feed.recorder.started_s
        if started_s is None:
            return self._created_s + START_TIMEOUT_S - now
        return self.deadline_s - (now - started_s - self.control.paused_s())

    def abandon(self) -> None:
        """Store what has arrived of the episode, or is on the disk; ignore all later events of its slot."""
        self._abandon_feed(Outcome.TIMEOUT, ErrorInfo("slot_abandoned", self._abandon_reason(), ""))
        if not self.is_played:
            self.slot.abandon()

    def fail(self, problem: BaseException) -> None:
        """Take note of an exception outside the agent and the environment; store an episode that it left without end.

        An episode for which files, memory or threads ran out is stored by the next start, and played again.
        """
        self.feed.note_problem(problem)
        if self.feed.recorder.is_started and not (self.feed.has_ended or self.feed.is_held or self.feed.shortage):
            self.feed.abandon(Outcome.ERROR, create_error_info(problem))

    def abandon_lost(self, lost: WorkerLost) -> None:
        """Store what has arrived of the episode, or is on the disk, after its worker was lost."""
        if self.feed.recorder.is_started:
            self._abandon_feed(Outcome.INTERRUPTED, ErrorInfo("worker_lost", str(lost), ""))
        else:
            self.feed.recorder.discard()  # its worker may have been about to create the journal

    def _abandon_feed(self, outcome: Outcome, error: ErrorInfo) -> None:
        """Use ``outcome`` and ``error`` unless the episode had its outcome, or a command ended it."""
        if (decided := self.control.decided) is not None:
            self.feed.abandon(decided.outcome, decided.error)
        else:
            self.feed.abandon(self.control.cancel_outcome or outcome, error)

    def _abandon_reason(self) -> str:
        if self._cancelled_at is None:
            return f"The episode did not end within {self.deadline_s:g} s"
        waited_s = self.clock.monotonic() - self._cancelled_at
        if math.isinf(waited_s):
            return "The episode was abandoned immediately, in the middle of a step"
        return f"The episode was cancelled and did not end within {waited_s:.1f} s"


class RunningEpisodes(dict[str, RunningEpisode]):
    """The episodes of a batch by id that have not ended, or are being stored; other threads may read the ids."""

    @property
    def n_playing(self) -> int:
        return sum(not episode.is_played for episode in self.values())

    def free_slot(self, played: EpisodePlayed) -> bool:
        """Return whether the slot of an episode may play the next one, because few enough others are being stored.

        A slot has at most one of them. Its row of the trace usually stays in order; spans that overlap get another row.
        """
        episode, storing = self.get(played.episode_id), [other.slot for other in self.values() if other.is_played]
        if episode is None or played.slot in storing or len(storing) >= MAX_STORING:
            return False
        episode.is_played = True
        return True
