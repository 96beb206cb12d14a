from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import StreamInfo

from runner.events.codec import RawRow, encode, headers_for
from runner.events.durable import BatchCompleted
from runner.events.subjects import (
    BATCH_COMPLETED,
    PATTERN,
    DurableNames,
    are_disjoint,
    covered_by_any,
    covers,
    intersection,
    intersections,
)
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from runner.subscribe.stream_reader import Position
from tests.support.subscriptions import SUBJECT, event_number, status_event


def message(
    number: int, event_id: str = "", source: str = "n", size: int = 10, stream: str | None = None
) -> RawMessage:
    headers = {"ce-id": event_id, "ce-source": source} if event_id else {}
    return RawMessage("some.subject", headers, b"%d" % number + b" " * size, stream, number if stream else None)


def event_message(number: int, event_id: str, source: str = "n") -> RawMessage:
    return RawMessage(SUBJECT, {"ce-id": event_id, "ce-source": source} if event_id else {}, status_event(number))


def number_of(item: SubscriptionItem | None) -> int | str:
    if isinstance(item, BusMessage):
        return int(item.decoded.payload) if isinstance(item.decoded, RawRow) else event_number(item)
    assert isinstance(item, Notice)
    return f"{item.kind} {item.count}"


async def next_item(buffer: DedupBuffer) -> SubscriptionItem | None:
    while await buffer.wait_filled():
        raw = buffer.pop()
        if (item := buffer.decode(raw) if isinstance(raw, RawMessage) else raw) is not None:
            return item
    return None


def test_only_later_messages_of_a_stream_that_elects_its_leader_are_new() -> None:
    state = dict.fromkeys(("messages", "bytes", "first_seq", "last_seq", "consumer_count"), 0)
    info = StreamInfo.from_response({"config": {"name": "S"}, "state": state, "cluster": {"name": "C"}})
    at = datetime.now(UTC)
    assert Position.initial("now", info, at) == Position(None, start=at)


async def drain(buffer: DedupBuffer) -> list[int | str]:
    buffer.end()
    result = []
    while (item := await next_item(buffer)) is not None:
        result.append(number_of(item))
    return result


async def test_skipped_messages_are_counted_at_their_position() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=4)
    for n in range(10):
        buffer.offer(message(n))
    assert [number_of(await next_item(buffer)) for _ in range(3)] == [0, 1, 2]
    buffer.offer(message(10))
    buffer.offer(message(11))
    assert [number_of(await next_item(buffer)) for _ in range(4)] == [3, "skipped 6", 10, 11]
    assert await drain(buffer) == []

    buffer = DedupBuffer(DurableNames(), capacity=2)
    for n in range(5):
        buffer.offer(message(n))
    assert await drain(buffer) == [0, 1, "skipped 3"]


async def test_the_total_size_is_limited() -> None:
    buffer = DedupBuffer(DurableNames(), max_bytes=10_000)
    for n in range(20):
        buffer.offer(message(n, size=2_000))
    items = await drain(buffer)
    assert items[-1] == f"skipped {20 - len(items) + 1}"
    assert len(items) < 8


def test_a_fetch_that_starts_while_the_buffer_is_half_full_does_not_exceed_it() -> None:
    buffer = DedupBuffer(DurableNames(), max_bytes=1 << 20)
    buffer.add_stream("A", 0)
    assert buffer.fetch_limit("A").size == 1 << 19


async def test_a_stream_reader_waits_for_space() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=10)
    for n in range(10):
        buffer.put(message(n, stream="S"))
    waiting = asyncio.create_task(buffer.wait_for_space("S"))
    n_read = 0
    while not waiting.done():
        await next_item(buffer)
        n_read += 1
        await asyncio.sleep(0)
        assert n_read <= 8
    assert n_read >= 5
    buffer.put(message(10, stream="S"))
    assert len(await drain(buffer)) == 11 - n_read


async def test_an_event_id_is_returned_once_per_source() -> None:
    buffer = DedupBuffer(DurableNames())
    for n, (event_id, source) in enumerate([("a", "x"), ("b", "x"), ("a", "x"), ("a", "y"), ("", "x"), ("", "x")]):
        buffer.put(event_message(n, event_id, source))
    assert await drain(buffer) == [0, 1, 3, 4, 5]


async def test_an_undecodable_message_does_not_hide_an_event_with_its_id() -> None:
    buffer = DedupBuffer(DurableNames())
    buffer.put(message(7, "a", "x"))
    for n in (1, 2):
        buffer.put(event_message(n, "a", "x"))
    assert await drain(buffer) == [7, 1]


@pytest.mark.parametrize("with_headers_first", [True, False])
@pytest.mark.parametrize("bare", [{}, {"Nats-Msg-Id": "batch:B"}], ids=["no headers", "id only"])
async def test_an_event_with_and_without_headers_is_returned_once(
    bare: dict[str, str], with_headers_first: bool
) -> None:
    event = BatchCompleted(
        batch_id="B",
        env="Maze",
        n_episodes=0,
        mean_reward=None,
        success_rate=None,
        status="completed",
        agent="oracle",
        model=None,
        node="n",
        battery_id=None,
    )
    complete = headers_for(BATCH_COMPLETED, "batch:B", "n", datetime.now(UTC))
    buffer = DedupBuffer(DurableNames())
    for headers in (complete, bare) if with_headers_first else (bare, complete):
        buffer.put(RawMessage(BATCH_COMPLETED, headers, encode(event)))
    buffer.end()
    assert isinstance(await next_item(buffer), BusMessage)
    assert await next_item(buffer) is None


async def test_ids_are_forgotten_oldest_first() -> None:
    buffer = DedupBuffer(DurableNames(), max_ids=2)
    for n, event_id in enumerate(["a", "b", "a", "c", "a", "b"]):
        buffer.put(event_message(n, event_id))
    assert await drain(buffer) == [0, 1, 3, 5]


async def test_a_reader_waits_for_an_item_or_the_end() -> None:
    buffer = DedupBuffer(DurableNames())
    waiting = asyncio.create_task(next_item(buffer))
    await asyncio.sleep(0)
    buffer.notify(Notice(kind="gap", text="x", count=2))
    assert number_of(await waiting) == "gap 2"
    waiting = asyncio.create_task(next_item(buffer))
    await asyncio.sleep(0)
    buffer.end()
    assert await waiting is None


def bus_message(sent: str | None, time: datetime | None = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> BusMessage:
    headers = {} if sent is None else {"ce-time": sent}
    return BusMessage(subject="s", headers=headers, time=time, decoded=RawRow(reason="", payload=b"", size=0))


@pytest.mark.parametrize(
    ("sent", "ahead_s"),
    [
        ("2026-01-01T13:00:00Z", 3600.0),
        ("2026-01-01T12:00:00+01:00", -3600.0),
        ("2026-01-01T12:00:00", None),
        ("yesterday", None),
        (None, None),
    ],
)
def test_the_clock_of_the_sender_is_compared_with_the_server(sent: str | None, ahead_s: float | None) -> None:
    assert bus_message(sent).ahead_s == ahead_s
    assert bus_message(sent, None).ahead_s is None


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("a.b", "a.b", "a.b"),
        ("a.b", "a.c", None),
        ("a", "a.b", None),
        ("a.>", "a", None),
        ("a.>", "a.b.c", "a.b.c"),
        (">", "a.*", "a.*"),
        ("a.*", "*.b", "a.b"),
        ("a.*.c", "a.>", "a.*.c"),
        ("*.b.>", "a.>", "a.b.>"),
        ("a.>", "a.>", "a.>"),
    ],
)
def test_the_intersection_of_two_patterns(one: str, other: str, both: str | None) -> None:
    assert intersection(one, other) == both
    assert intersection(other, one) == both


def test_a_pattern_covers_narrower_patterns() -> None:
    assert covers("a.>", "a.b.*")
    assert covers("a.*", "a.*")
    assert not covers("a.*", "a.>")
    assert not covers("a.b", "a.*")
    assert covered_by_any(["x", "a.>"], "a.b")
    assert not covered_by_any([], "a")


def test_intersections_are_listed_once() -> None:
    assert intersections(["agentgym.>", "agentgym.live.*"], ["agentgym.live.>", "other"]) == ["agentgym.live.>"]
    assert intersections(["a"], ["b"]) == []
    assert are_disjoint(["a.b", "a.c"])
    assert not are_disjoint(["a.*", "*.b"])


WORDS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
PATTERNS = st.tuples(WORDS, st.booleans()).map(lambda parts: ".".join([*parts[0], ">"] if parts[1] else parts[0]))
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@given(PATTERNS, PATTERNS, SUBJECTS)
def test_the_intersection_covers_exactly_the_common_subjects(one: str, other: str, subject: str) -> None:
    shared = intersection(one, other)
    assert (covers(one, subject) and covers(other, subject)) == (shared is not None and covers(shared, subject))


def test_valid_patterns_are_recognized_and_others_rejected() -> None:
    valid, invalid = ["a", "a.b", ">", "*", "a.*.>", "$JS.>", "a-b_c.ü"], ["", ".", "a.", ".a", "a..b", "a b", "a.>.b"]
    assert [text for text in valid if not PATTERN.fullmatch(text)] == []
    assert [text for text in (*invalid, "a*", "a.b>", "\n") if PATTERN.fullmatch(text)] == []


async def test_raw_messages_are_returned_unchanged_including_duplicates() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=4)
    duplicated = event_message(1, "a")
    for each in (duplicated, duplicated, message(2, stream="S"), message(3), message(4)):
        buffer.offer(each)
    assert buffer.n_waiting == 4 and await buffer.wait_filled()
    assert [buffer.pop() for _ in range(4)] == [duplicated, duplicated, message(2, stream="S"), message(3)]
    assert buffer.pop() is None and await buffer.wait_filled()
    assert buffer.pop() == Notice(kind="skipped", text="too slow: 1 messages were skipped", count=1)
    buffer.end()
    assert not await buffer.wait_filled()


async def test_what_a_core_subscription_delivered_is_not_delivered_again_by_the_stream_found_later() -> None:
    buffer = DedupBuffer(DurableNames())
    for number in (1, 2, 2):
        buffer.offer(message(number))
    buffer.add_stream("S", 3)
    for number, sequence in ((1, 1), (2, 2), (2, 3), (2, 4)):
        buffer.put(RawMessage("some.subject", {}, message(number).payload, "S", sequence))
    assert await drain(buffer) == [1, 2, 2, 2]
