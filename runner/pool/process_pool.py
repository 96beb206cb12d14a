"""Local processes as the workers of a batch; each has an equal share of its slots."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from runner.episode.control import EpisodeControl
from runner.pool.finishers import Finishers
from runner.pool.process_worker import Process, ProcessWorker, WorkerTimings
from runner.pool.protocol import EpisodeSink, Slot, WorkerChange
from runner.pool.remote_worker import RemoteControl
from runner.pool.services import BatchServices
from runner.types import EpisodeHeader, WorkerInfo
from runner.util.clock import Clock
from runner.util.resources import Resource, describe_shortage, find_shortage
from runner.worker.frames import Configure, Watch

if TYPE_CHECKING:
    from runner.pool.ray_worker import RayWorker

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3
"""Maximum number of workers in a row that end before they have started an episode."""


class ProcessSlot:
    def __init__(self, name: str, worker: ProcessWorker | RayWorker) -> None:
        self.name = name
        self.info = worker.info
        self._worker = worker
        self._abandoned = False
        self._playing: tuple[str, RemoteControl] | None = None

    @property
    def usable(self) -> bool:
        return not self._abandoned and self._worker.usable

    def play(self, header: EpisodeHeader, sink: EpisodeSink, *, paused: bool) -> EpisodeControl:
        control = self._worker.episodes.play(header, self.name, sink, paused=paused)
        self._playing = header.episode_id, control
        return control

    def stop_task(self) -> None:
        if self._playing is not None:
            self._playing[1].stop_task()

    def abandon(self) -> None:
        self._abandoned = True
        if self._playing is not None:
            self._worker.retire(self._playing[0])

    def close(self) -> None:
        """The pool ends its workers."""


class ProcessPool:
    """Worker processes of one batch.

    Args:
        start_process: starts a process with the name of its worker; called on several threads.
    """

    def __init__(
        self,
        n_workers: int,
        configure: Configure,
        services: BatchServices,
        start_process: Callable[[str], Process],
        timings: WorkerTimings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._n_workers = n_workers
        self._configure = configure
        self._services = services
        self._start_process = start_process
        self._timings = timings or WorkerTimings()
        self._clock = clock or Clock()
        self._host = socket.gethostname()
        self._slot_numbers, self._worker_numbers = itertools.count(), itertools.count()
        self._workers: list[ProcessWorker] = []
        self._lone_workers: list[ProcessWorker] = []
        self._ended: set[ProcessWorker] = set()
        self._free: list[ProcessSlot] = []
        self._slots_per_worker = 0
        self._watched = True
        self._finishers = Finishers()
        self._lock = threading.Lock()
        self._n_failed_starts = self._n_given_up = 0
        self._failure: str | None = None
        self._on_worker: Callable[[WorkerChange], object] = lambda change: None

    def open(self, on_slot: Callable[[Slot], object], on_worker: Callable[[WorkerChange], object]) -> None:
        """Prepare the pool; all slots are usable at once, because a process that starts gets its episodes then."""
        self._on_worker = on_worker

    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        if not self._slots_per_worker:
            self._slots_per_worker = -(-n_slots // self._n_workers)
        self._free = [slot for slot in self._free if slot.usable]
        self._workers = [worker for worker in self._workers if worker.episodes.lost is None]
        while len(self._free) < n_slots and self.failure is None:
            living = self._living()
            if living and self._n_given_up and len(living) + self._n_given_up >= self._n_workers:
                self._free.append(self._new_slot(min(living, key=lambda worker: worker.n_slots)))
            elif (worker := self._start_worker()) is not None:
                self._workers.append(worker)
                self._free = _alternate(self._free, [self._new_slot(worker) for _ in range(self._slots_per_worker)])
        slots, self._free = self._free[:n_slots], self._free[n_slots:]
        return list(slots), None

    def start_alone(self) -> Slot | None:
        """Start a worker for one episode at a time, at most as many as there are others; see ``WorkerPool``."""
        self._lone_workers = [worker for worker in self._lone_workers if worker.episodes.lost is None]
        if len(self._lone_workers) + self._n_given_up >= self._n_workers or self.failure is not None:
            return None
        if (worker := self._start_worker()) is None:
            return None
        self._lone_workers.append(worker)
        return self._new_slot(worker)

    @property
    def failure(self) -> str | None:
        return self._failure

    def watch_tokens(self, watched: bool) -> None:
        if watched == self._watched:
            return
        self._watched = watched
        for worker in (*self._workers, *self._lone_workers):
            worker.send(Watch(tokens=watched))

    def close(self) -> None:
        workers = *self._workers, *self._lone_workers
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.join(self._timings.close_s)
        self._finishers.close()

    def _start_worker(self) -> ProcessWorker | None:
        name = f"worker {next(self._worker_numbers)}"
        try:
            worker = ProcessWorker(
                WorkerInfo(host=self._host, id=name, kind="process"),
                self._configure,
                self._services,
                lambda: self._start_process(name),
                self._on_worker,
                self._note_end,
                self._timings,
                self._clock,
                self._finishers.submit,
            )
        except (RuntimeError, MemoryError) as exc:  # no thread for it
            if (shortage := find_shortage(exc)) is None:
                raise
            self._failure = f"{name} cannot be started: {describe_shortage(shortage)}"
            return None
        worker.send(Watch(tokens=self._watched))
        return worker

    def _new_slot(self, worker: ProcessWorker) -> ProcessSlot:
        worker.n_slots += 1
        return ProcessSlot(f"slot {next(self._slot_numbers)}", worker)

    def _note_end(self, worker: ProcessWorker, reason: str) -> None:
        with self._lock:
            self._ended.add(worker)
            if worker.episodes.has_started_episode or not worker.usable:
                self._n_failed_starts = 0
                return
            self._n_failed_starts += 1
            if not worker.is_ready or self._n_failed_starts > MAX_FAILED_STARTS:
                self._give_up(worker, reason)

    def _give_up(self, worker: ProcessWorker, reason: str) -> None:
        """Go on without a worker and its replacement if others live, which get its slots."""
        problem = f"{worker.info.id} does not start: {reason}"
        if not (living := self._living()):
            self._failure = problem
            return
        self._n_given_up += 1
        logger.warning("%s; the batch continues with %d of %d workers", problem, len(living), self._n_workers)

    def _living(self) -> list[ProcessWorker]:
        return [worker for worker in self._workers if worker.usable and worker not in self._ended]


def _alternate(first: list[ProcessSlot], second: list[ProcessSlot]) -> list[ProcessSlot]:
    """Episodes spread evenly over slots in this order."""
    pairs = itertools.zip_longest(first, second)
    return [slot for pair in pairs for slot in pair if slot is not None]
