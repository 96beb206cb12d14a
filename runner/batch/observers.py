"""Observers of a batch: a bounded queue and a thread for each, so that none can delay or stop the batch.

Items of episodes in other processes are decoded on these threads, and only for observers that want them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from runner.errors import catch_foreign, log_failure
from runner.types import Item, detach

logger = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[Item], None]

BATCHING_INTERVAL_S = 0.05
"""Minimum seconds between two deliveries to an observer; each delivery costs two thread switches."""


@dataclass(frozen=True)
class SelectiveObserver:
    """An observer of some kinds of items; the others are neither decoded nor delivered for it."""

    kinds: frozenset[type[Item]]
    observe: Observer

    def __call__(self, item: Item) -> None:
        """Pass an item on."""
        self.observe(item)


class LazyItem:
    """An item that is decoded once, when the first observer takes it from its queue.

    Args:
        kind: class of the item.
        decode: returns the item; called on the thread of an observer.
    """

    def __init__(self, kind: type[Item], decode: Callable[[], Item]) -> None:
        """Keep the function."""
        self.kind = kind
        self._decode = decode
        self._item: Item | None = None
        self._lock = threading.Lock()

    def get(self) -> Item:
        """Return the item; raises the exceptions of ``decode``."""
        with self._lock:
            if self._item is None:
                self._item = self._decode()
            return self._item


class _ObserverThread(threading.Thread):
    def __init__(self, observer: Observer, capacity: int) -> None:
        super().__init__(name="observer", daemon=True)
        self._observer = observer
        self._kinds = observer.kinds if isinstance(observer, SelectiveObserver) else None
        self._items: deque[Item | LazyItem] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._idle = False
        self._closed = False
        self.dropped = 0

    def wants(self, kind: type[Item]) -> bool:
        return self._kinds is None or kind in self._kinds

    def put(self, item: Item | LazyItem) -> None:
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
                        item = items.popleft()
                        self._observer(item.get() if isinstance(item, LazyItem) else item)

    def _next(self) -> deque[Item | LazyItem]:
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

    def watches(self, kind: type[Item]) -> bool:
        """Return whether an observer receives this kind of items."""
        return any(thread.wants(kind) for thread in self._threads)

    def emit(self, item: Item | LazyItem) -> None:
        """Queue a copy of an item for all observers of its kind, without waiting for its delivery."""
        kind = item.kind if isinstance(item, LazyItem) else type(item)
        receivers = [thread for thread in self._threads if thread.wants(kind)]
        if receivers and not isinstance(item, LazyItem):
            item = detach(item)
        for thread in receivers:
            thread.put(item)

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver the queued items for at most ``timeout_s`` seconds per observer, then end the threads."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            thread.join(timeout_s)
