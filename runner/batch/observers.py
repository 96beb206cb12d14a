"""Observers of a batch: a bounded queue and a thread for each, so that none can delay or stop the batch.

Items of episodes in other processes are decoded only for observers that want them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from runner.errors import catch_foreign, log_failure
from runner.types import EpisodeStarted, Item

logger = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[Item], None]

BATCHING_INTERVAL_S = 0.05
"""Minimum seconds between two deliveries to an observer; each delivery costs two thread switches."""


def wants_all(kind: type[Item]) -> bool:
    return True


class SelectiveObserver(msgspec.Struct, frozen=True):
    """An observer of some kinds of items; the others are neither decoded nor delivered for it.

    Attributes:
        wants: returns whether it wants a kind of items now; called at each item, on any thread.
        is_brief: whether the end of an episode of another process needs no texts of its steps; then the decoded steps
            are not kept until that end.
        is_inline: whether it needs no thread and no copy: it is called where the item is emitted, on several threads at
            once. It must neither block nor raise nor change the item.
    """

    observe: Observer
    wants: Callable[[type[Item]], bool]
    is_brief: bool = True
    is_inline: bool = False

    def __call__(self, item: Item | LazyItem) -> None:
        if isinstance(item, LazyItem):
            item = item.get_brief() if self.is_brief else item.get()
        self.observe(item)


class LazyItem:
    """An item that is decoded when an observer takes it.

    Args:
        decode: returns the item; called once, on the thread of an observer.
        decode_brief: returns the item for an ``is_brief`` observer; ``decode`` if None.
    """

    def __init__(
        self, kind: type[Item], decode: Callable[[], Item], decode_brief: Callable[[], Item] | None = None
    ) -> None:
        self.kind = kind
        self._decode = decode
        self._decode_brief = decode_brief
        self._item: Item | None = None
        self._lock = threading.Lock()

    def get(self) -> Item:
        with self._lock:
            if self._item is None:
                self._item = self._decode()
            return self._item

    def get_brief(self) -> Item:
        """Return the item for an ``is_brief`` observer, without keeping it; raises the exceptions of its decoder."""
        return self._item or (self._decode_brief or self._decode)()


class _ObserverThread(threading.Thread):
    def __init__(self, observer: Observer, capacity: int) -> None:
        super().__init__(name="observer", daemon=True)
        if not isinstance(observer, SelectiveObserver):
            observer = SelectiveObserver(observer, wants_all, is_brief=False)
        self._receive = observer
        self.wants = observer.wants
        self._items: deque[Item | LazyItem] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._idle = False
        self._closed = False
        self.dropped = 0

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
                        self._receive(items.popleft())

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

    def __init__(self, observers: Iterable[Observer | SelectiveObserver] = (), *, capacity: int = 10_000) -> None:
        self._inline: list[SelectiveObserver] = []
        self._threads: list[_ObserverThread] = []
        for observer in observers:
            if isinstance(observer, SelectiveObserver) and observer.is_inline:
                self._inline.append(observer)
            else:
                self._threads.append(_ObserverThread(observer, capacity))
        for thread in self._threads:
            thread.start()

    @property
    def dropped(self) -> int:
        return sum(thread.dropped for thread in self._threads)

    def watches(self, kind: type[Item]) -> bool:
        return any(each.wants(kind) for each in self._inline) or any(each.wants(kind) for each in self._threads)

    def emit(self, item: Item | LazyItem) -> None:
        """Call the inline observers; queue a copy of the item for the others, without waiting for its delivery."""
        kind = item.kind if isinstance(item, LazyItem) else type(item)
        for observer in self._inline:
            if observer.wants(kind):
                with catch_foreign(log_failure(logger, "an observer")):
                    observer(item)
        receivers = [thread for thread in self._threads if thread.wants(kind)]
        if receivers and isinstance(item, EpisodeStarted):  # its receivers may change what the others get
            header = msgspec.structs.replace(item.header, versions=item.header.versions.copy())
            item = msgspec.structs.replace(item, header=header)
        for thread in receivers:
            thread.put(item)

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver the queued items for at most ``timeout_s`` seconds per observer, then end the threads."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            thread.join(timeout_s)
