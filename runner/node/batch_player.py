"""The thread that runs a node's queued batches one after another, and commands to what runs, waits or has stopped."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec

from runner.batch.observers import BatchItem, Kind, Observer, SelectiveObserver, wants_all
from runner.batch.result import BatchResult, BatchStatus
from runner.batch.running_episode import CommandName
from runner.batch.spec import BatchSpec, ResolvedBatch
from runner.batch.workspace import Workspace
from runner.errors import RunnerError, StoreError, catch_foreign, log_failure
from runner.inference.profile_models import Models
from runner.node.batch_queue import ENDED, BatchQueue, QueuedBatch, Status, StoredBatches
from runner.node.session import RETRY_S, BatchSession, Look, look_after
from runner.node.storage import StorageWatch
from runner.tracing import create_error_info
from runner.types import BatchProgress, WorkerState
from runner.util.display_text import mask, one_line
from runner.util.resources import RESOURCES

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # log the placement of each batch

T = TypeVar("T")
MAX_REASON_CHARS: Final = 400


class BatchCallbacks(msgspec.Struct, frozen=True):
    """Callbacks of a ``BatchPlayer``; they run on its threads and must return quickly.

    Attributes:
        on_item: receives the events and progress items of a running batch; must not change them.
        on_result: receives the result of every batch that is completed or cancelled, perhaps a second time.
        on_busy: receives True when a batch starts; after a batch, receives whether another one will start.
        on_end: receives the result of every batch that ends, also of one that can be resumed, unless the node stops.
    """

    on_item: Observer
    on_result: Callable[[BatchResult], None]
    on_busy: Callable[[bool], None]
    wants_item: Callable[[Kind], bool] = wants_all
    on_end: Callable[[BatchResult], object] = lambda result: None


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
        self.workspace, self.models, self.place = workspace, models, place
        self.storage = StorageWatch(workspace.data_dir, self.wake)
        self.stored = StoredBatches(workspace)
        self._queue = queue
        self._callbacks = callbacks
        self._item_numbers: dict[tuple[Kind, str], itertools.count[int]] = defaultdict(itertools.count)
        self._changed = threading.Condition()
        self._stopping = self._draining = False
        self._session: BatchSession | None = None
        self._thread = threading.Thread(target=self._run, name="batch player", daemon=True)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is running or will start by itself."""
        return self._session is None and not self._queue.ready()

    @property
    def battery_id(self) -> str | None:
        session = self._session
        return None if session is None else session.queued.battery_id

    def session(self, batch_id: str) -> BatchSession | None:
        session = self._session
        return session if session is not None and session.queued.batch_id == batch_id else None

    def plays(self, episode_id: str) -> bool:
        """Also true while the episode waits for its server."""
        session = self._session
        return session is not None and session.accepts("cancel", episode_id)

    @property
    def storage_problem(self) -> str | None:
        """Why nothing can be stored, and how many batches wait for room; None while there is room."""
        if (problem := self.storage.problem) is None:
            return None
        n_waiting = len(self._queue.with_status("queued")) + (self._session is not None)
        waiting = {0: "no batch waits", 1: "1 batch waits and continues by itself"}
        return f"{problem}; {waiting.get(n_waiting, f'{n_waiting} batches wait and continue by themselves')}"

    def start(self) -> None:
        self.storage.start()
        self._thread.start()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def command(self, name: CommandName, target: str | None, waiting: Iterable[QueuedBatch] = ()) -> bool:
        """Send a command to the batch that starts or plays, and to those that wait or were interrupted.

        None starts in between. Return whether the command has an effect. ``target`` is the id of the batch that may
        play, or of its battery; None: any.
        """
        with self._changed:
            session, is_accepted = self._session, False
            if session is not None and target in (None, session.queued.batch_id, session.queued.battery_id):
                is_accepted = session.command(name)
                if is_accepted and name == "cancel":
                    self._save_cancellation(session)
            if name == "cancel":
                changed = [self.cancel_unstarted(queued) for queued in waiting]
            else:
                changed = [name == "pause" and self._queue.hold(queued.batch_id) for queued in waiting]
            return is_accepted or any(changed)

    def change(self, specs: Mapping[str, BatchSpec], added: Sequence[QueuedBatch] = ()) -> bool:
        """Change the specs of batches that have not ended, and queue others; all or nothing.

        A batch that plays goes on with its new spec once its running episodes have ended. Return False if it is about
        to end.
        """
        with self._changed:
            session = self._session
            spec = None if session is None else specs.get(session.queued.batch_id)
            if session is not None and spec is not None:
                return session.change(spec, lambda: self._queue.change(specs, added))
            self._queue.change(specs, added)
            self._changed.notify()
            return True

    def command_episode(self, name: CommandName, episode_id: str) -> bool:
        """Return False if the episode is not running."""
        session = self._session
        return session is not None and session.command(name, episode_id)

    def cancel_unstarted(self, queued: QueuedBatch) -> bool:
        """Cancel for good; return False if the batch has started or ended in the meantime."""
        if not self._queue.set_status(queued.batch_id, "cancelled", only=("queued", "interrupted")):
            return False
        self._callbacks.on_result(self.stored.result(queued, "cancelled"))
        return True

    def publish_missing_results(self, published: Collection[str]) -> None:
        """Publish the results of the ended batches except those with an id in ``published``."""
        for queued in self._queue.with_status(*ENDED):
            if queued.batch_id not in published and not self.stored.lacks_episodes(queued):
                status: BatchStatus = "completed" if queued.status == "completed" else "cancelled"
                self._callbacks.on_result(self.stored.result(queued, status))

    def restore_parts(self) -> None:
        """Add the parts of adaptive repeats that a killed node did not; like all others, they wait to be resumed."""
        for ended in self._queue.with_status("completed"):
            look = look_after(self.workspace.index, ended)
            if look is None or look.following is None:
                continue
            key = ended.spec.env, ended.spec.model
            parts = self._queue.in_battery(ended.battery_id or "")
            n_done = sum(part.n_done for part in parts if (part.spec.env, part.spec.model) == key)
            if look.n_stored >= n_done:  # else episodes were deleted since, and the interval is that of a few
                self._queue.add(msgspec.structs.replace(look.following, status="interrupted"))

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
            if self._session is not None:
                self._session.command("interrupt")

    def join(self, timeout_s: float | None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _save_cancellation(self, session: BatchSession) -> None:
        """Save at once that a running batch is cancelled: it stays so if the node dies before the batch has ended."""
        batch_id = session.queued.batch_id
        try:
            self._queue.set_status(batch_id, "cancelled", n_done=session.n_done, only=("running",))
        except StoreError as exc:
            logger.warning("batch %s is cancelled, but after a crash it would be interrupted: %s", batch_id, exc)

    # --- the thread

    def _run(self) -> None:
        while (session := self._retried(self._claim)) is not None:
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                for result in session.play():
                    self._end(session.queued, result)
            for problem in problems:
                self._fail(session, problem)
            with self._changed:
                self._session = None
                if problems and not self._stopping:
                    self._changed.wait(RETRY_S)  # the others may fail for the same reason
            with catch_foreign(log_failure(logger, "reporting the busy state")):
                self._callbacks.on_busy(not self.is_idle)

    def _claim(self) -> BatchSession | None:
        """Wait for the next batch; return None if the thread is to end."""
        with self._changed:
            while not self._stopping:
                for queued in self._queue.ready() if self.storage.problem is None else ():
                    if self._queue.set_status(queued.batch_id, "running", only=("queued",)):
                        self._session = BatchSession(self, queued)
                        return self._session
                if self._draining and not self._queue.ready():
                    break
                self._changed.wait()
        return None

    def _retried(self, action: Callable[[], T]) -> T | None:
        """Return what an action returns, which is repeated while it fails; None if the node stops before."""
        while True:
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                return action()
            self._log(problems[0])
            with self._changed:
                if self._stopping:
                    return None
                self._changed.wait(RETRY_S)

    def _log(self, problem: BaseException) -> None:
        logger.warning("the batch player failed: %s: %s", type(problem).__name__, problem)
        if isinstance(problem, StoreError):
            self.storage.check(write=True)

    def _end(self, queued: QueuedBatch, result: BatchResult) -> None:
        if result.status != "interrupted":  # before the status: if killed in between, the resumed batch publishes again
            self._callbacks.on_result(result)
        self._save_end(queued, result.status, result.interruption, result.n_episodes)
        if not (result.status == "interrupted" and self._stopping):
            with catch_foreign(log_failure(logger, "reporting the end of a batch")):
                self._callbacks.on_end(result)

    def _fail(self, session: BatchSession, problem: BaseException) -> None:
        """End a batch that raised an exception, as interrupted unless it was cancelled."""
        self._log(problem)
        queued, status = session.queued, session.end()
        interruption = _reason(problem) if status == "interrupted" else None
        self._save_end(queued, status, interruption, None)
        if self._stopping:  # the next start announces it
            return
        with catch_foreign(log_failure(logger, "reporting the end of a batch")):
            if interruption is not None:
                self._forward(self.stored.progress(queued, interruption=interruption))
            result = msgspec.structs.replace(self.stored.result(queued, status), interruption=interruption)
            if interruption is None:
                self._callbacks.on_result(result)
            self._callbacks.on_end(result)

    def _save_end(self, queued: QueuedBatch, status: BatchStatus, interruption: str | None, n_done: int | None) -> None:
        """Save how a batch has ended, however long the queue cannot be written."""
        only: tuple[Status, ...] = ("running",) if status == "interrupted" or n_done is None else ()
        set_status = partial(self._queue.set_status, queued.batch_id, status)
        self._retried(lambda: set_status(n_done=n_done, interruption=interruption, only=only))

    # --- what a session needs

    @contextmanager
    def playing(self, queued: QueuedBatch, placed: ResolvedBatch) -> Iterator[Sequence[SelectiveObserver]]:
        logger.info("batch %s: %s runs %s", queued.batch_id, placed.spec.env, placed.placement.note)
        if placed.warning is not None:
            logger.warning("batch %s: %s", queued.batch_id, placed.warning)
        self._callbacks.on_busy(True)
        yield [SelectiveObserver(self._forward, self._callbacks.wants_item, is_inline=True)]

    def on_look(self, ended: QueuedBatch, look: Look) -> bool:
        if look.following is None:
            return False
        part = msgspec.structs.replace(look.following, status="running")
        with self._changed:
            is_added = self._retried(lambda: self._queue.add(part))
            if is_added and self._session is not None:
                self._session.queued = part  # a change that comes before it plays is one of this part
        return bool(is_added) and not self._stopping

    def show(self, queued: QueuedBatch, item: BatchItem) -> None:
        self._forward(item)

    def _forward(self, item: BatchItem) -> None:
        # numbered here, because the numbers of a batch that continues would start again
        if isinstance(item, BatchProgress | WorkerState):
            item = msgspec.structs.replace(item, seq=next(self._item_numbers[type(item), item.batch_id]))
        self._callbacks.on_item(item)


def _reason(exc: BaseException) -> str:
    info = create_error_info(exc)
    is_message = isinstance(exc, RunnerError) or info.type == RESOURCES
    return one_line(mask(info.message if is_message else f"{info.type}: {info.message}"), MAX_REASON_CHARS)
