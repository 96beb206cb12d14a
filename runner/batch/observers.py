"""Observers of a batch: a bounded queue and a thread for each, so that none can delay or stop the batch."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from runner.errors import catch_foreign, log_failure
from runner.events.live import EpisodeEnded, EpisodeStarted
from runner.events.subjects import LiveChannel
from runner.store.episode_file import EpisodeRecord
from runner.types import (
    BatchProgress,
    EpisodePaused,
    EpisodeResumed,
    WorkerState,
)

logger = logging.getLogger(__name__)

Encoded: TypeAlias = Literal["timestep", "token", "request", "span"]
"""Kinds of live items that arrive encoded; ``request`` is news of a request for the answer whose text is ``token``."""


class LiveItems(msgspec.Struct, frozen=True):
    """Live items of an episode as JSON, as they were encoded where it is played."""

    kind: Encoded
    items: tuple[bytes, ...]

    @property
    def channel(self) -> LiveChannel:
        return "token" if self.kind == "request" else self.kind


class EpisodeStored(msgspec.Struct, frozen=True):
    """An episode has ended and is stored; ``record`` has no texts, ``end`` is the live item of its end."""

    record: EpisodeRecord
    end: EpisodeEnded


class UnstoredEpisode(msgspec.Struct, frozen=True):
    """An ended episode that could not be stored.

    Attributes:
        stored: the item that observers receive once it is stored.
        content: the episode as ``EpisodeStore.save`` writes it.
    """

    stored: EpisodeStored
    content: EpisodeRecord


BatchItem: TypeAlias = (
    EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeStored | BatchProgress | WorkerState | LiveItems
)
Observer: TypeAlias = Callable[[BatchItem], None]
Kind: TypeAlias = type[BatchItem] | Encoded

BATCHING_INTERVAL_S = 0.05
"""Minimum seconds between two deliveries to an observer; each delivery costs two thread switches."""


def wants_all(kind: Kind) -> bool:
    return True


class SelectiveObserver(msgspec.Struct, frozen=True):
    """An observer of some kinds of items; the others are neither encoded nor delivered for it.

    Attributes:
        wants: returns whether it wants a kind of items now; called at each item, on any thread.
        is_inline: whether it needs no thread: it is called where the item is emitted, on several threads at once. It
            must neither block nor raise.
    """

    observe: Observer
    wants: Callable[[Kind], bool] = wants_all
    is_inline: bool = False


class _ObserverThread(threading.Thread):
    def __init__(self, observer: SelectiveObserver, capacity: int) -> None:
        super().__init__(name="observer", daemon=True)
        self._observe = observer.observe
        self.wants = observer.wants
        self._items: deque[BatchItem] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._idle = False
        self._closed = False

    def put(self, item: BatchItem) -> None:
        with self._changed:
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
                        self._observe(items.popleft())

    def _next(self) -> deque[BatchItem]:
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
        for each in observers:
            observer = each if isinstance(each, SelectiveObserver) else SelectiveObserver(each)
            if observer.is_inline:
                self._inline.append(observer)
            else:
                self._threads.append(_ObserverThread(observer, capacity))
        for thread in self._threads:
            thread.start()

    def watches(self, kind: Kind) -> bool:
        return any(each.wants(kind) for each in self._inline) or any(each.wants(kind) for each in self._threads)

    def emit(self, item: BatchItem) -> None:
        """Call the inline observers; queue the item for the others, without waiting for its delivery."""
        kind: Kind = item.kind if isinstance(item, LiveItems) else type(item)
        for observer in self._inline:
            if observer.wants(kind):
                with catch_foreign(log_failure(logger, "an observer")):
                    observer.observe(item)
        for thread in self._threads:
            if thread.wants(kind):
                thread.put(item)

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver the queued items for at most ``timeout_s`` seconds per observer, then end the threads."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            thread.join(timeout_s)
