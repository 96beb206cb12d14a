"""The protocol between a batch and the workers that play its episodes.

A ``WorkerPool`` has slots; a slot plays one episode at a time. The batch plans, stores, publishes and enforces
deadlines; a slot plays, and reports to the episode's ``EpisodeReceiver``. The same batch runs over every pool.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from runner.episode.control import EpisodeControl
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.store.journal import TraceDelta
from runner.types import EpisodeHeader, WorkerInfo, WorkerStatus
from runner.util.resources import Resource
from runner.worker.episode_reporter import EpisodeParts

logger = logging.getLogger(__name__)

MAX_THREADS = 8

Job: TypeAlias = Callable[[], object]


class WorkerLost(RunnerError):
    """The process of a worker ended, or its connection broke, while it played an episode.

    The message names the worker and the reason; it is stored as the episode's error ``worker_lost``.

    Attributes:
        n_suspects: number of episodes that the worker played, any of which may have ended it; 0 if it never started.
    """

    def __init__(self, message: str, n_suspects: int = 1) -> None:
        super().__init__(message)
        self.n_suspects = n_suspects


class WorkerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process has changed its state; ``pid`` is None until it is known."""

    id: str
    host: str
    state: WorkerStatus
    pid: int | None = None


class EpisodeReceiver(EpisodeParts, Protocol):
    """Receives what one episode reports, in its order, on a thread of the pool; no method may raise.

    The large parts arrive encoded, from a slot in this process too; the small ones as events.
    """

    def on_source(self, traces: Callable[[], TraceDelta]) -> None:
        """Receive the source of all spans so far, before the first event; only from a slot in this process."""

    def on_error(self, exc: BaseException) -> None:
        """Receive the error that ends the episode, before its end."""

    def on_played(self) -> None:
        """Receive, from some slots, that the slot may play the next episode while this one is stored."""

    def on_done(self, problem: BaseException | None) -> None:
        """Receive the last report: the slot is free again, unless ``problem`` is a ``WorkerLost``."""


class Slot(Protocol):
    """Plays one episode at a time; only the thread of the batch calls its methods."""

    name: str
    """Row of its episodes in traces; unique in the batch."""
    info: WorkerInfo
    """The worker that the slot belongs to, as stored in episode files."""

    @property
    def usable(self) -> bool:
        """Whether the slot may play another episode; False after it was lost or abandoned, or its worker ends."""

    def play(self, header: EpisodeHeader, receiver: EpisodeReceiver, *, paused: bool) -> EpisodeControl:
        """Start an episode, which waits before its first step if it is ``paused``; return its control.

        A worker that cannot play it any more is reported as ``WorkerLost`` to the receiver.
        """

    def stop_task(self) -> None:
        """Cancel the running episode's asyncio task at its next ``await``; an episode that never awaits continues."""

    def abandon(self) -> None:
        """Give up the slot, because its episode hangs; its receiver receives nothing more.

        A process is ended when its other episodes have ended or after a few seconds, and plays no new ones.
        """

    def close(self) -> None: ...


class WorkerPool(Protocol):
    """The workers of one batch; only the thread of the batch calls its methods."""

    def open(self, on_slot: Callable[[Slot], object], on_worker: Callable[[WorkerChange], object]) -> None:
        """Prepare the pool.

        Args:
            on_slot: receives the slots that become usable later, on any thread.
            on_worker: receives the states of worker processes, on any thread; must not block.
        """

    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        """Start slots at the start of the batch, or in place of lost and abandoned ones, without waiting for them.

        Returns:
            The slots that can play at once, and what ran out if there will be fewer than requested; None otherwise.
            Without a shortage, ``on_slot`` receives the missing ones later.
        """

    def start_alone(self) -> Slot | None:
        """Start a slot whose worker has no other one; None if there are enough of them, or none can be started."""

    @property
    def failure(self) -> str | None: ...

    def watch_tokens(self, watched: bool) -> None:
        """Set whether streamed tokens are of interest, without which no slot reports them.

        The batch calls it at least once a second; an unchanged value costs nothing.
        """

    def close(self) -> None: ...


class Finishers:
    """Daemon threads that run jobs; thread-safe. A job must not raise."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_threads = 0
        self._n_open = 0

    def submit(self, job: Job) -> None:
        """Runs on the caller's thread if the system starts none."""
        with self._lock:
            self._n_open += 1
            needs_thread = self._n_open > self._n_threads < MAX_THREADS
            if needs_thread:
                self._n_threads += 1
        self._jobs.put(job)
        if needs_thread and not self._start_thread():
            self._run_next(wait=False)

    def close(self) -> None:
        """The threads end after the jobs that were submitted; this does not wait for them."""
        for _ in range(self._n_threads):
            self._jobs.put(None)

    def _start_thread(self) -> bool:
        try:
            threading.Thread(target=self._run, name="finisher", daemon=True).start()
        except (RuntimeError, MemoryError):
            with self._lock:
                self._n_threads -= 1
            return False
        return True

    def _run(self) -> None:
        while self._run_next(wait=True):
            pass

    def _run_next(self, *, wait: bool) -> bool:
        try:
            job = self._jobs.get(block=wait)
        except queue.Empty:
            return False
        if job is None:
            return False
        with catch_foreign(log_failure(logger, "storing an episode")):
            job()
        with self._lock:
            self._n_open -= 1
        return True
