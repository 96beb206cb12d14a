"""The thread that runs a node's queued batches one after another, and queues the next parts of adaptive repeats.

The id of a part is derived from its battery and its first task, so a part is queued once, also after a crash.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable

import msgspec

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, Kind, Observer, SelectiveObserver, UnstoredEpisode, wants_all
from runner.batch.result import BatchResult, BatchStatus
from runner.batch.running_episode import CommandName
from runner.batch.spec import BatchSpec, ResolvedBatch
from runner.batch.stopping import Waiting, budget_left, next_part, wait_while_busy
from runner.batch.workspace import Workspace
from runner.errors import StoreError, catch_foreign, log_failure
from runner.inference.profile_models import Models
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status, battery_entry
from runner.node.control_requests import failure_text
from runner.node.storage import StorageWatch
from runner.node.stored_batches import StoredBatches
from runner.results.summary import Selection, summarize_results
from runner.types import BatchProgress, WorkerState

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # log the placement of each batch

RETRY_S = 1.0
"""Seconds after an error until the queue is read again."""
MAX_INTERRUPTIONS = 1000
"""Maximum number of batches whose reason of interruption is kept; the oldest are forgotten."""

_USED = "SELECT total(cost), total(tokens_prompt + tokens_completion) FROM episodes WHERE batch_id = ?"


class BatchCallbacks(msgspec.Struct, frozen=True):
    """Callbacks of a ``BatchPlayer``; they run on its threads and must return quickly.

    Attributes:
        on_item: receives the events and progress items of a running batch; must not change them.
        on_busy: receives True when a batch starts; after a batch, receives whether another one will start.
        on_end: receives the result of every batch that ends, also of one that can be resumed, unless the node stops.
    """

    on_item: Observer
    on_result: Callable[[BatchResult], None]
    on_busy: Callable[[bool], None]
    wants_item: Callable[[Kind], bool] = wants_all
    on_end: Callable[[BatchResult], object] = lambda result: None


class AdaptiveRuns:
    """Queues the next parts of adaptive repeats."""

    def __init__(self, workspace: Workspace, queue: BatchQueue) -> None:
        self._index = workspace.index
        self._queue = queue

    def on_end(self, result: BatchResult) -> None:
        """The part starts before all other batches that wait."""
        if result.status == "completed":
            with catch_foreign(log_failure(logger, "queueing the next part of adaptive repeats")):
                if (ended := self._queue.get(result.batch_id)) is not None:
                    self._add_next(ended, "queued")

    def restore(self) -> None:
        """Add the parts that a killed node did not queue; like all others, they wait to be resumed."""
        for ended in self._queue.finished():
            if ended.status == "completed":
                self._add_next(ended, "interrupted")

    def _add_next(self, ended: QueuedBatch, status: Status) -> None:
        spec, battery_id = ended.spec, ended.battery_id
        if spec.adaptive is None or battery_id is None:
            return
        parts = self._queue.in_battery(battery_id)
        played = [part for part in parts if (part.spec.env, part.spec.model) == (spec.env, spec.model)]
        if any(part.spec.task_index > spec.task_index for part in played):
            return
        selection = Selection(env=spec.env, agent=spec.agent, requested=spec.model, batch=battery_id)
        rows = summarize_results(self._index, selection)
        if sum(row.n for row in rows) < sum(part.n_done for part in played):
            return  # episodes were deleted since, so the interval is that of a few
        ((cost, n_tokens),) = self._index.select(_USED, (ended.batch_id,))
        budget = budget_left(spec.budget, cost, int(n_tokens))
        part = next_part(spec, sum(row.n_success for row in rows), sum(row.n_rated for row in rows), budget)
        if part is not None:
            entry = msgspec.structs.replace(battery_entry(battery_id, part), status=status)
            if self._queue.add(entry) and status == "queued":
                self._queue.move({entry.batch_id}, 0)


class BatchPlayer:
    """Runs the queued batches one after another on its own thread; a batch that ``stop`` interrupts can be resumed.

    Args:
        place: returns a queued batch at its placement, or raises if it cannot run; may wait for an environment server.
    """

    def __init__(
        self,
        workspace: Workspace,
        queue: BatchQueue,
        callbacks: BatchCallbacks,
        *,
        place: Callable[[BatchSpec], ResolvedBatch],
        models: Models | None = None,
    ) -> None:
        self._workspace = workspace
        self._queue = queue
        self._callbacks = callbacks
        self._place = place
        self._models = models
        self.storage = StorageWatch(workspace.data_dir, self.wake)
        self.stored = StoredBatches(workspace, queue, callbacks.on_result)
        self._progress: BatchProgress | None = None
        self._interruptions: dict[str, str] = {}
        self._item_numbers: dict[tuple[Kind, str], itertools.count[int]] = defaultdict(itertools.count)
        self._changed = threading.Condition()
        self._stopping = False
        self._draining = False
        self._claimed: QueuedBatch | None = None
        self._final_status: BatchStatus = "interrupted"
        self._final_n_done: int | None = None
        self._is_cancelled = self._cancels_next = self._is_reported = False
        self._batch: Batch | None = None
        self._waiting: Waiting | None = None
        self._early_commands: list[CommandName] = []
        self._unstored: list[UnstoredEpisode] = []
        self._thread = threading.Thread(target=self._run, name="batch player", daemon=True)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is running or will start by itself; False while the queue cannot be read."""
        try:
            return self._claimed is None and not self._queue.has_ready
        except StoreError as exc:
            logger.warning("%s", exc)
            return False

    @property
    def battery_id(self) -> str | None:
        claimed = self._claimed
        return None if claimed is None else claimed.battery_id

    def is_paused(self, batch_id: str) -> bool:
        batch = self._batch
        return batch is not None and batch.batch_id == batch_id and batch.paused

    def waiting(self, batch_id: str) -> Waiting | None:
        batch = self._batch
        if batch is None:
            return self._waiting if self.is_running(batch_id) else None
        return batch.waiting if batch.batch_id == batch_id else None

    def interruption(self, batch_id: str) -> str | None:
        """Return why this batch was interrupted; None if it was not, or on request, or by an earlier node."""
        return self._interruptions.get(batch_id)

    @property
    def storage_problem(self) -> str | None:
        """Why nothing can be stored, and how many batches wait for room; None while there is room."""
        if (problem := self.storage.problem) is None:
            return None
        n_waiting = len(self._queue.queued()) + (self._claimed is not None)
        waiting = {0: "no batch waits", 1: "1 batch waits and continues by itself"}
        return f"{problem}; {waiting.get(n_waiting, f'{n_waiting} batches wait and continue by themselves')}"

    def start(self) -> None:
        self.storage.start()
        self._thread.start()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def command(self, name: CommandName, batch_id: str | None) -> bool:
        """Send a command to a batch, None: to any; return False if the batch is neither running nor starting.

        A part of adaptive repeats that has ended accepts ``cancel`` until the next part is queued.
        """
        with self._changed:
            if self._claimed is None or batch_id not in (None, self._claimed.batch_id):
                return False
            if name == "cancel":
                if self._final_status != "interrupted":  # the batch has ended
                    self._cancels_next = not self._is_reported and self._claimed.spec.adaptive is not None
                    return self._cancels_next
                self._is_cancelled = True
                self._save_cancellation(self._claimed.batch_id)
            if self._batch is None:
                self._early_commands.append(name)
            else:
                self._batch.command(name)
            return True

    def _save_cancellation(self, batch_id: str) -> None:
        """Save at once that a running batch is cancelled: it stays so if the node dies before the batch has ended."""
        try:
            self._queue.set_status(batch_id, "cancelled", only=("running",))
        except StoreError as exc:
            logger.warning("batch %s is cancelled, but after a crash it would be interrupted: %s", batch_id, exc)

    def is_running(self, batch_id: str) -> bool:
        """Also true while the batch starts."""
        claimed = self._claimed
        return claimed is not None and claimed.batch_id == batch_id

    def plays(self, episode_id: str) -> bool:
        """Also true while the episode waits for its server."""
        batch = self._batch
        return batch is not None and batch.accepts("cancel", episode_id)

    def command_episode(self, name: CommandName, episode_id: str) -> bool:
        """Return False if the episode is not running."""
        batch = self._batch
        if batch is None or not batch.accepts(name, episode_id):
            return False
        batch.command(name, episode_id)
        return True

    def drain(self) -> None:
        """Let the thread run the batches that are still queued, then end."""
        with self._changed:
            self._draining = True
            self._changed.notify()

    def stop(self) -> None:
        """Interrupt the running batch after its current steps and end the thread; queued batches stay queued."""
        self.storage.close()
        with self._changed:
            self._stopping = True
            self._changed.notify()
            if self._batch is not None:
                self._batch.command("interrupt")

    def join(self, timeout_s: float | None) -> bool:
        """Return False if the thread is still running after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_finished = False
        while not is_finished:
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                is_finished = not self._run_next()
            for problem in problems:
                logger.warning("the batch player failed: %s: %s", type(problem).__name__, problem)
                if isinstance(problem, StoreError):
                    self.storage.check(write=True)
                self._save_final_status()
                with catch_foreign(log_failure(logger, "reporting the end of a batch")):
                    self._report_end(problem)
            with self._changed:
                self._claimed = self._batch = self._progress = None
                self._unstored = []
                if problems and not self._stopping:
                    self._changed.wait(RETRY_S)
            with catch_foreign(log_failure(logger, "reporting the busy state")):
                self._callbacks.on_busy(not self.is_idle)

    def _run_next(self) -> bool:
        with self._changed:
            self._early_commands.clear()
            while (queued := self._claim()) is None:
                if self._stopping or (self._draining and not self._queue.ready()):
                    return False
                self._changed.wait()
            self._claimed, self._final_status, self._final_n_done = queued, "interrupted", None
            self._is_cancelled = self._cancels_next = self._is_reported = False
            self._early_commands += ["pause"] if self._queue.release(queued.batch_id) else []  # held just before
            self._interruptions.pop(queued.batch_id, None)
        self._run_batch(queued)
        return True

    def _claim(self) -> QueuedBatch | None:
        if self._stopping or self.storage.problem is not None:
            return None
        ready = self._queue.ready()
        claimed = (batch for batch in ready if self._queue.set_status(batch.batch_id, "running", only=("queued",)))
        return next(claimed, None)

    def _run_batch(self, queued: QueuedBatch) -> None:
        placed = self._place_queued(queued)
        logger.info("batch %s: %s runs %s", queued.batch_id, placed.spec.env, placed.placement.note)
        if placed.warning is not None:
            logger.warning("batch %s: %s", queued.batch_id, placed.warning)
        result = self._play(queued, placed)
        while self._unstored and self._wait_for_room() and result.interrupted_by is None:
            result = self._play(queued, placed)
        with self._changed:
            if self._is_cancelled:  # perhaps after the last episode
                result = msgspec.structs.replace(result, status="cancelled")
            self._final_status, self._final_n_done = result.status, result.n_episodes
        if result.interruption is not None:
            self._set_interruption(queued.batch_id, result.interruption)
        is_interrupted = result.status == "interrupted"
        if not is_interrupted:  # before the status: if killed in between, the resumed batch publishes again
            self._callbacks.on_result(result)
        only: tuple[Status, ...] = ("running",) if is_interrupted else ()
        self._queue.set_status(queued.batch_id, result.status, n_done=result.n_episodes, only=only)
        if not (is_interrupted and self._stopping):
            self._report_to_followers(queued, result)

    def _place_queued(self, queued: QueuedBatch) -> ResolvedBatch:
        """Return a batch at its placement, which is that of its stored episodes; wait while its server is busy.

        Raises:
            ConfigError: it cannot be placed, or only where it would be mixed with other rules or data.
        """
        item: BatchProgress | None = None

        def go_on(waiting: Waiting) -> bool:
            nonlocal item
            item, self._waiting = item or self.stored.progress(queued), waiting
            changes = {"waiting_for": waiting.server, "waiting_s": waiting.left_s}
            self._forward(msgspec.structs.replace(item, at=self._workspace.clock.now(), **changes))
            return not (self._stopping or self._is_cancelled)

        try:
            placed = wait_while_busy(lambda: self._place(queued.spec), go_on)
        finally:
            self._waiting = None
        if item is not None:
            self._forward(msgspec.structs.replace(item, at=self._workspace.clock.now()))
        placed.placement.require_kind(self.stored.placement_kind(queued))
        return placed

    def _report_to_followers(self, ended: QueuedBatch, result: BatchResult) -> None:
        with self._changed:  # a cancellation comes before the next part is queued, or finds it
            self._callbacks.on_end(result)
            self._is_reported = True
        if self._cancels_next and ended.battery_id is not None:
            key = ended.spec.env, ended.spec.model
            for part in self._queue.in_battery(ended.battery_id):
                if (part.spec.env, part.spec.model) == key:
                    self.stored.cancel_unstarted(part)

    def _play(self, queued: QueuedBatch, placed: ResolvedBatch) -> BatchResult:
        """Play the episodes of a batch that are not stored yet; ``_unstored`` has those that could not be stored."""
        if (self._workspace.store.runs / queued.batch_id).is_dir():
            self._workspace.index.reconcile()  # on a full disk, an episode may be stored without its row
        forward = SelectiveObserver(self._forward, self._callbacks.wants_item, is_inline=True)
        batch = Batch(
            placed,
            self._workspace,
            observers=[forward, SelectiveObserver(self._save_progress, lambda kind: kind is BatchProgress)],
            batch_id=queued.batch_id,
            battery_id=queued.battery_id,
            earlier_episodes=self.stored.episodes(queued.batch_id),
            models=self._models,
        )
        with self._changed:
            self._batch = batch
            if self._is_cancelled:  # while its episodes waited for room on the disk
                batch.command("cancel")
            for name in self._early_commands + (["interrupt"] if self._stopping else []):
                batch.command(name)
            self._early_commands.clear()
        self._callbacks.on_busy(True)
        result = batch.run()
        with self._changed:
            self._batch, self._unstored = None, batch.unstored
        return result

    def _wait_for_room(self) -> bool:
        """Store the unstored episodes as soon as there is room; return False if the node stops before."""
        reported = ""
        while True:
            problem = self.storage.check(write=True) or self._store_episodes()
            if problem is None:
                return True
            if problem != reported and self._progress is not None:
                reported = problem
                item = msgspec.structs.replace(self._progress, interrupted=False, eta_s=None, waiting_for=problem)
                self._forward(msgspec.structs.replace(item, at=self._workspace.clock.now()))
            with self._changed:
                if self._stopping:
                    return False
                self._changed.wait(RETRY_S)

    def _store_episodes(self) -> str | None:
        """Return why that failed, or None."""
        while self._unstored:
            stored, content = self._unstored[0].stored, self._unstored[0].content
            try:
                self._workspace.store.save(content)
            except StoreError as exc:
                return str(exc)
            del self._unstored[0]
            with catch_foreign(log_failure(logger, "adding a stored episode to the index")):
                self._workspace.index.insert(stored.record, content)
            self._forward(stored)
            if self._models is not None:
                self._models.feedback(stored.record)
        return None

    def _set_interruption(self, batch_id: str, reason: str) -> None:
        self._interruptions[batch_id] = reason
        while len(self._interruptions) > MAX_INTERRUPTIONS:
            del self._interruptions[next(iter(self._interruptions))]

    def _report_end(self, problem: BaseException) -> None:
        """Emit why the claimed batch is interrupted, or announce that it was cancelled meanwhile or has ended."""
        status = "cancelled" if self._is_cancelled else self._final_status
        if (queued := self._claimed) is None or self._stopping:  # the next start announces it
            return
        interruption = failure_text(problem) if status == "interrupted" else None
        if interruption is not None:  # first, because the episodes may be unreadable
            self._set_interruption(queued.batch_id, interruption)
            self._forward(self.stored.progress(queued, interruption=interruption))
        result = msgspec.structs.replace(self.stored.result(queued, status), interruption=interruption)
        if interruption is None:
            self._callbacks.on_result(result)
        self._callbacks.on_end(result)

    def _save_final_status(self) -> None:
        """Save the final status of a batch that raised an exception; retry until the queue can be written."""
        if self._claimed is None:
            return
        with catch_foreign(log_failure(logger, "reporting the busy state")):
            self._callbacks.on_busy(False)
        while True:
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                status, n_done = self._final_status, self._final_n_done
                self._queue.set_status(self._claimed.batch_id, status, n_done=n_done, only=("running",))
            with self._changed:
                if not problems or self._stopping:
                    return
                self._changed.wait(RETRY_S)

    def _forward(self, item: BatchItem) -> None:
        # numbered here, because the numbers of a batch that continues would start again
        if isinstance(item, BatchProgress | WorkerState):
            item = msgspec.structs.replace(item, seq=next(self._item_numbers[type(item), item.batch_id]))
        self._callbacks.on_item(item)

    def _save_progress(self, item: BatchItem) -> None:
        if isinstance(item, BatchProgress):
            self._progress = item
            self._queue.set_done(item.batch_id, item.n_done)
