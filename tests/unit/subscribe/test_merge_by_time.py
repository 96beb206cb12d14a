from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from runner.events.subjects import DurableNames
from runner.subscribe.buffer import RawMessage
from runner.subscribe.merge_by_time import TimeOrderedBuffer
from runner.subscribe.messages import Notice

START = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def message(number: int, stream: str | None, pending: int = 0) -> RawMessage:
    at = None if stream is None else START + timedelta(seconds=number)
    return RawMessage("s", {}, b"%d" % number, stream, None if stream is None else number, at, pending)


def notice(text: str) -> Notice:
    return Notice(kind="gap", text=text)


def buffer_with(*streams: str, hold_s: float = 60.0, capacity: int = 10_000) -> TimeOrderedBuffer:
    buffer = TimeOrderedBuffer(DurableNames(), capacity=capacity, hold_s=hold_s)
    for stream in streams:
        buffer.add_stream(stream, 100)
    return buffer


def there(buffer: TimeOrderedBuffer) -> list[int | str]:
    """What may go now."""
    result: list[int | str] = []
    while (item := buffer.pop()) is not None:
        result.append(int(item.payload) if isinstance(item, RawMessage) else item.text)
    return result


def test_a_message_waits_for_those_streams_that_have_more() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(1, "A", pending=1))
    buffer.put(message(5, "A"))
    assert there(buffer) == []
    buffer.put(message(2, "B", pending=7))
    assert there(buffer) == [1, 2]
    buffer.put(message(9, "B", pending=6))
    assert there(buffer) == [5, 9]
    buffer.put(message(8, "A", pending=0))
    assert there(buffer) == []
    buffer.update_pending("B", 0)
    assert there(buffer) == [8]


async def test_a_stream_that_brings_nothing_holds_the_others_up_for_a_moment() -> None:
    buffer = buffer_with("A", "B", hold_s=0.1)
    buffer.put(message(5, "A"))
    assert there(buffer) == []
    async with asyncio.timeout(10):
        assert await buffer.wait_filled()
    assert there(buffer) == [5]
    buffer.put(message(3, "B"))  # late, but not lost
    assert there(buffer) == [3]


async def test_who_waits_is_told_when_a_stream_ends() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(5, "A"))
    waiting = asyncio.create_task(buffer.wait_filled())
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.remove_stream("B")
    async with asyncio.timeout(10):
        assert await waiting
    assert there(buffer) == [5]


async def test_nothing_waits_once_all_is_over() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(5, "A", pending=3))
    buffer.end()
    assert await buffer.wait_filled() and there(buffer) == [5]
    assert not await buffer.wait_filled()


@given(st.lists(st.sampled_from("ABC"), max_size=40), st.randoms(use_true_random=False))
def test_however_it_arrives_it_goes_out_by_time_and_nothing_is_missing(said: list[str], random: Random) -> None:
    buffer = buffer_with("A", "B", "C")
    coming = {name: [n for n, stream in enumerate(said) if stream == name] for name in "ABC"}
    for name in (name for name, numbers in coming.items() if not numbers):
        buffer.update_pending(name, 0)
    went: list[int | str] = []
    while left := sorted(name for name, numbers in coming.items() if numbers):
        name = random.choice(left)
        buffer.put(message(coming[name].pop(0), name, pending=len(coming[name])))
        if random.random() < 0.5:
            went += there(buffer)
    assert went + there(buffer) == list(range(len(said)))


def test_a_streams_own_order_and_its_notices_stay() -> None:
    buffer = buffer_with("A", "B")
    buffer.put(message(7, "A"))
    buffer.notify(notice("of A"), "A")
    buffer.put(message(3, "A"))
    buffer.put(message(5, "B"))
    buffer.notify(notice("of all"))
    assert there(buffer) == ["of all", 5, 7, "of A", 3]


def test_what_no_stream_keeps_is_the_newest_of_the_history_and_then_comes_as_it_passes() -> None:
    buffer = buffer_with("A")
    buffer.offer(message(100, None))
    buffer.put(message(1, "A", pending=2))
    buffer.put(message(2, "A", pending=1))
    buffer.offer(message(101, None))
    assert there(buffer) == [1, 2]
    buffer.put(message(3, "A"))
    buffer.put(message(4, "A"))
    buffer.offer(message(102, None))
    buffer.put(message(5, "A"))
    assert there(buffer) == [3, 100, 101, 4, 102, 5]


async def test_each_stream_has_its_share_of_the_room() -> None:
    buffer = buffer_with("A", "B", capacity=400)
    assert buffer.fetch_limit("A").count == 50
    for number in range(60):
        buffer.put(message(number, "A", pending=1))
    await buffer.wait_for_space("B")
    waiting = asyncio.create_task(buffer.wait_for_space("A"))
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.remove_stream("B")  # which leaves its share
    assert buffer.fetch_limit("A").count == 100
    buffer.pop()
    async with asyncio.timeout(10):
        await waiting
