"""A running batch: starts episodes in free slots, enforces their deadlines and applies commands."""

from __future__ import annotations

import itertools
import logging
import queue
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from operator import attrgetter
from typing import TypeAlias

import msgspec

from runner.batch.observers import Observer, ObserverHub, SelectiveObserver, UnstoredEpisode
from runner.batch.result import BatchResult, BatchStats, BatchStatus, InterruptedBy, split_plan
from runner.batch.running_episode import (
    MAX_PUT_BACKS,
    STEP_GRACE_S,
    CommandName,
    EpisodeCommand,
    EpisodeDone,
    EpisodeFeed,
    EpisodePlayed,
    RunningEpisode,
    RunningEpisodes,
)
from runner.batch.spec import SPARE_BYTES, SPARE_FILES, BatchSpec, PlannedEpisode, ResolvedBatch
from runner.batch.stopping import CHECK_INTERVAL_S, BudgetWatch, ServerChecked, ServerWait, Waiting
from runner.batch.workspace import Workspace
from runner.episode.live_items import worker_item
from runner.errors import catch_foreign, log_failure
from runner.inference.profile_models import Models
from runner.plugins import installed_versions
from runner.pool.choose import open_pool
from runner.pool.worker import Slot, WorkerChange, WorkerLost, WorkerPool
from runner.store import EpisodeRecord, EpisodeRecorder
from runner.types import EpisodeHeader, Outcome, WorkerState
from runner.util.clock import Stopwatch, new_ulid
from runner.util.resources import SpareResources, describe_shortage
from runner.worker.frames import Watch

logger = logging.getLogger(__name__)

MAX_REPLAYS = 2
"""How often an episode is played again after it ended its worker alone."""
MAX_SHARED_LOSSES = 2
"""How many lost workers an episode may have shared with others, any of which may have ended them; after that it plays
alone."""


class SlotReady(msgspec.Struct, frozen=True):
    slot: Slot


_Message: TypeAlias = EpisodePlayed | EpisodeDone | EpisodeCommand | ServerChecked | SlotReady | WorkerChange


class EpisodeQueue:
    """Planned episodes in the order of the plan; only the thread of the batch changes the queue.

    An episode whose reset did not complete because its server was gone is put back: it starts again, with the
    same id, when the server is back.
    """

    def __init__(self, planned: Iterable[PlannedEpisode]) -> None:
        self._planned = deque(planned)
        self._alone: deque[PlannedEpisode] = deque()
        self._put_back: dict[PlannedEpisode, RunningEpisode] = {}
        self._returned: set[PlannedEpisode] = set()

    def __len__(self) -> int:
        return len(self._planned) + len(self._alone) + len(self._put_back.keys() - self._returned)

    @property
    def n_alone(self) -> int:
        return len(self._alone)

    @property
    def put_back_ids(self) -> set[str]:
        """Ids of the episodes that were put back; may be read from any thread."""
        return {episode.header.episode_id for episode in list(self._put_back.values())}

    @property
    def can_start(self) -> bool:
        return bool(self._planned)

    def pop(self) -> tuple[PlannedEpisode, RunningEpisode | None]:
        planned = self._planned.popleft()
        self._returned.discard(planned)
        return planned, self._put_back.pop(planned, None)

    def pop_alone(self) -> PlannedEpisode:
        return self._alone.popleft()

    def add(self, planned: PlannedEpisode, *, alone: bool = False) -> None:
        """Add an episode that starts again, to the front, or for ``pop_alone``."""
        if alone:
            self._alone.append(planned)
        else:
            self._planned.appendleft(planned)

    def put_back(self, episode: RunningEpisode) -> None:
        self._put_back[episode.planned] = episode

    def return_all(self, starts_again: Callable[[RunningEpisode], bool]) -> list[RunningEpisode]:
        """Return to the front of the queue what was put back and starts again; remove and return the other episodes."""
        removed: list[RunningEpisode] = []
        waiting = self._put_back.keys() - self._returned
        for planned in sorted(waiting, key=attrgetter("task_index", "attempt"), reverse=True):
            if starts_again(self._put_back[planned]):
                self._planned.appendleft(planned)
                self._returned.add(planned)
            else:
                removed.append(self._put_back.pop(planned))
        return removed[::-1]

    def remove(self, episode_id: str) -> RunningEpisode | None:
        for planned, episode in self._put_back.items():
            if episode.header.episode_id == episode_id:
                del self._put_back[planned]
                if planned in self._returned:
                    self._returned.discard(planned)
                    self._planned.remove(planned)
                return episode
        return None

    def drop_unstarted(self) -> None:
        """Keep only what was put back."""
        self._planned = deque(planned for planned in self._planned if planned in self._returned)
        self._alone.clear()

    def clear(self) -> list[RunningEpisode]:
        episodes = list(self._put_back.values())
        self._planned.clear()
        self._alone.clear()
        self._put_back.clear()
        self._returned.clear()
        return episodes


class SlotTable:
    """Keeps as many slots as the batch needs, at most its concurrency; only the thread of the batch calls its methods.

    ``on_change`` receives, on any thread, the slots that become usable later, for ``add_late``, and the states of
    worker processes.
    """

    def __init__(
        self,
        pool: WorkerPool,
        batch_id: str,
        concurrency: int,
        on_change: Callable[[SlotReady | WorkerChange], object],
    ) -> None:
        self._pool = pool
        self._batch_id = batch_id
        self._limit = concurrency
        self._idle: list[Slot] = []
        self._idle_alone: list[Slot] = []
        self._alone: set[Slot] = set()
        self._n_late = 0
        self._was_filled = False
        pool.open(lambda slot: on_change(SlotReady(slot)), on_change)

    def fill(self, waiting: EpisodeQueue, n_playing: int) -> str | None:
        """Start the missing slots. A shortage lowers the concurrency for good.

        Return why the batch cannot go on, if the pool failed or too few started.
        """
        self._idle = [slot for slot in self._idle if slot.usable]
        n_episodes = len(waiting) - waiting.n_alone + n_playing
        n_missing = min(self._limit, n_episodes) - len(self._idle) - n_playing - self._n_late
        if n_missing <= 0:
            return self._pool.failure
        started, shortage = self._pool.start_slots(n_missing)
        self._idle += started
        n_missing -= len(started)
        is_first, self._was_filled = not self._was_filled, True
        if shortage is None:
            self._n_late += n_missing
            return self._pool.failure
        earlier, self._limit = self._limit, len(self._idle) + n_playing + self._n_late
        if is_first:
            text = f"concurrency lowered from {earlier} to {self._limit}"
        else:
            text = f"{'a lost slot' if n_missing == 1 else f'{n_missing} lost slots'} could not be replaced"
        text = f"{text}: {describe_shortage(shortage)}"
        logger.warning("batch %s: %s", self._batch_id, text)
        # At the start one slot is enough; later, any shortage ends the batch.
        return None if is_first and started else text

    def add(self, slot: Slot) -> None:
        if slot.usable:
            (self._idle_alone if slot in self._alone else self._idle).append(slot)
        else:
            self._alone.discard(slot)

    def add_late(self, slot: Slot) -> None:
        self._n_late -= 1
        self.add(slot)

    def assign(
        self, waiting: EpisodeQueue, n_playing: int
    ) -> Iterator[tuple[Slot, PlannedEpisode, RunningEpisode | None]]:
        """Yield free slots with the episodes to start on them, as ``EpisodeQueue.pop`` returns them."""
        n_free = self._limit - n_playing
        while n_free > 0 and waiting.n_alone and (slot := self._take_alone()) is not None:
            yield slot, waiting.pop_alone(), None
            n_free -= 1
        while n_free > 0 and waiting.can_start and (slot := _take_usable(self._idle)) is not None:
            yield slot, *waiting.pop()
            n_free -= 1

    def _take_alone(self) -> Slot | None:
        """Remove and return a free slot whose worker has no other one, or any if the pool starts none of this kind.

        Return None while such slots are all busy.
        """
        self._alone = {slot for slot in self._alone if slot.usable}
        if (slot := _take_usable(self._idle_alone) or self._pool.start_alone()) is None:
            return None if self._alone else _take_usable(self._idle)
        self._alone.add(slot)
        return slot

    def close(self) -> None:
        self._pool.close()


def _take_usable(slots: list[Slot]) -> Slot | None:
    while slots:
        if (slot := slots.pop()).usable:
            return slot
    return None


class LostEpisodes:
    """Counts the episodes whose workers were lost, and decides which of them are played again, and which alone.

    Which of its episodes ended a worker is unknown. After ``MAX_SHARED_LOSSES`` an episode plays alone, where a loss is
    its own; so an episode that ends its worker every time stays interrupted, and not those that played beside it.
    """

    def __init__(self, spec: BatchSpec) -> None:
        self._replays = spec.lost_episodes == "replay"
        self._n_alone: Counter[PlannedEpisode] = Counter()
        self._n_shared: Counter[PlannedEpisode] = Counter()
        self._n_left = 0
        self._last = ""

    def starts_again(self, planned: PlannedEpisode, lost: WorkerLost) -> bool:
        """Count a loss; return whether the episode is played again."""
        self._n_alone[planned] += lost.n_suspects == 1
        self._n_shared[planned] += lost.n_suspects > 1
        n_losses = max(self._n_alone[planned], self._n_shared[planned] - MAX_SHARED_LOSSES)
        starts_again = self._replays and n_losses <= MAX_REPLAYS
        if not starts_again:
            self._n_left += 1
            self._last = str(lost)
        return starts_again

    def plays_alone(self, planned: PlannedEpisode) -> bool:
        return self._n_shared[planned] >= MAX_SHARED_LOSSES

    @property
    def interruption(self) -> str | None:
        if not self._n_left:
            return None
        episodes = "1 episode was" if self._n_left == 1 else f"{self._n_left} episodes were"
        return f"{episodes} interrupted with a lost worker; the last one: {self._last}"


class Batch:
    """Plays one batch to its end; commands may come from any thread or a signal handler.

    Args:
        observers: called with every event and progress item; each runs on its own thread unless it is inline.
        on_record: called with every finished episode after it is stored, on the thread that called ``run``.
        batch_id: id of the batch to go on with; None draws a new one.
        earlier_episodes: stored episodes of this batch from an earlier run; finished episodes are not played again.
        grace_s: seconds that an episode may exceed its time limit, or take to end after its task was cancelled, before
            its slot is abandoned.
        step_grace_s: seconds that a cancelled episode has to finish its step before its asyncio task is cancelled.
        check_interval_s: seconds between two health checks of an environment server that is gone.
        models: the profile's models, required if the agent uses one; receives the reward of each episode as feedback.
        pool: the workers that play the episodes; ``run`` starts and closes them. None: those that its spec asks for
            (``open_pool``).
        budget: what counts the episodes; None: a new one with the budget of the spec.

    Raises:
        ConfigError: the agent uses a model and there are no ``models``, or Ray cannot be used.
    """

    def __init__(
        self,
        batch: ResolvedBatch,
        workspace: Workspace,
        *,
        observers: Iterable[Observer | SelectiveObserver] = (),
        on_record: Callable[[EpisodeRecord], None] | None = None,
        batch_id: str | None = None,
        battery_id: str | None = None,
        earlier_episodes: Iterable[EpisodeRecord] = (),
        grace_s: float = 5.0,
        step_grace_s: float = STEP_GRACE_S,
        check_interval_s: float = CHECK_INTERVAL_S,
        models: Models | None = None,
        pool: WorkerPool | None = None,
        budget: BudgetWatch | None = None,
    ) -> None:
        self.spec = spec = batch.spec
        self._placement = batch.placement
        setup = batch.setup
        if models is not None and setup.models is not None:
            models.gate.set_limits(batch.rate_limits)
        self._pool = pool or open_pool(
            spec.chosen_workers,
            spec,
            setup,
            models,
            workspace.store.runs,
            agent=batch.profile.agent,
            ray=batch.profile.ray,
            clock=workspace.clock,
        )
        self.batch_id, self.battery_id = batch_id or new_ulid(), battery_id
        self._workspace = workspace
        self._clock = workspace.clock
        callbacks = (on_record, None if models is None else models.feedback)
        self._record_callbacks = [callback for callback in callbacks if callback is not None]
        self._hub = ObserverHub(observers)
        self._stats = BatchStats()
        self.unstored: list[UnstoredEpisode] = []
        """The ended episodes that could not be stored; the first one interrupts the batch."""
        stored = list(earlier_episodes)
        finished, left = split_plan(spec, stored)
        self._stats.add_stored(stored, finished)
        self._queue = EpisodeQueue(left)
        self._n_before = len(self._stats.episodes)
        self._lost = LostEpisodes(spec)
        self._budget = budget or BudgetWatch(spec.budget, batch.profile.agent.currency)
        self._running = RunningEpisodes()
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._wait = ServerWait(
            self.batch_id, spec.env, batch.placement, self._clock, self._inbox.put, check_interval_s
        )
        self._interruption: tuple[str, InterruptedBy] | None = None
        self._grace_s, self._step_grace_s = grace_s, step_grace_s
        self._currency = batch.profile.agent.currency if batch.profile.agent.price else None
        self._versions = {**workspace.versions, **installed_versions(batch.placement.packages)}
        self._trace_file = workspace.trace_file(self.batch_id)
        self._spare = SpareResources(0)
        self._status: BatchStatus = "completed"
        self._seq, self._worker_seq = itertools.count(), itertools.count()
        self._started = self._clock.monotonic()
        self._playing = Stopwatch(self._clock.monotonic)

    @property
    def episode_ids(self) -> set[str]:
        return set(self._running) | self._queue.put_back_ids

    def accepts(self, name: CommandName, episode_id: str) -> bool:
        """Return whether a command has an effect on an episode; an episode that was put back can only be ended."""
        ends = EpisodeCommand(name).end_outcome is not None
        return episode_id in self.episode_ids and (ends or episode_id not in self._queue.put_back_ids)

    @property
    def paused(self) -> bool:
        return self._playing.is_paused

    @property
    def waiting(self) -> Waiting | None:
        return self._wait.waiting

    def command(self, name: CommandName, episode_id: str | None = None) -> None:
        """Send a command to one episode, or to all if ``episode_id`` is None; it takes effect before the next step.

        ``wind_down`` ends the batch, as ``completed``, with the episodes that have started.
        """
        self._inbox.put(EpisodeCommand(name, episode_id))

    def run(self) -> BatchResult:
        """Play all planned episodes; a command, a shortage, lost workers or servers, or the budget ends this early."""
        self._apply_early_commands()
        self._spare = SpareResources(SPARE_FILES, SPARE_BYTES)
        with closing(SlotTable(self._pool, self.batch_id, self.spec.concurrency, self._inbox.put)) as slots:
            self._update_pool(slots)
            with self._workspace.playing(self.batch_id):  # the disk works while processes start
                while self._queue or self._running:
                    self._update_pool(slots)
                    if not self._wait.active:
                        for slot, planned, earlier in slots.assign(self._queue, self._running.n_playing):
                            self._start_episode(slot, planned, earlier)
                    self._handle_next_message(slots)
                    self._update_wait()
            self._wait.close()
            self._spare.release()
            self._workspace.index.write_waiting()
        if (reason := self._lost.interruption) is not None and self._status == "completed":
            self._status, self._interruption = "interrupted", (reason, "workers")
        if self._status != "completed":
            self._emit_progress()
        self._hub.close()
        result = self._stats.result(
            self.spec,
            batch_id=self.batch_id,
            battery_id=self.battery_id,
            status=self._status,
            data_label=self._placement.data_label,
            duration_s=self._clock.monotonic() - self._started,
        )
        interruption, interrupted_by = self._interruption or (None, None)
        return msgspec.structs.replace(result, interruption=interruption, interrupted_by=interrupted_by)

    def _update_pool(self, slots: SlotTable) -> None:
        self._pool.watch(Watch(steps=self._hub.watches("timestep"), tokens=self._hub.watches("token")))
        if (problem := slots.fill(self._queue, self._running.n_playing)) is not None:
            self._interrupt(problem, "resources" if self._pool.failure is None else "workers")

    def _apply_early_commands(self) -> None:
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, EpisodeCommand):
                self._apply(item)

    def _start_episode(self, slot: Slot, planned: PlannedEpisode, earlier: RunningEpisode | None) -> None:
        """Start an episode; ``earlier`` is its earlier start if it was put back."""
        workspace, header, n_put_backs = self._workspace, self._header(planned, slot), 0
        if earlier is not None:
            earlier.feed.recorder.discard()
            header = msgspec.structs.replace(header, episode_id=earlier.header.episode_id)
            n_put_backs = earlier.n_put_backs + 1
        feed = EpisodeFeed(
            header,
            EpisodeRecorder(header, workspace.store, workspace.index, clock=self._clock, meter=workspace.meter),
            publish=self._hub.emit,
            trace_file=self._trace_file,
            track=slot.name,
            on_free=lambda problem: self._inbox.put(EpisodeDone(slot, header.episode_id, problem)),
            on_played=lambda: self._inbox.put(EpisodePlayed(slot, header.episode_id)),
            can_put_back=self._wait.is_possible and n_put_backs < MAX_PUT_BACKS,
            was_started=n_put_backs > 0,
            spare=self._spare,
        )
        self._running[header.episode_id] = episode = RunningEpisode(
            slot=slot,
            header=header,
            feed=feed,
            clock=self._clock,
            deadline_s=self.spec.limits.max_duration_s + self._grace_s,
            grace_s=self._grace_s,
            step_grace_s=self._step_grace_s,
            n_put_backs=n_put_backs,
        )
        episode.start(paused=self.paused)

    def _header(self, planned: PlannedEpisode, slot: Slot) -> EpisodeHeader:
        spec, workspace = self.spec, self._workspace
        return EpisodeHeader(
            **msgspec.structs.asdict(planned),
            episode_id=new_ulid(),
            batch_id=self.batch_id,
            battery_id=self.battery_id,
            node=workspace.node,
            boot=workspace.boot,
            profile=workspace.profile,
            env=spec.env,
            transport=self._placement.transport,
            data_label=self._placement.data_label,
            mode=spec.mode,
            agent=spec.agent,
            model=spec.model,
            limits=spec.limits.label,
            n_planned=spec.n_planned,
            started_at=workspace.clock.now(),
            versions=self._versions,
            worker=slot.info,
            currency=self._currency,
        )

    def _handle_next_message(self, slots: SlotTable) -> None:
        remaining_s = min(1.0, self._wait.remaining_s, *(each.remaining_s() for each in self._running.values()))
        try:
            message = self._inbox.get(timeout=max(0.01, remaining_s))
        except queue.Empty:
            self._workspace.index.write_waiting()
        else:
            self._handle(message, slots)
        self._abandon_overdue()

    def _handle(self, message: _Message, slots: SlotTable) -> None:
        match message:
            case EpisodeCommand():
                self._apply(message)
            case ServerChecked():
                self._apply_check(message)
            case SlotReady():
                slots.add_late(message.slot)
            case WorkerChange():
                self._note_worker(message)
            case EpisodePlayed():
                if self._running.free_slot(message):
                    slots.add(message.slot)
            case EpisodeDone():
                if self._finish(message):
                    slots.add(message.slot)

    def _note_worker(self, change: WorkerChange) -> None:
        fields = msgspec.structs.asdict(change)
        state = WorkerState(at=self._clock.now(), batch_id=self.batch_id, seq=next(self._worker_seq), **fields)
        self._hub.emit(worker_item(state))
        if self._stats.add_worker(state):
            self._emit_progress()

    def _finish(self, done: EpisodeDone) -> bool:
        """Record the end of an episode; return whether this frees its slot, which it may have left before."""
        if (episode := self._running.pop(done.episode_id, None)) is None:  # it was abandoned
            return False
        if isinstance(done.problem, WorkerLost):
            if not (episode.feed.is_held or episode.feed.has_ended):
                self._finish_lost(episode, done.problem)
                return not episode.is_played
        elif done.problem is not None and episode.control.cancel_outcome is None:
            episode.fail(done.problem)
            if not (episode.feed.recorder.is_started or episode.feed.shortage):
                self._interrupt(f"{episode.slot.info.id} cannot start episodes: {done.problem}", "workers")
        if not episode.feed.is_held:
            self._record_result(episode)
        elif (outcome := episode.control.cancel_outcome) is not None:
            self._release(episode, outcome)
        else:
            self._queue.put_back(episode)
        if episode.feed.gone is not None:
            self._begin_wait()
        return not episode.is_played

    def _finish_lost(self, episode: RunningEpisode, lost: WorkerLost) -> None:
        """Store an episode whose worker was lost, and play it again unless it had its outcome or a command ended it."""
        control = episode.control
        logger.warning("batch %s: episode %s: %s", self.batch_id, episode.header.episode_id, lost)
        is_interrupted = control.decided is None and control.cancel_outcome is None
        starts_again = is_interrupted and self._lost.starts_again(episode.planned, lost)
        if starts_again:
            self._queue.add(episode.planned, alone=self._lost.plays_alone(episode.planned))
        episode.abandon_lost(lost)
        self._record_result(episode, is_final=not starts_again)

    def _begin_wait(self) -> None:
        if self._wait.is_possible and self._queue:
            self._wait.begin(paused=self.paused)

    def _apply_check(self, checked: ServerChecked) -> None:
        was_waiting = self._wait.waiting is not None
        if not self._wait.is_back(checked):
            return

        def starts_again(episode: RunningEpisode) -> bool:
            gone = episode.feed.gone
            was_dropped = gone is not None and not gone.timed_out
            return was_waiting or (checked.state.usable and was_dropped)  # else the server is only slow or broken

        for episode in self._queue.return_all(starts_again):
            self._release(episode)
        if was_waiting:
            self._emit_progress()

    def _update_wait(self) -> None:
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
        episode.feed.release(outcome)
        self._record_result(episode)

    def _abandon_overdue(self) -> None:
        for episode in [episode for episode in self._running.values() if episode.is_overdue()]:
            del self._running[episode.header.episode_id]
            if episode.feed.recorder.started_s is None:
                episode.slot.abandon()
                info = episode.slot.info
                self._finish_lost(episode, WorkerLost(f"{info.id} on {info.host} did not start the episode in time"))
            else:
                episode.abandon()
                self._record_result(episode)

    def _record_result(self, episode: RunningEpisode, *, is_final: bool = True) -> None:
        """Count an ended episode unless it is played again, and report it; act on what it ran out of."""
        feed = episode.feed
        if (record := feed.recorder.record) is not None:
            (self._stats.add if is_final else self._stats.add_answers)(record)
            if record.outcome in (Outcome.ERROR, Outcome.TIMEOUT) and feed.shortage is None:
                self._begin_wait()  # the server may hang or be another one now
            used_up = self._budget.add(record)
            self._store(feed, record, is_final=is_final)
            if used_up is not None and (self._queue or self._running):
                self._interrupt(used_up, "budget")
        if feed.shortage is not None:
            self._interrupt(describe_shortage(feed.shortage), "resources")
        for problem in feed.problems:
            self._stats.problems.append(f"episode {episode.header.episode_id}: {type(problem).__name__}: {problem}")
        self._emit_progress()

    def _store(self, feed: EpisodeFeed, record: EpisodeRecord, *, is_final: bool) -> None:
        if (unstored := feed.finish(record)) is None:
            for callback in self._record_callbacks:
                with catch_foreign(log_failure(logger, "a callback for a finished episode")):
                    callback(record)
            return
        self.unstored.append(unstored)
        self._stats.n_unstored += is_final
        if self._status == "completed" and feed.shortage is None:
            logger.warning("episode %s could not be stored; no further episodes start", record.episode_id)
            # Without a reason, by which a node knows that it may play on once it has stored the episode.
            self._apply(EpisodeCommand("interrupt"))

    def _emit_progress(self) -> None:
        n_left, n_new = self.spec.n_planned - len(self._stats.episodes), len(self._stats.episodes) - self._n_before
        waiting = self._wait.waiting
        progress = self._stats.progress(self.batch_id, self.spec.n_planned, at=self._clock.now(), seq=next(self._seq))
        progress = msgspec.structs.replace(
            progress,
            eta_s=self._playing.seconds / n_new * n_left if n_new else None,
            waiting_for=None if waiting is None else waiting.server,
            waiting_s=None if waiting is None else waiting.left_s,
            interrupted=self._status == "interrupted",
            interruption=None if self._interruption is None else self._interruption[0],
            paused=self.paused,
        )
        self._hub.emit(progress)

    def _apply(self, command: EpisodeCommand) -> None:
        if command.name == "wind_down":
            self._queue.drop_unstarted()
            return
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
            self._playing.set_paused(command.name != "resume")
            self._wait.set_paused(self.paused)
            self._emit_progress()
