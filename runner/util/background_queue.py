"""A bounded queue of items that a thread delivers, so that adding an item never waits for its delivery."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from runner.util.resources import find_shortage

_T = TypeVar("_T")


class BackgroundQueue(Generic[_T]):
    """Delivers items one after another on its own daemon thread, which the first item starts; thread-safe.

    ``deliver`` delivers one item, on an event loop that all items share; it must not raise.
    """

    def __init__(self, name: str, deliver: Callable[[_T], Coroutine[Any, Any, None]], capacity: int) -> None:
        self._name = name
        self._deliver = deliver
        self._capacity = capacity
        self._items: queue.SimpleQueue[_T | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, item: _T) -> bool:
        """Queue an item; return False if the queue is full. Without a running thread, each item tries to start one."""
        with self._lock:
            if self._items.qsize() >= self._capacity:
                return False
            self._items.put(item)
            if self._thread is None or not self._thread.is_alive():  # there may have been no file for its event loop
                self._start()
        return True

    def close(self, timeout_s: float) -> bool:
        """Deliver the queued items for at most ``timeout_s`` seconds, then drop the rest; return whether none is left.

        The delivery that is in progress goes on. An item that is put later starts a new thread.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            items, self._items = self._items, queue.SimpleQueue()
        if thread is None:
            return items.empty()
        items.put(None)
        thread.join(timeout_s)
        if not thread.is_alive():
            return items.empty()
        with contextlib.suppress(queue.Empty):
            while True:
                items.get_nowait()
        items.put(None)
        return False

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, args=(self._items,), name=self._name, daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as exc:
            if find_shortage(exc) is None:
                raise
        else:
            self._thread = thread

    def _run(self, items: queue.SimpleQueue[_T | None]) -> None:
        with asyncio.Runner() as runner:
            while (item := items.get()) is not None:
                runner.run(self._deliver(item))
