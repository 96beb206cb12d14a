from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.events.codec import RawRow, encode, headers_for
from runner.events.durable import BatchCompleted
from runner.events.subjects import BATCH_COMPLETED, DurableNames
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from runner.subscribe.subject_patterns import PATTERN, are_disjoint, covered_by_any, covers, intersection, intersections
from tests.support.subscriptions import SUBJECT, event_number, status_event


def message(
    number: int, event_id: str = "", source: str = "n", size: int = 10, stream: str | None = None
) -> RawMessage:
    headers = {"ce-id": event_id, "ce-source": source} if event_id else {}
    return RawMessage("some.subject", headers, b"%d" % number + b" " * size, stream, number if stream else None)


def valid(number: int, event_id: str, source: str = "n") -> RawMessage:
    """An event that decodes, unlike a ``message``."""
    return RawMessage(SUBJECT, {"ce-id": event_id, "ce-source": source} if event_id else {}, status_event(number))


def number(seen: SubscriptionItem | None) -> int | str:
    if isinstance(seen, BusMessage):
        return int(seen.decoded.payload) if isinstance(seen.decoded, RawRow) else event_number(seen)
    assert isinstance(seen, Notice)
    return f"{seen.kind} {seen.count}"


async def all_of(buffer: DedupBuffer) -> list[int | str]:
    buffer.end()
    result = []
    while (seen := await buffer.next_item()) is not None:
        result.append(number(seen))
    return result


async def test_what_is_offered_to_a_full_buffer_is_counted_where_it_is_missing() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=4)
    for n in range(10):
        buffer.offer(message(n))
    assert [number(await buffer.next_item()) for _ in range(3)] == [0, 1, 2]
    buffer.offer(message(10))
    buffer.offer(message(11))
    assert [number(await buffer.next_item()) for _ in range(4)] == [3, "skipped 6", 10, 11]
    assert await all_of(buffer) == []


async def test_what_was_left_out_at_the_end_is_told_when_the_rest_was_read() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=2)
    for n in range(5):
        buffer.offer(message(n))
    assert [number(await buffer.next_item()) for _ in range(3)] == [0, 1, "skipped 3"]
    assert await all_of(buffer) == []


async def test_bytes_are_bounded_too() -> None:
    buffer = DedupBuffer(DurableNames(), max_bytes=10_000)
    for n in range(20):
        buffer.offer(message(n, size=2_000))
    seen = await all_of(buffer)
    assert seen[-1] == f"skipped {20 - len(seen) + 1}"
    assert len(seen) < 8


async def test_a_reader_of_a_stream_waits_until_there_is_room() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=10)
    for n in range(10):
        buffer.put(message(n, stream="S"))
    waiting = asyncio.create_task(buffer.wait_for_space("S"))
    taken = 0
    while not waiting.done():
        await buffer.next_item()
        taken += 1
        await asyncio.sleep(0)
        assert taken <= 8
    assert taken >= 5
    buffer.put(message(10, stream="S"))
    assert len(await all_of(buffer)) == 11 - taken


async def test_an_id_is_seen_once_per_source() -> None:
    buffer = DedupBuffer(DurableNames())
    for n, (event_id, source) in enumerate([("a", "x"), ("b", "x"), ("a", "x"), ("a", "y"), ("", "x"), ("", "x")]):
        buffer.put(valid(n, event_id, source))
    assert await all_of(buffer) == [0, 1, 3, 4, 5]


async def test_what_does_not_decode_hides_no_event_of_the_same_id() -> None:
    buffer = DedupBuffer(DurableNames())
    buffer.put(message(7, "a", "x"))
    for n in (1, 2):
        buffer.put(valid(n, "a", "x"))
    assert await all_of(buffer) == [7, 1]


@pytest.mark.parametrize("with_headers_first", [True, False])
@pytest.mark.parametrize("bare", [{}, {"Nats-Msg-Id": "batch:B"}], ids=["none", "id only"])
async def test_an_event_with_and_without_headers_is_one(bare: dict[str, str], with_headers_first: bool) -> None:
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
    full = headers_for(BATCH_COMPLETED, "batch:B", "n", datetime.now(UTC))
    buffer = DedupBuffer(DurableNames())
    for carried in (full, bare) if with_headers_first else (bare, full):
        buffer.put(RawMessage(BATCH_COMPLETED, carried, encode(event)))
    buffer.end()
    assert isinstance(await buffer.next_item(), BusMessage)
    assert await buffer.next_item() is None


async def test_ids_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.subscribe.buffer.MAX_IDS_REMEMBERED", 2)
    buffer = DedupBuffer(DurableNames())
    for n, event_id in enumerate(["a", "b", "a", "c", "a", "b"]):
        buffer.put(valid(n, event_id))
    assert await all_of(buffer) == [0, 1, 3, 5]


async def test_taking_waits_for_something_and_ends() -> None:
    buffer = DedupBuffer(DurableNames())
    taking = asyncio.create_task(buffer.next_item())
    await asyncio.sleep(0)
    buffer.notify(Notice(kind="gap", text="x", count=2))
    assert number(await taking) == "gap 2"
    taking = asyncio.create_task(buffer.next_item())
    await asyncio.sleep(0)
    buffer.end()
    assert await taking is None
    assert buffer.next_ready() is None


def received(sent: str | None, time: datetime | None = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> BusMessage:
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
def test_clocks_are_compared(sent: str | None, ahead_s: float | None) -> None:
    assert received(sent).ahead_s == ahead_s
    assert received(sent, None).ahead_s is None


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
def test_patterns_meet(one: str, other: str, both: str | None) -> None:
    assert intersection(one, other) == both
    assert intersection(other, one) == both


def test_covering() -> None:
    assert covers("a.>", "a.b.*")
    assert covers("a.*", "a.*")
    assert not covers("a.*", "a.>")
    assert not covers("a.b", "a.*")
    assert covered_by_any(["x", "a.>"], "a.b")
    assert not covered_by_any([], "a")


def test_what_is_shared_is_told_once() -> None:
    assert intersections(["agentgym.>", "agentgym.live.*"], ["agentgym.live.>", "other"]) == ["agentgym.live.>"]
    assert intersections(["a"], ["b"]) == []
    assert are_disjoint(["a.b", "a.c"])
    assert not are_disjoint(["a.*", "*.b"])


WORDS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
PATTERNS = st.tuples(WORDS, st.booleans()).map(lambda made: ".".join([*made[0], ">"] if made[1] else made[0]))
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@given(PATTERNS, PATTERNS, SUBJECTS)
def test_a_subject_of_both_is_one_of_what_they_share(one: str, other: str, subject: str) -> None:
    shared = intersection(one, other)
    assert (covers(one, subject) and covers(other, subject)) == (shared is not None and covers(shared, subject))


@pytest.mark.parametrize("text", ["a", "a.b", ">", "*", "a.*.>", "$JS.>", "a-b_c.ü"])
def test_patterns_are_recognised(text: str) -> None:
    assert PATTERN.fullmatch(text)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "a.>.b", "a*", "a.b>", "\n"])
def test_other_texts_are_no_patterns(text: str) -> None:
    assert PATTERN.fullmatch(text) is None


async def test_what_is_taken_raw_is_as_it_came_and_there_as_often_as_it_came() -> None:
    buffer = DedupBuffer(DurableNames(), capacity=4)
    twice = valid(1, "a")
    for each in (twice, twice, message(2, stream="S"), message(3), message(4)):
        buffer.offer(each)
    assert buffer.n_waiting == 4 and await buffer.wait_filled()
    assert [buffer.pop() for _ in range(4)] == [twice, twice, message(2, stream="S"), message(3)]
    assert buffer.pop() is None and await buffer.wait_filled()
    assert buffer.pop() == Notice(kind="skipped", text="too slow: 1 messages were skipped", count=1)
    buffer.end()
    assert not await buffer.wait_filled()
