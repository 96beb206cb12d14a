"""A running batch: starts episodes on workers, enforces their deadlines and applies commands."""

from __future__ import annotations

import itertools
import logging
import queue
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from ulid import ULID

from runner import plugins
from runner.batch.episode_queue import EpisodeQueue, split_plan
from runner.batch.observers import Observer, ObserverHub
from runner.batch.result import BatchResult, BatchStats, BatchStatus, InterruptedBy, UnstoredEpisode
from runner.batch.running_episode import STEP_GRACE_S, CommandName, EpisodeCommand, EpisodeSpans, RunningEpisode
from runner.batch.server_wait import CHECK_INTERVAL_S, ServerChecked, ServerWait, Waiting
from runner.batch.slots import SPARE_BYTES, SPARE_FILES
from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.batch.workspace import Workspace
from runner.envs.placement import Placement, embedded_placement
from runner.episode.control import EpisodeControl
from runner.episode.runner import EpisodeContext
from runner.errors import catch_foreign, log_failure
from runner.inference.profile_models import Models
from runner.store import EpisodeRecord, EpisodeRecorder
from runner.tracing import PerfettoTrack, SpanList, Tracer
from runner.types import EpisodeEvent, EpisodeHeader, EpisodeStarted, Outcome
from runner.util.resources import SpareResources, describe_shortage
from runner.worker.episode_thread import EpisodeWorker, WorkerFinished, start_workers

logger = logging.getLogger(__name__)

MAX_PUT_BACKS = 3
"""Maximum number of times that an episode is put back; after that, the episode is recorded as an error."""


class Batch:
    """Plays one batch to its end; commands may come from any thread or a signal handler.

    Args:
        spec: the batch, with registered names (``BatchSpec.validated``).
        workspace: the state directory that stores the episodes.
        observers: called with every event and progress item; each observer runs on its own thread.
        on_record: called with every finished episode after it is stored, on the thread that called ``run``.
        batch_id: id of the batch; None creates a new id.
        battery_id: id of the battery that the batch belongs to; None: the batch was started alone.
        earlier_episodes: stored episodes of this batch from an earlier run; finished episodes are not played again.
        grace_s: seconds that an episode may exceed its time limit, or take to end after its task was cancelled, before
            its worker is abandoned.
        step_grace_s: seconds that a cancelled episode has to finish its step before its task is cancelled.
        check_interval_s: seconds between two health checks of a server that is gone.
        placement: where the environment runs (embedded or HTTP); by default embedded.
        models: the profile's models, required if the agent uses one; receives the reward of each episode as feedback.
    """

    def __init__(
        self,
        spec: BatchSpec,
        workspace: Workspace,
        *,
        observers: Iterable[Observer] = (),
        on_record: Callable[[EpisodeRecord], None] | None = None,
        batch_id: str | None = None,
        battery_id: str | None = None,
        earlier_episodes: Iterable[EpisodeRecord] = (),
        grace_s: float = 5.0,
        step_grace_s: float = STEP_GRACE_S,
        check_interval_s: float = CHECK_INTERVAL_S,
        placement: Placement | None = None,
        models: Models | None = None,
    ) -> None:
        """Prepare the batch; ``run`` starts the episodes."""
        self._placement = placement = placement or embedded_placement(spec.env, spec.mode)
        self.spec = msgspec.structs.replace(spec, mode=placement.mode)
        self.batch_id = batch_id or str(ULID())
        self.battery_id = battery_id
        self._workspace = workspace
        self._clock = workspace.clock
        self._grace_s, self._step_grace_s = grace_s, step_grace_s
        callbacks = (on_record, None if models is None else models.feedback)
        self._record_callbacks = [callback for callback in callbacks if callback is not None]
        self._hub = ObserverHub(observers)
        self._runner = spec.build_runner(placement, models)
        self._versions = {**workspace.versions, **plugins.installed_versions(placement.packages)}
        self._trace_file = workspace.trace_file(self.batch_id)
        self._stats = BatchStats()
        self.unstored: list[UnstoredEpisode] = []
        """The ended episodes that could not be stored; the first one interrupts the batch."""
        finished, left = split_plan(spec, earlier_episodes)
        for record in finished:
            self._stats.add(record)
        self._queue = EpisodeQueue(left)
        self._n_before = len(self._stats.episodes)
        self._running: dict[EpisodeWorker, RunningEpisode] = {}
        self._inbox: queue.SimpleQueue[WorkerFinished | EpisodeCommand | ServerChecked] = queue.SimpleQueue()
        self._wait = ServerWait(self.batch_id, spec.env, placement, self._clock, self._inbox.put, check_interval_s)
        self._interruption: tuple[str, InterruptedBy] | None = None
        self._spare = SpareResources(0)
        self._worker_numbers = itertools.count()
        self._status: BatchStatus = "completed"
        self._paused = False
        self._seq = itertools.count()
        self._started = self._clock.monotonic()

    @property
    def episode_ids(self) -> set[str]:
        """Ids of the running episodes, and of those that were put back."""
        return {episode.header.episode_id for episode in list(self._running.values())} | self._queue.put_back_ids

    def accepts(self, name: CommandName, episode_id: str) -> bool:
        """Return whether a command has an effect on an episode; an episode that was put back can only be ended."""
        ends = EpisodeCommand(name).end_outcome is not None
        return episode_id in self.episode_ids and (ends or episode_id not in self._queue.put_back_ids)

    @property
    def paused(self) -> bool:
        """Whether the episodes are paused."""
        return self._paused

    @property
    def waiting(self) -> Waiting | None:
        """The wait for the environment server, if it is gone."""
        return self._wait.waiting

    def command(self, name: CommandName, episode_id: str | None = None) -> None:
        """Send a command to one episode, or to all if ``episode_id`` is None; it takes effect before the next step."""
        self._inbox.put(EpisodeCommand(name, episode_id))

    def run(self) -> BatchResult:
        """Play all planned episodes and return the result.

        A command, a full disk, a server that stays away, or a lack of files, memory or threads may end it earlier.
        """
        self._workspace.store.create_batch_folder(self.batch_id)
        self._apply_early_commands()
        self._spare = SpareResources(SPARE_FILES, SPARE_BYTES)
        idle = self._new_workers(min(self.spec.concurrency, len(self._queue)), at_least=1)
        while self._queue or self._running:
            while idle and self._queue.can_start and not self._wait.active:
                self._start_episode(idle.pop(), *self._queue.pop())
            idle += self._wait_for_workers()
            self._update_wait()
        self._wait.close()
        self._spare.release()
        for worker in idle:
            worker.close()
        if self._status != "completed":
            self._emit_progress()
        self._hub.close()
        interruption, interrupted_by = self._interruption or (None, None)
        return msgspec.structs.replace(self._result(), interruption=interruption, interrupted_by=interrupted_by)

    def _result(self) -> BatchResult:
        return self._stats.result(
            self.spec,
            batch_id=self.batch_id,
            battery_id=self.battery_id,
            status=self._status,
            data_label=self._placement.data_label,
            duration_s=self._clock.monotonic() - self._started,
        )

    def _apply_early_commands(self) -> None:
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, EpisodeCommand):
                self._apply(item)

    def _start_episode(self, worker: EpisodeWorker, planned: PlannedEpisode, earlier: RunningEpisode | None) -> None:
        spans, trace = SpanList(), self._trace_file.for_track(worker.name)
        tracer = Tracer(self.spec.tracing, (spans, trace), track=worker.name)
        source = EpisodeSpans(spans.spans, spans.flows, tracer.open_spans)
        header, n_put_backs = self._header(planned), 0
        if earlier is not None:
            earlier.recorder.discard()
            header = msgspec.structs.replace(header, episode_id=earlier.header.episode_id)
            n_put_backs = earlier.n_put_backs + 1
        episode = self._running[worker] = RunningEpisode(
            worker=worker,
            header=header,
            recorder=EpisodeRecorder(self._workspace.store, self._workspace.index, source, self._clock),
            control=EpisodeControl(self._clock),
            clock=self._clock,
            deadline_s=self.spec.limits.max_duration_s + self._grace_s,
            grace_s=self._grace_s,
            step_grace_s=self._step_grace_s,
            n_put_backs=n_put_backs,
            spare=self._spare,
            can_put_back=self._wait.is_possible and n_put_backs < MAX_PUT_BACKS,
        )
        if self._paused:
            episode.control.pause()
        worker.submit(partial(self._run_episode, episode, tracer, trace, source), partial(self._on_worker_done, worker))

    async def _run_episode(
        self, episode: RunningEpisode, tracer: Tracer, trace: PerfettoTrack, spans: EpisodeSpans
    ) -> None:

        def emit(event: EpisodeEvent) -> None:
            if not episode.hold_back(event):
                self._deliver(episode, event)

        header = episode.header
        context = EpisodeContext(
            header=header,
            control=episode.control,
            tracer=tracer,
            emit=emit,
            on_reset=episode.record_reset,
            on_error=episode.note_error,
            pop_closed_spans=spans.pop_closed,
            clock=self._clock,
        )
        try:
            await self._runner.play_episode({"task_index": header.task_index, "seed": header.seed}, context=context)
        finally:
            with catch_foreign(log_failure(logger, "writing the trace")):
                trace.flush()

    def _deliver(self, episode: RunningEpisode, event: EpisodeEvent) -> None:
        known = isinstance(event, EpisodeStarted) and episode.n_put_backs  # observers know it since its first start
        if episode.record(event) and not known:
            self._hub.emit(event)

    def _on_worker_done(self, worker: EpisodeWorker, problem: BaseException | None) -> None:
        self._inbox.put(WorkerFinished(worker, problem))

    def _header(self, planned: PlannedEpisode) -> EpisodeHeader:
        header = self._workspace.header(self.spec, planned, batch_id=self.batch_id, battery_id=self.battery_id)
        transport, data_label = self._placement.transport, self._placement.data_label
        return msgspec.structs.replace(header, transport=transport, data_label=data_label, versions=self._versions)

    def _new_workers(self, n_workers: int, *, at_least: int) -> list[EpisodeWorker]:
        """Start workers; interrupt the batch if the system does not allow ``at_least`` of them."""
        workers, shortage = start_workers(n_workers, lambda: f"slot {next(self._worker_numbers)}")
        if shortage is not None:
            text = f"concurrency lowered from {n_workers} to {len(workers)}: {describe_shortage(shortage)}"
            logger.warning("batch %s: %s", self.batch_id, text)
            if len(workers) < at_least:
                self._interrupt(text, "resources")
        return workers

    def _wait_for_workers(self) -> list[EpisodeWorker]:
        """Wait for a finished episode, a command or the next deadline; return the workers that are free again."""
        remaining_s = min((episode.remaining_s() for episode in self._running.values()), default=1.0)
        remaining_s = min(remaining_s, self._wait.remaining_s)
        freed: list[EpisodeWorker] = []
        try:
            item = self._inbox.get(timeout=min(1.0, max(0.01, remaining_s)))
        except queue.Empty:
            return self._abandon_overdue()
        if isinstance(item, EpisodeCommand):
            self._apply(item)
        elif isinstance(item, ServerChecked):
            self._apply_check(item)
        else:
            freed += self._finish(item)
        return freed + self._abandon_overdue()

    def _finish(self, finished: WorkerFinished) -> list[EpisodeWorker]:
        episode = self._running.pop(finished.worker, None)
        if episode is None:  # an abandoned worker finished after all
            return []
        if finished.problem is not None and episode.control.cancel_outcome is None:
            episode.note_problem(finished.problem)
        if not episode.held:
            self._record_result(episode)
        elif (outcome := episode.control.cancel_outcome) is not None:
            self._release(episode, outcome)
        else:
            self._queue.put_back(episode)
        if episode.gone is not None:
            self._begin_wait()
        return [finished.worker]

    def _begin_wait(self) -> None:
        if self._wait.is_possible and self._queue:
            self._wait.begin(paused=self._paused)

    def _apply_check(self, checked: ServerChecked) -> None:
        was_waiting = self._wait.waiting is not None
        if not self._wait.is_back(checked):
            return

        def starts_again(episode: RunningEpisode) -> bool:
            was_dropped = episode.gone is not None and not episode.gone.timed_out
            return was_waiting or (checked.state.usable and was_dropped)  # else the server is only slow or broken

        for episode in self._queue.return_all(starts_again):
            self._release(episode)
        if was_waiting:
            self._emit_progress()

    def _update_wait(self) -> None:
        """Report the seconds left of a wait; interrupt the batch when the server did not come back in time."""
        if self._wait.tick():
            self._emit_progress()
        if (expiry := self._wait.expiry) is not None:
            self._interrupt(expiry, "server")

    def _interrupt(self, reason: str, interrupted_by: InterruptedBy) -> None:
        if self._status != "completed":
            return
        self._interruption = reason, interrupted_by
        n_left = len(self._queue) + len(self._running)
        left = f"{n_left} of {self.spec.n_planned} episodes left"
        logger.warning("batch %s: interrupted with %s: %s", self.batch_id, left, reason)
        self._apply(EpisodeCommand("interrupt"))

    def _release(self, episode: RunningEpisode, outcome: Outcome | None = None) -> None:
        """Deliver the held end of an episode that is not played again; ``outcome`` replaces its error, if given."""
        for event in episode.take_held(outcome):
            self._deliver(episode, event)
        self._record_result(episode)

    def _abandon_overdue(self) -> list[EpisodeWorker]:
        """Abandon workers whose episodes exceed the deadline or ignore a cancellation; return as many new workers."""
        overdue = [episode for episode in self._running.values() if episode.is_overdue()]
        for episode in overdue:
            del self._running[episode.worker]
            episode.abandon()
            self._record_result(episode)
        return self._new_workers(len(overdue), at_least=len(overdue))

    def _record_result(self, episode: RunningEpisode) -> None:
        if (record := episode.recorder.record) is not None:
            self._stats.add(record)
            if record.outcome in (Outcome.ERROR, Outcome.TIMEOUT) and episode.shortage is None:
                self._begin_wait()  # the server may hang or be another one now
            unstored = episode.finish(record, self._hub.emit)
            if unstored is not None:
                self.unstored.append(unstored)
            for callback in self._record_callbacks if unstored is None else ():
                with catch_foreign(log_failure(logger, "a callback for a finished episode")):
                    callback(record)
            if unstored is not None and self._status == "completed" and episode.shortage is None:
                logger.warning("episode %s could not be stored; no further episodes start", record.episode_id)
                self._apply(EpisodeCommand("interrupt"))
        if episode.shortage is not None:
            self._interrupt(describe_shortage(episode.shortage), "resources")
        for problem in episode.problems:
            self._stats.problems.append(f"episode {episode.header.episode_id}: {type(problem).__name__}: {problem}")
        self._emit_progress()

    def _emit_progress(self) -> None:
        n_left, n_new = self.spec.n_planned - len(self._stats.episodes), len(self._stats.episodes) - self._n_before
        elapsed, waiting = self._clock.monotonic() - self._started, self._wait.waiting
        progress = self._stats.progress(
            self.batch_id,
            self.spec.n_planned,
            at=self._clock.now(),
            seq=next(self._seq),
            eta_s=elapsed / n_new * n_left if n_new else None,
            waiting_for=None if waiting is None else waiting.server,
            waiting_s=None if waiting is None else waiting.left_s,
            interrupted=self._status == "interrupted",
            interruption=None if self._interruption is None else self._interruption[0],
        )
        self._hub.emit(progress)

    def _apply(self, command: EpisodeCommand) -> None:
        for episode in self._running.values():
            if command.episode_id in (None, episode.header.episode_id):
                episode.apply(command)
        if command.episode_id is not None:
            put_back = self._queue.remove(command.episode_id) if command.end_outcome is not None else None
            if put_back is not None:
                self._release(put_back, command.end_outcome)
        elif command.end_outcome is not None:
            if self._status != "cancelled":  # a cancelled batch stays cancelled when its node stops
                self._status = "interrupted" if command.name == "interrupt" else "cancelled"
            self._wait.close()
            for episode in self._queue.clear():
                self._release(episode, command.end_outcome)
        else:
            self._paused = command.name != "resume"
            self._wait.set_paused(self._paused)
