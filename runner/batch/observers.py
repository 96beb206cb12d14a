"""Observers of a batch: a bounded queue and a thread for each, so that none can delay or stop the batch."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from runner.errors import catch_foreign, log_failure
from runner.types import Item, detach

logger = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[Item], None]

BATCHING_INTERVAL_S = 0.05
"""Minimum seconds between two deliveries to an observer; each delivery costs two thread switches."""


class _ObserverThread(threading.Thread):
    def __init__(self, observer: Observer, capacity: int) -> None:
        super().__init__(name="observer", daemon=True)
        self._observer = observer
        self._items: deque[Item] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._idle = False
        self._closed = False
        self.dropped = 0

    def put(self, item: Item) -> None:
        with self._changed:
            if len(self._items) == self._items.maxlen:
                self.dropped += 1
            self._items.append(item)
            if self._idle:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        while items := self._next():
            while items:
                with catch_foreign(log_failure(logger, "an observer")):
                    while items:
                        self._observer(items.popleft())

    def _next(self) -> deque[Item]:
        """Wait for items and return all queued items; after ``close``, return an empty queue when no item is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, BATCHING_INTERVAL_S)
            self._idle = True
            self._changed.wait_for(lambda: self._items or self._closed)
            self._idle = False
            items = self._items.copy()
            self._items.clear()
            return items


class ObserverHub:
    """Delivers every item to every observer.

    The queue of each observer holds at most ``capacity`` items; when it is full, the oldest item is dropped. An
    exception in an observer is logged, and the observer keeps receiving items.
    """

    def __init__(self, observers: Iterable[Observer] = (), *, capacity: int = 10_000) -> None:
        """Start one thread per observer."""
        self._threads = [_ObserverThread(observer, capacity) for observer in observers]
        for thread in self._threads:
            thread.start()

    @property
    def dropped(self) -> int:
        """Total number of items dropped from the full queues of slow observers."""
        return sum(thread.dropped for thread in self._threads)

    def emit(self, item: Item) -> None:
        """Queue a copy of an item for all observers, without waiting for its delivery."""
        if self._threads:
            item = detach(item)
        for thread in self._threads:
            thread.put(item)

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver the queued items for at most ``timeout_s`` seconds per observer, then end the threads."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            thread.join(timeout_s)
