from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.state.event_log import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    EventLog,
    EventMessage,
    LogEntry,
    LogNotice,
)
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice
from tests.support.console.samples import HOSTILE, START
from tests.support.examples import examples

pytestmark = pytest.mark.usefixtures("utc")
NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def stored_message(n: int, subject: str = "a.b", payload: bytes = b"x", **headers: str) -> RawMessage:
    return RawMessage(subject, headers, payload, "S", n, START, 100 - n)


def messages(log: EventLog) -> list[EventMessage]:
    return [entry for entry in log.shown if isinstance(entry, EventMessage)]


def sequences(log: EventLog) -> list[int | None]:
    return [message.sequence for message in messages(log)]


def test_entries_keep_their_order_and_are_not_decoded() -> None:
    log = EventLog()
    gap = Notice(kind="gap", text="3 left", count=3)
    log.append([stored_message(1), gap, RawMessage("c", {"h": "v"}, b"\xff")], NOW)
    first, notice, last = log.shown
    assert isinstance(first, EventMessage) and (first.at, first.sequence, first.stream) == (START, 1, "S")
    assert isinstance(notice, LogNotice) and (notice.kind, notice.text) == ("gap", "3 left")
    assert isinstance(last, EventMessage) and (last.at, last.payload, last.headers) == (NOW, b"\xff", {"h": "v"})
    assert (log.n_received, log.n_gap, log.n_skipped, log.lag) == (2, 3, 0, 99)
    log.append([Notice(kind="skipped", text="s", count=5), Notice(kind="gap", text="lost its newest")], NOW)
    assert (log.n_received, log.n_gap, log.n_skipped) == (2, 4, 5)


def test_lag_is_the_sum_of_the_unread_messages_of_each_stream() -> None:
    log = EventLog()
    log.append([RawMessage("a", {}, b"", "A", 1, START, 7), RawMessage("b", {}, b"", "B", 1, START, 5)], NOW)
    assert log.lag == 12
    log.append([RawMessage("a", {}, b"", "A", 8, START, 0)], NOW)
    assert log.lag == 5


def test_messages_of_the_history_count_in_no_rate() -> None:
    log = EventLog()
    log.subjects.tick(0.0)
    sent = [START + timedelta(seconds=n) for n in range(4)]
    log.append([RawMessage("a", {}, b"", "A", n, at, 3 - n) for n, at in enumerate(sent[:3])], NOW)
    log.subjects.tick(1.0)
    assert (log.is_replaying, log.subjects.rate, log.n_received) == (True, 0.0, 3)
    log.append([RawMessage("a", {}, b"", "A", 3, sent[3], 0), RawMessage("core", {}, b"")], NOW)
    log.subjects.tick(2.0)
    assert (log.is_replaying, log.subjects.rate) == (False, 1.0)
    log.append([RawMessage("a", {}, b"", "A", n, sent[3], 5) for n in range(4, 7)], NOW)
    log.subjects.tick(3.0)
    assert log.subjects.rate == 3.0
    log.reset()
    log.append([RawMessage("a", {}, b"", "A", 9, NOW, 5)], NOW)
    assert (log.is_replaying, log.n_received) == (False, 1)


def test_the_oldest_entries_are_evicted_and_counted() -> None:
    log = EventLog(max_entries=3)
    log.append([stored_message(n) for n in range(5)], NOW)
    assert sequences(log) == [2, 3, 4] and (log.n_evicted, log.n_received, len(log)) == (2, 5, 3) and log.is_full


def test_a_search_matches_subject_headers_and_payload_of_old_and_new_messages() -> None:
    log = EventLog()
    log.append(
        [
            stored_message(1, "Orders.new"),
            stored_message(2, "b", b'{"a": "ORDERS new"}'),
            stored_message(3, "b", b"", x="orders", y="New"),
        ],
        NOW,
    )
    log.append([stored_message(4, "b", b"other"), Notice(kind="no_history", text="orders, new ones")], NOW)
    log.search(" ORDERS new ")
    assert sequences(log) == [1, 2, 3] and isinstance(log.shown[-1], LogNotice)
    log.append([stored_message(5, "orders", b"new"), stored_message(6)], NOW)
    assert sequences(log) == [1, 2, 3, 5]
    log.search("")
    assert sequences(log) == [1, 2, 3, 4, 5, 6]


def test_a_log_of_an_episode_keeps_only_messages_that_name_it() -> None:
    log = EventLog()
    log.reset("01J")
    log.append(
        [
            stored_message(1, payload=b'{"episode_id":"01J"}'),
            stored_message(2),
            RawMessage("a", {"ce-id": "episode:01J"}, b"", "S", 3),
        ],
        NOW,
    )
    assert sequences(log) == [1, 3] and log.n_received == 3
    log.reset()
    assert (len(log), log.n_received, log.lag) == (0, 0, 0)


def test_large_messages_are_clipped_and_keep_their_size() -> None:
    log = EventLog()
    log.append([RawMessage("s", {f"h{n}": "v" * 1_000 for n in range(500)}, b"x" * (2 * MAX_PAYLOAD_BYTES))], NOW)
    (message,) = messages(log)
    assert (len(message.payload), message.n_bytes) == (MAX_PAYLOAD_BYTES, 2 * MAX_PAYLOAD_BYTES)
    assert sum(map(len, message.headers.values())) <= MAX_HEADER_BYTES


ITEMS = st.one_of(
    st.builds(
        lambda subject, payload, n: RawMessage(subject, {"h": subject}, payload, "S", n, START, n),
        st.sampled_from(["a.b", "a.c", "x", HOSTILE, "b." * 300, ""]),
        st.sampled_from([b"", b"needle", b"y" * 3_000, HOSTILE.encode("utf-8", "replace")]),
        st.integers(0, 9),
    ),
    st.builds(lambda n: Notice(kind="gap", text="needle", count=n), st.integers(-1, 9)),
)


@given(st.lists(st.lists(ITEMS, max_size=12), max_size=12), st.sampled_from(["", "needle", "a.b y", "\ud800"]))
@settings(max_examples=examples(100), deadline=None)
def test_the_log_stays_within_bounds_and_shows_matching_entries(
    chunks: list[list[RawMessage | Notice]], words: str
) -> None:
    log, all_entries = EventLog(max_entries=20, max_bytes=20_000), EventLog(max_entries=20, max_bytes=20_000)
    log.search(words)
    for chunk in chunks:
        log.append(chunk, NOW)
        all_entries.append(chunk, NOW)
        assert len(log) <= 20 and (log.n_bytes <= 20_000 or len(log) == 1)
    all_entries.search(words)
    assert [content(entry) for entry in log.shown] == [content(entry) for entry in all_entries.shown]
    n_messages = sum(isinstance(each, RawMessage) for chunk in chunks for each in chunk)
    assert (
        log.n_received
        == n_messages
        == sum(row.n for row in log.subjects.rows() if row.depth == 0) + log.subjects.n_others
    )


def content(entry: LogEntry) -> tuple[object, ...]:
    return (entry.number, entry.text) if isinstance(entry, LogNotice) else (entry.number, entry.subject, entry.payload)
