"""The thread that plays a node's batches one after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from runner.batch.batch import Batch
from runner.batch.observers import Observer
from runner.batch.result import BatchResult, BatchStats, BatchStatus
from runner.batch.running_episode import CommandName
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.envs.placement import Placement, embedded_placement
from runner.errors import catch_foreign, log_failure
from runner.inference.models import Models
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status
from runner.store import EpisodeRecord
from runner.types import UNRATED, BatchProgress, Item

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # where each batch is played is worth a line

RETRY_S = 1.0
"""Seconds until the queue is looked at again after something went wrong."""


@dataclass(frozen=True)
class BatchCallbacks:
    """Whom the player tells; all are called on its threads and must be quick.

    Attributes:
        item: every live item.
        record: every episode that is over.
        result: every batch that is over for good.
        busy: whether something is played, on each change.
    """

    item: Observer
    record: Callable[[EpisodeRecord], None]
    result: Callable[[BatchResult], None]
    busy: Callable[[bool], None]


def _embedded_placement(spec: BatchSpec) -> Placement:
    return embedded_placement(spec.env, spec.mode)


class BatchRunner:
    """Plays what the queue holds; ``stop`` leaves the running batch to be resumed.

    ``choose_placement`` says where a batch that is about to begin is played, if it can be; it may wait for a server. ``models``
    are whom agents ask.
    """

    def __init__(
        self,
        workspace: Workspace,
        queue: BatchQueue,
        callbacks: BatchCallbacks,
        *,
        choose_placement: Callable[[BatchSpec], Placement] = _embedded_placement,
        models: Models | None = None,
    ) -> None:
        """Prepare; ``start`` begins to play."""
        self._workspace = workspace
        self._queue = queue
        self._callbacks = callbacks
        self._choose_placement = choose_placement
        self._models = models
        self._changed = threading.Condition()
        self._stopping = False
        self._draining = False
        self._claimed: QueuedBatch | None = None
        self._final_status: Status = "interrupted"
        self._batch: Batch | None = None
        self._early_commands: list[CommandName] = []
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is played and nothing waits."""
        return self._claimed is None and not self._queue.waiting()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopping

    def is_paused(self, batch_id: str) -> bool:
        """Whether this batch is being played and paused."""
        batch = self._batch
        return batch is not None and batch.batch_id == batch_id and batch.paused

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def wake(self) -> None:
        """Look into the queue again."""
        with self._changed:
            self._changed.notify()

    def command(self, name: CommandName, batch_id: str) -> bool:
        """Command a batch, which may be about to start; False when it is not the one that is played."""
        with self._changed:
            if self._claimed is None or self._claimed.batch_id != batch_id:
                return False
            if self._batch is None:
                self._early_commands.append(name)
            else:
                self._batch.command(name)
            return True

    def command_episode(self, name: CommandName, episode_id: str) -> bool:
        """Command an episode; False when it is not being played."""
        batch = self._batch
        if batch is None or episode_id not in batch.episode_ids:
            return False
        batch.command(name, episode_id)
        return True

    def n_finished(self, batch_id: str) -> int:
        """How many stored episodes of a batch are not to be played again."""
        placeholders = ", ".join("?" * len(UNRATED))
        query = f"SELECT count(*) FROM episodes WHERE batch_id = ? AND outcome NOT IN ({placeholders})"
        ((count,),) = self._workspace.index.select(query, (batch_id, *sorted(UNRATED)))
        return int(count)

    def cancel_unstarted(self, queued: QueuedBatch) -> bool:
        """End a batch that waits or was interrupted for good; False when it is neither any more."""
        if not self._queue.set_status(queued.batch_id, "cancelled", only=("queued", "interrupted")):
            return False
        self._publish_from_files(queued, "interrupted" if queued.status == "interrupted" else "cancelled")
        return True

    def publish_missing_results(self, known_ids: set[str]) -> None:
        """Announce batches that are over but whose events an earlier process did not get to add."""
        for queued in self._queue.ended():
            if f"batch:{queued.batch_id}" not in known_ids:
                self._publish_from_files(queued, "completed" if queued.status == "completed" else "cancelled")

    def _publish_from_files(self, queued: QueuedBatch, status: BatchStatus) -> None:
        tally = BatchStats()
        for record in self._stored_episodes(queued.batch_id):
            tally.add(record)
        ids = (queued.batch_id, queued.battery_id)
        self._callbacks.result(
            tally.result(queued.spec, batch_id=ids[0], battery_id=ids[1], status=status, data_label="", duration_s=0.0)
        )

    def drain(self) -> None:
        """Play what is queued, then stop."""
        with self._changed:
            self._draining = True
            self._changed.notify()

    def stop(self) -> None:
        """Interrupt the running batch at its next steps, then stop; what is queued stays unplayed."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            if self._batch is not None:
                self._batch.command("interrupt")

    def join(self, timeout_s: float | None) -> bool:
        """Wait until nothing is played any more; False when that took too long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = False
        while not ended:
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                ended = not self._play_next()
            for problem in problems:
                logger.warning("a batch cannot be played: %s: %s", type(problem).__name__, problem)
                self._save_final_status()
            with self._changed:
                self._claimed = self._batch = None
                if problems and not self._stopping:
                    self._changed.wait(RETRY_S)
            with catch_foreign(log_failure(logger, "telling what is played")):
                self._callbacks.busy(not self.is_idle)

    def _play_next(self) -> bool:
        """Play one batch; False when there will be none any more."""
        with self._changed:
            self._early_commands.clear()
            while (queued := self._claim()) is None:
                if self._stopping or self._draining:
                    return False
                self._changed.wait()
            self._claimed, self._final_status = queued, "interrupted"
        self._play(queued)
        return True

    def _claim(self) -> QueuedBatch | None:
        if self._stopping:
            return None
        waiting = self._queue.waiting()
        claimed = (batch for batch in waiting if self._queue.set_status(batch.batch_id, "running", only=("queued",)))
        return next(claimed, None)

    def _play(self, queued: QueuedBatch) -> None:
        placement = self._choose_placement(queued.spec)
        logger.info("batch %s: %s is played %s", queued.batch_id, queued.spec.env, placement.note)
        batch = Batch(
            queued.spec,
            self._workspace,
            observers=[self._callbacks.item, self._save_progress],
            on_record=self._callbacks.record,
            batch_id=queued.batch_id,
            battery_id=queued.battery_id,
            earlier_episodes=self._stored_episodes(queued.batch_id),
            placement=placement,
            models=self._models,
        )
        with self._changed:
            self._batch = batch
            for name in self._early_commands + (["interrupt"] if self._stopping else []):
                batch.command(name)
        self._callbacks.busy(True)
        result = batch.run()
        self._final_status = result.status
        if result.status != "interrupted":  # announced first: killed in between, a resumed batch announces it again
            self._callbacks.result(result)
        self._queue.set_status(queued.batch_id, result.status)
        self._queue.set_done(queued.batch_id, result.n_episodes)

    def _save_final_status(self) -> None:
        """A batch that cannot be built or stored waits to be resumed; the queue's disk may be full, too."""
        if self._claimed is None:
            return
        with catch_foreign(log_failure(logger, "telling what is played")):
            self._callbacks.busy(False)
        while True:
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                self._queue.set_status(self._claimed.batch_id, self._final_status, only=("running",))
            with self._changed:
                if not problems or self._stopping:
                    return
                self._changed.wait(RETRY_S)

    def _save_progress(self, item: Item) -> None:
        if isinstance(item, BatchProgress):
            self._queue.set_done(item.batch_id, item.n_done)

    def _stored_episodes(self, batch_id: str) -> list[EpisodeRecord]:
        rows = self._workspace.index.select("SELECT episode_id FROM episodes WHERE batch_id = ?", (batch_id,))
        return [self._workspace.store.load(self._workspace.store.path(batch_id, row[0])) for row in rows]
