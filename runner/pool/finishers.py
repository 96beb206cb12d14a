"""Threads that store ended episodes, so that no other episode of a worker waits for the disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

from runner.errors import catch_foreign, log_failure

logger = logging.getLogger(__name__)

MAX_THREADS = 8

Job: TypeAlias = Callable[[], object]


class Finishers:
    """Daemon threads that run jobs; thread-safe. A job must not raise."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_threads = 0
        self._n_open = 0

    def submit(self, job: Job) -> None:
        """Runs on the caller's thread if the system starts none."""
        with self._lock:
            self._n_open += 1
            needs_thread = self._n_open > self._n_threads < self._max_threads
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
