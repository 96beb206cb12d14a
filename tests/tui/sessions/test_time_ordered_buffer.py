from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.sessions import time_ordered_buffer
from agentgym_tui.sessions.time_ordered_buffer import TimeOrderedBuffer
from runner.events.subjects import DurableNames
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice


@pytest.fixture(autouse=True)
def long_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ordered_buffer, "HOLD_S", 60.0)


START = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def message(number: int, stream: str | None, pending: int = 0) -> RawMessage:
    at = None if stream is None else START + timedelta(seconds=number)
    return RawMessage("s", {}, b"%d" % number, stream, None if stream is None else number, at, pending)


def notice(text: str) -> Notice:
    return Notice(kind="gap", text=text)


def buffer_with(*streams: str, capacity: int = 10_000) -> TimeOrderedBuffer:
    buffer = TimeOrderedBuffer(DurableNames(), capacity=capacity)
    for stream in streams:
        buffer.add_stream(stream, 100)
    return buffer


def ready_items(buffer: TimeOrderedBuffer) -> list[int | str]:
    result: list[int | str] = []
    while (item := buffer.pop()) is not None:
        result.append(int(item.payload) if isinstance(item, RawMessage) else item.text)
    return result


def test_a_message_waits_for_streams_with_pending_messages() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(1, "A", pending=1))
    buffer.put(message(5, "A"))
    assert ready_items(buffer) == []
    buffer.put(message(2, "B", pending=7))
    assert ready_items(buffer) == [1, 2]
    buffer.put(message(9, "B", pending=6))
    assert ready_items(buffer) == [5, 9]
    buffer.put(message(8, "A", pending=0))
    assert ready_items(buffer) == []
    buffer.update_pending("B", 0)
    assert ready_items(buffer) == [8]


async def test_a_silent_stream_delays_the_others_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ordered_buffer, "HOLD_S", 0.1)
    buffer = buffer_with("A", "B")
    buffer.put(message(5, "A"))
    assert ready_items(buffer) == []
    async with asyncio.timeout(10):
        assert await buffer.wait_filled()
    assert ready_items(buffer) == [5]
    buffer.put(message(3, "B"))  # delayed, but not lost
    assert ready_items(buffer) == [3]


async def test_removing_a_stream_wakes_the_waiting_reader() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(5, "A"))
    waiting = asyncio.create_task(buffer.wait_filled())
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.update_pending("B", 0)
    async with asyncio.timeout(10):
        assert await waiting
    assert ready_items(buffer) == [5]


async def test_an_ended_buffer_releases_all_messages() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(5, "A", pending=3))
    buffer.end()
    assert await buffer.wait_filled() and ready_items(buffer) == [5]
    assert not await buffer.wait_filled()


@given(st.lists(st.sampled_from("ABC"), max_size=40), st.randoms(use_true_random=False))
def test_any_arrival_order_is_merged_by_time_without_loss(order: list[str], random: Random) -> None:
    buffer = buffer_with("A", "B", "C")
    unsent = {name: [n for n, stream in enumerate(order) if stream == name] for name in "ABC"}
    for name in (name for name, numbers in unsent.items() if not numbers):
        buffer.update_pending(name, 0)
    output: list[int | str] = []
    while names := sorted(name for name, numbers in unsent.items() if numbers):
        name = random.choice(names)
        buffer.put(message(unsent[name].pop(0), name, pending=len(unsent[name])))
        if random.random() < 0.5:
            output += ready_items(buffer)
    assert output + ready_items(buffer) == list(range(len(order)))


def test_a_stream_keeps_its_order_and_the_position_of_its_notices() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(7, "A"))
    buffer.notify(notice("about A"), "A")
    buffer.put(message(3, "A"))
    buffer.put(message(5, "B"))
    buffer.notify(notice("about all"))
    assert ready_items(buffer) == ["about all", 5, 7, "about A", 3]


def test_core_messages_follow_the_history_and_then_keep_their_arrival_order() -> None:
    buffer = buffer_with("A")
    buffer.offer(message(100, None))
    buffer.put(message(1, "A", pending=2))
    buffer.put(message(2, "A", pending=1))
    buffer.offer(message(101, None))
    assert ready_items(buffer) == [1, 2]
    buffer.put(message(3, "A"))
    assert ready_items(buffer) == [3, 100, 101]
    buffer.put(message(4, "A"))
    buffer.offer(message(102, None))
    buffer.put(message(5, "A"))
    assert ready_items(buffer) == [4, 102, 5]


async def test_each_stream_has_an_equal_share_of_the_capacity() -> None:
    buffer = buffer_with("A", "B", capacity=400)
    assert buffer.fetch_limit("A").count == 50
    for number in range(60):
        buffer.put(message(number, "A", pending=1))
    await buffer.wait_for_space("B")
    waiting = asyncio.create_task(buffer.wait_for_space("A"))
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.update_pending("B", 0)  # frees its share
    buffer.pop()
    assert buffer.fetch_limit("A").count == 100
    async with asyncio.timeout(10):
        await waiting
