"""The background queue: order, bound, and what ``close`` and a thread that cannot start leave behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from runner.util.background_queue import BackgroundQueue


def blocked_queue(capacity: int) -> tuple[BackgroundQueue[int], list[int], Callable[[], None]]:
    """Return a queue whose delivery of item 0 has begun and waits, the delivered items, and what lets it go on."""
    delivered: list[int] = []
    began, go_on = threading.Event(), threading.Event()

    async def deliver(item: int) -> None:
        began.set()
        await asyncio.to_thread(go_on.wait, 20)
        delivered.append(item)

    items = BackgroundQueue("test", deliver, capacity)
    assert items.put(0)
    assert began.wait(20)
    return items, delivered, go_on.set


def test_items_are_delivered_in_order_by_a_thread_that_starts_again_after_close() -> None:
    items, delivered, go_on = blocked_queue(capacity=3)
    go_on()
    assert items.put(1)
    assert items.close(20)
    assert delivered == [0, 1]
    assert items.close(0)
    assert items.put(2)
    assert items.close(20)
    assert delivered == [0, 1, 2]


def test_a_full_queue_refuses_items_and_close_drops_the_rest_and_ends_the_thread() -> None:
    items, delivered, go_on = blocked_queue(capacity=2)
    thread = items._thread
    assert thread is not None
    assert [items.put(item) for item in (1, 2, 3)] == [True, True, False]
    assert not items.close(0.01)
    go_on()
    thread.join(20)
    assert not thread.is_alive()
    assert delivered == [0]


def test_items_wait_for_a_thread_that_the_system_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    delivered: list[int] = []

    async def deliver(item: int) -> None:
        delivered.append(item)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    items = BackgroundQueue("test", deliver, capacity=9)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert items.put(0)
    assert items.put(1)
    assert items.close(20)
    assert delivered == [0, 1]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert items.put(2)
    assert not items.close(20)
