"""Observers see what happens and can neither slow nor end it: each has a bounded queue and a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from runner.errors import boundary, log_failure
from runner.types import Item, detached

logger = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[Item], None]

GATHER_S = 0.05
"""Seconds from one hand-over to the next at least: each costs two switches between threads, whatever it brings."""


class _Feed(threading.Thread):
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
                with boundary(log_failure(logger, "an observer")):
                    while items:
                        self._observer(items.popleft())

    def _next(self) -> deque[Item]:
        """What came in since the last time; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, GATHER_S)
            self._idle = True
            self._changed.wait_for(lambda: self._items or self._closed)
            self._idle = False
            items = self._items.copy()
            self._items.clear()
            return items


class ObserverHub:
    """Hands every item to every observer.

    An observer that falls more than ``capacity`` items behind loses the oldest ones, counted in ``dropped``; one that
    raises is logged and goes on receiving.
    """

    def __init__(self, observers: Iterable[Observer] = (), *, capacity: int = 10_000) -> None:
        """Start one thread per observer."""
        self._feeds = [_Feed(observer, capacity) for observer in observers]
        for feed in self._feeds:
            feed.start()

    @property
    def dropped(self) -> int:
        """Items that observers did not get because they were too slow."""
        return sum(feed.dropped for feed in self._feeds)

    def emit(self, item: Item) -> None:
        """Queue a copy of an item for all observers; never blocks on them."""
        if self._feeds:
            item = detached(item)
        for feed in self._feeds:
            feed.put(item)

    def close(self, timeout_s: float = 2.0) -> None:
        """Let the observers finish what is queued, for at most ``timeout_s`` seconds each."""
        for feed in self._feeds:
            feed.close()
        for feed in self._feeds:
            feed.join(timeout_s)
