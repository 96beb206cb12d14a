"""State of a running episode in its batch: its slot, commands and deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from runner.batch.episode_feed import EpisodeFeed, Publish
from runner.batch.spec import MAX_STORING, SPARE_BYTES, SPARE_FILES, PlannedEpisode, ResolvedBatch
from runner.batch.workspace import Workspace
from runner.episode.control import EpisodeControl
from runner.plugins import installed_versions
from runner.pool.protocol import Slot, WorkerLost
from runner.store import EpisodeRecorder
from runner.tracing import create_error_info
from runner.types import EpisodeHeader, ErrorInfo, Outcome
from runner.util.clock import Clock, new_ulid
from runner.util.resources import SpareResources

CommandName: TypeAlias = Literal["cancel", "interrupt", "abort", "pause", "resume", "step"]

STEP_GRACE_S = 2.0
"""Seconds that a cancelled episode has to finish its step before its asyncio task is cancelled."""
OVERDUE_S = 1.0
"""Seconds that an episode must be past its deadline before its slot is abandoned."""
START_TIMEOUT_S = 120.0
"""Seconds that a worker has to start an episode; more than a pool needs to give up a worker that does not start."""
MAX_PUT_BACKS = 3
"""Maximum number of times that an episode is put back; after that, the episode is recorded as an error."""


class EpisodeCommand(msgspec.Struct, frozen=True):
    """A command to one episode of a batch, or to the whole batch if ``episode_id`` is None.

    ``cancel`` ends the target for good. ``interrupt`` ends it so that it can be resumed later. ``abort`` is a
    ``cancel`` that does not wait for running steps.
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
    control: EpisodeControl = msgspec.field(default_factory=EpisodeControl)
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
            self.slot.stop_task()
        return waited_s > self.step_grace_s + self.grace_s

    def _time_left_s(self) -> float:
        now, started_s = self.clock.monotonic(), self.feed.started_s
        if started_s is None:
            return self._created_s + START_TIMEOUT_S - now
        return self.deadline_s - (now - started_s - self.control.paused_s())

    def abandon(self) -> None:
        """Store the part of the episode that its journal contains; ignore all later events of its slot."""
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
        """Store the part of the episode that its journal contains, after its worker was lost."""
        if self.feed.recorder.is_started:
            self._abandon_feed(Outcome.INTERRUPTED, ErrorInfo("worker_lost", str(lost), ""))

    def _abandon_feed(self, outcome: Outcome, error: ErrorInfo) -> None:
        """Use ``outcome`` and ``error`` unless the episode had its outcome, or a command ended it."""
        control, final = self.control, self.control.final_outcome
        self.feed.abandon(final or control.cancel_outcome or outcome, control.final_error if final else error)

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


class EpisodeStarter:
    """Prepares the episodes of one batch; ``on_done`` receives, on any thread, that one was played, and its end."""

    def __init__(
        self,
        batch: ResolvedBatch,
        workspace: Workspace,
        *,
        batch_id: str,
        battery_id: str | None,
        currency: str | None,
        publish: Publish,
        on_done: Callable[[EpisodePlayed | EpisodeDone], object],
        grace_s: float,
        step_grace_s: float,
    ) -> None:
        self._spec = batch.spec
        self._workspace = workspace
        self._placement = batch.placement
        self._batch_id = batch_id
        self._battery_id, self._currency = battery_id, currency
        self._publish = publish
        self._on_done = on_done
        self._grace_s, self._step_grace_s = grace_s, step_grace_s
        self._versions = {**workspace.versions, **installed_versions(batch.placement.packages)}
        self._trace_file = workspace.trace_file(batch_id)
        self._spare = SpareResources(0)

    def reserve(self) -> None:
        self._spare = SpareResources(SPARE_FILES, SPARE_BYTES)

    def close(self) -> None:
        self._spare.release()
        self._workspace.index.write_waiting()

    def prepare(
        self, slot: Slot, planned: PlannedEpisode, earlier: RunningEpisode | None, *, can_wait: bool
    ) -> RunningEpisode:
        """Return an episode that is about to start; ``earlier`` is its earlier start if it was put back.

        ``can_wait``: whether the batch waits for a server that is gone.
        """
        header, n_put_backs, clock = self._header(planned, slot), 0, self._workspace.clock
        if earlier is not None:
            earlier.feed.recorder.discard()
            header = msgspec.structs.replace(header, episode_id=earlier.header.episode_id)
            n_put_backs = earlier.n_put_backs + 1
        feed = EpisodeFeed(
            header,
            EpisodeRecorder(self._workspace.store, self._workspace.index, clock=clock, meter=self._workspace.meter),
            publish=self._publish,
            trace_file=self._trace_file,
            track=slot.name,
            on_free=lambda problem: self._on_done(EpisodeDone(slot, header.episode_id, problem)),
            on_played=lambda: self._on_done(EpisodePlayed(slot, header.episode_id)),
            now=clock.monotonic,
            can_put_back=can_wait and n_put_backs < MAX_PUT_BACKS,
            was_started=n_put_backs > 0,
            spare=self._spare,
        )
        return RunningEpisode(
            slot=slot,
            header=header,
            feed=feed,
            clock=clock,
            deadline_s=self._spec.limits.max_duration_s + self._grace_s,
            grace_s=self._grace_s,
            step_grace_s=self._step_grace_s,
            n_put_backs=n_put_backs,
        )

    def _header(self, planned: PlannedEpisode, slot: Slot) -> EpisodeHeader:
        spec, workspace = self._spec, self._workspace
        return EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=self._batch_id,
            battery_id=self._battery_id,
            node=workspace.node,
            boot=workspace.boot,
            profile=workspace.profile,
            env=spec.env,
            transport=self._placement.transport,
            data_label=self._placement.data_label,
            mode=spec.mode,
            task_index=planned.task_index,
            seed=planned.seed,
            attempt=planned.attempt,
            agent=spec.agent,
            model=spec.model,
            limits=spec.limits.label,
            n_planned=spec.n_planned,
            started_at=workspace.clock.now(),
            versions=self._versions,
            worker=slot.info,
            currency=self._currency,
        )
