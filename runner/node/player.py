"""The thread that plays a node's batches one after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runner.batch import Batch
from runner.errors import boundary
from runner.node.queue import BatchQueue, QueuedBatch
from runner.observers import Observer
from runner.playing import CommandName
from runner.result import BatchResult, BatchStatus, Tally
from runner.store import EpisodeRecord
from runner.types import BatchProgress, Item
from runner.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Announce:
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


class Player:
    """Plays what the queue holds; ``stop`` leaves the running batch to be resumed."""

    def __init__(self, workspace: Workspace, queue: BatchQueue, announce: Announce) -> None:
        """Prepare; ``start`` begins to play."""
        self._workspace = workspace
        self._queue = queue
        self._announce = announce
        self._changed = threading.Condition()
        self._stopping = False
        self._draining = False
        self._batch: Batch | None = None
        self._thread = threading.Thread(target=self._serve, name="player", daemon=True)

    @property
    def batch(self) -> Batch | None:
        """The batch that is played now."""
        return self._batch

    @property
    def idle(self) -> bool:
        """Whether nothing is played and nothing waits."""
        return self._batch is None and not self._queue.waiting()

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def wake(self) -> None:
        """Look into the queue again."""
        with self._changed:
            self._changed.notify()

    def command(self, name: CommandName, episode_id: str | None = None) -> None:
        """Command the batch that is played now."""
        if (batch := self._batch) is not None:
            batch.command(name, episode_id)

    def give_up(self, queued: QueuedBatch) -> None:
        """End a batch that is not being played for good, with what there is of it."""
        tally = Tally()
        for record in self._played(queued.batch_id):
            tally.add(record)
        status: BatchStatus = "interrupted" if queued.status == "interrupted" else "cancelled"
        self._announce.result(
            tally.result(
                queued.spec,
                batch_id=queued.batch_id,
                battery_id=queued.battery_id,
                status=status,
                data_label="",
                duration_s=0.0,
            )
        )
        self._queue.set_status(queued.batch_id, "cancelled")

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

    def _serve(self) -> None:
        while (queued := self._next()) is not None:
            with boundary(partial(self._failed, queued)):
                self._play(queued)
            with self._changed:
                self._batch = None
            self._announce.busy(not self.idle)

    def _next(self) -> QueuedBatch | None:
        with self._changed:
            while not self._stopping:
                if waiting := self._queue.waiting():
                    return waiting[0]
                if self._draining:
                    return None
                self._changed.wait()
        return None

    def _play(self, queued: QueuedBatch) -> None:
        self._queue.set_status(queued.batch_id, "running")
        batch = Batch(
            queued.spec,
            self._workspace,
            observers=[self._announce.item, self._keep_progress],
            on_record=self._announce.record,
            batch_id=queued.batch_id,
            battery_id=queued.battery_id,
            played=self._played(queued.batch_id),
        )
        with self._changed:
            self._batch = batch
            if self._stopping:
                batch.command("interrupt")
        self._announce.busy(True)
        result = batch.run()
        if result.status != "interrupted":  # announced first: killed in between, a resumed batch announces it again
            self._announce.result(result)
        self._queue.set_status(queued.batch_id, result.status)
        self._queue.set_done(queued.batch_id, result.n_episodes)

    def _failed(self, queued: QueuedBatch, exc: BaseException) -> None:
        """A batch that cannot be built or stored waits to be resumed."""
        logger.warning("batch %s cannot be played: %s: %s", queued.batch_id, type(exc).__name__, exc)
        self._queue.set_status(queued.batch_id, "interrupted")

    def _keep_progress(self, item: Item) -> None:
        if isinstance(item, BatchProgress):
            self._queue.set_done(item.batch_id, item.n_done)

    def _played(self, batch_id: str) -> list[EpisodeRecord]:
        rows = self._workspace.index.select("SELECT episode_id FROM episodes WHERE batch_id = ?", (batch_id,))
        return [self._workspace.store.load(self._workspace.store.path(batch_id, row[0])) for row in rows]
