"""State of a running episode in its batch: recording, commands and deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from runner.batch.result import UnstoredEpisode
from runner.batch.spec import PlannedEpisode
from runner.episode.control import EpisodeControl
from runner.errors import ServerGone, StoreError, catch_foreign
from runner.store import EpisodeRecord, EpisodeRecorder
from runner.types import Chat, EpisodeEnded, EpisodeEvent, EpisodeHeader, ErrorInfo, Flow, Outcome, Span
from runner.util.clock import Clock
from runner.util.resources import Resource, SpareResources, find_shortage
from runner.worker.episode_thread import EpisodeWorker

CommandName: TypeAlias = Literal["cancel", "interrupt", "abort", "pause", "resume", "step"]

STEP_GRACE_S = 2.0
"""Seconds that a cancelled episode has to finish its step before its asyncio task is cancelled."""


class EpisodeCommand(msgspec.Struct, frozen=True):
    """A command to one episode of a batch, or to the whole batch if ``episode_id`` is None.

    ``cancel`` ends the target for good. ``interrupt`` ends it so that it can be resumed later. ``abort`` is a
    ``cancel`` that does not wait for running steps.
    """

    name: CommandName
    episode_id: str | None = None

    @property
    def end_outcome(self) -> Outcome | None:
        """Outcome of an episode that this command ends; None if the command does not end episodes."""
        if self.name in ("cancel", "abort"):
            return Outcome.CANCELLED
        return Outcome.INTERRUPTED if self.name == "interrupt" else None


@dataclass
class EpisodeSpans:
    """The recorded spans and flows of an episode; ``pop_closed`` returns each closed span once."""

    spans: list[Span]
    flows: list[Flow]
    open_spans: Callable[[], list[Span]]
    n_returned: int = 0

    def pop_closed(self) -> list[Span]:
        """Return the spans that were closed since the last call."""
        closed = self.spans[self.n_returned :]
        self.n_returned += len(closed)
        return closed


@dataclass
class RunningEpisode:
    """An episode that a worker plays.

    Attributes:
        deadline_s: seconds, without pauses, after which the worker is abandoned.
        grace_s: seconds that a cancelled episode has to end after its asyncio task was cancelled.
        step_grace_s: seconds that a cancelled episode has to finish its step before its asyncio task is cancelled.
        n_put_backs: number of times that this episode was put back, because its server was gone before the reset was
            complete.
        can_put_back: whether the episode may be put back again.
        problems: errors of the recorder; they are not raised in the episode.
        gone: the error that ended the episode, if its server was gone.
        spare: files and memory that are released as soon as the episode runs out of them.
        shortage: what the episode or its recorder ran out of, if anything.
        held: the events of the end of an episode that may be put back; they are neither recorded nor emitted yet.
        unstored_end: the end of the episode, until it is stored.
    """

    worker: EpisodeWorker
    header: EpisodeHeader
    recorder: EpisodeRecorder
    control: EpisodeControl
    clock: Clock
    deadline_s: float
    grace_s: float
    step_grace_s: float = STEP_GRACE_S
    n_put_backs: int = 0
    can_put_back: bool = False
    problems: list[BaseException] = field(default_factory=list)
    gone: ServerGone | None = None
    spare: SpareResources | None = None
    shortage: Resource | None = None
    held: list[EpisodeEvent] = field(default_factory=list)
    unstored_end: EpisodeEnded | None = None
    _abandoned: bool = False
    _was_reset: bool = False
    _interrupted: bool = False
    _cancelled_at: float | None = None

    def __post_init__(self) -> None:
        self._started = self.clock.monotonic()

    def record(self, event: EpisodeEvent) -> bool:
        """Record an event; append an error of the recorder to ``problems``.

        Returns:
            Whether observers may receive it: not the end of an episode before it is stored, because another end would
            be stored if the process died, and nothing of an abandoned episode.
        """
        with catch_foreign(self.note_problem):
            self.recorder.on_event(event)
        if self.shortage is None and self.recorder.journal_error is not None:
            self._note_shortage(self.recorder.journal_error)
        if isinstance(event, EpisodeEnded) and not self.recorder.is_stored:
            self.unstored_end = event
            return False
        return not self._abandoned

    @property
    def planned(self) -> PlannedEpisode:
        """The plan of the episode."""
        header = self.header
        return PlannedEpisode(task_index=header.task_index, attempt=header.attempt, seed=header.seed or 0)

    def note_error(self, exc: BaseException) -> None:
        """Take note of the error that ends the episode."""
        self._note_shortage(exc)
        self.gone = exc if isinstance(exc, ServerGone) and self.shortage is None else None

    def note_problem(self, exc: BaseException) -> None:
        """Add an error to ``problems``."""
        self.problems.append(exc)
        self._note_shortage(exc)

    def _note_shortage(self, exc: BaseException) -> None:
        self.shortage = self.shortage or find_shortage(exc)
        if self.shortage is not None and self.spare is not None:
            self.spare.release()

    def finish(self, record: EpisodeRecord, emit: Callable[[EpisodeEvent], object]) -> UnstoredEpisode | None:
        """Store an episode again if files ran out, and emit its end if that succeeds; return it if it is not stored."""
        self._store_again()
        if not self.recorder.is_stored:
            return UnstoredEpisode(record, self.unstored_end)
        if self.unstored_end is not None:
            emit(self.unstored_end)
        return None

    def _store_again(self) -> None:
        """Store an episode again if files ran out while it was stored; forget the problem if this succeeds."""
        if not any(isinstance(problem, StoreError) and find_shortage(problem) for problem in self.problems):
            return
        failures: list[BaseException] = []
        with catch_foreign(failures.append):
            self.recorder.store_again()
        if not failures:
            self.problems = [problem for problem in self.problems if find_shortage(problem) is None]

    def hold_back(self, event: EpisodeEvent) -> bool:
        """Hold an event back if it belongs to the end of an episode that may be put back; return whether it is held."""
        is_held = self.can_put_back and self.gone is not None and not self._was_reset
        if is_held:
            self.held.append(event)
        return is_held

    def take_held(self, outcome: Outcome | None) -> list[EpisodeEvent]:
        """Return the held events and forget them; ``outcome`` replaces the error that ended the episode, if given."""
        held, self.held = self.held, []
        return held if outcome is None else [_with_outcome(event, outcome) for event in held]

    def record_reset(self, observation: Chat, env_episode_id: str) -> None:
        """Record the reset observation; append an error of the recorder to ``problems``."""
        self._was_reset = True
        with catch_foreign(self.note_problem):
            self.recorder.on_reset(observation, env_episode_id)

    def apply(self, command: EpisodeCommand) -> None:
        """Apply a command to the episode."""
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
        return self.deadline_s - (self.clock.monotonic() - self._started - self.control.paused_s())

    def is_overdue(self) -> bool:
        """Return whether the worker must be abandoned: past the deadline, or too long after a cancellation.

        If a cancelled episode does not end within ``step_grace_s``, its asyncio task is cancelled.
        """
        if self._cancelled_at is None:
            return self.remaining_s() < 0
        waited_s = self.clock.monotonic() - self._cancelled_at
        if waited_s > self.step_grace_s and not self._interrupted:
            self._interrupted = True
            self.worker.interrupt()
        return waited_s > self.step_grace_s + self.grace_s

    def abandon(self) -> None:
        """Store the part of the episode that its journal contains; ignore all later events of its worker."""
        self._abandoned = True
        final_outcome = self.control.final_outcome
        outcome = final_outcome or self.control.cancel_outcome or Outcome.TIMEOUT
        error = ErrorInfo("slot_abandoned", self._abandon_reason(), "")
        with catch_foreign(self.note_problem):
            self.recorder.abandon(outcome, self.control.final_error if final_outcome else error)
        self.worker.close()

    def _abandon_reason(self) -> str:
        if self._cancelled_at is None:
            return f"The episode did not end within {self.deadline_s:g} s"
        waited_s = self.clock.monotonic() - self._cancelled_at
        if math.isinf(waited_s):
            return "The episode was abandoned immediately, in the middle of a step"
        return f"The episode was cancelled and did not end within {waited_s:.1f} s"


def _with_outcome(event: EpisodeEvent, outcome: Outcome) -> EpisodeEvent:
    if not isinstance(event, EpisodeEnded):
        return event
    trajectory = msgspec.structs.replace(event.trajectory, outcome=outcome, error_info=None)
    return msgspec.structs.replace(event, trajectory=trajectory)
