from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.state.clock_skew import MAX_SENDERS, ClockSkewEstimator
from agentgym_tui.state.event_log import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    EventLog,
    EventMessage,
    LogEntry,
    LogNotice,
    merge_by_time,
)
from agentgym_tui.state.event_query import ALL_SUBJECTS, parse_patterns, parse_start, resolve_start
from agentgym_tui.state.subject_tree import (
    AUTO_OPEN_MAX,
    MAX_OVERFLOW_GROUPS,
    MAX_SUBJECT_CHARS,
    MAX_SUBJECTS,
    SubjectOrder,
    SubjectTree,
)
from runner.events.codec import encode
from runner.events.live import LiveBatch
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice
from tests.support.console.samples import HOSTILE, START, heartbeat

pytestmark = pytest.mark.usefixtures("utc")
NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def stored_message(n: int, subject: str = "a.b", payload: bytes = b"x", **headers: str) -> RawMessage:
    return RawMessage(subject, headers, payload, "S", n, START, 100 - n)


def messages(log: EventLog) -> list[EventMessage]:
    return [entry for entry in log.shown if isinstance(entry, EventMessage)]


def sequences(log: EventLog) -> list[int | None]:
    return [message.sequence for message in messages(log)]


# The log.


def test_entries_keep_their_order_and_are_not_decoded() -> None:
    log = EventLog()
    gap = Notice(kind="gap", text="3 left", count=3)
    log.append([stored_message(1), gap, RawMessage("c", {"h": "v"}, b"\xff")], NOW)
    first, notice, last = log.shown
    assert isinstance(first, EventMessage) and (first.at, first.sequence, first.stream) == (START, 1, "S")
    assert isinstance(notice, LogNotice) and (notice.kind, notice.text) == ("gap", "3 left")
    assert isinstance(last, EventMessage) and (last.at, last.payload, last.headers) == (NOW, b"\xff", {"h": "v"})
    assert (log.n_received, log.n_gap, log.n_skipped, log.lag) == (2, 3, 0, 99)


def test_gaps_and_skipped_messages_are_counted_separately() -> None:
    log = EventLog()
    log.append([Notice(kind="skipped", text="s", count=5), Notice(kind="gap", text="lost its newest")], NOW)
    assert (log.n_gap, log.n_skipped, log.n_received) == (1, 5, 0)


def test_lag_is_the_sum_of_the_unread_messages_of_each_stream() -> None:
    log = EventLog()
    log.append([RawMessage("a", {}, b"", "A", 1, START, 7), RawMessage("b", {}, b"", "B", 1, START, 5)], NOW)
    assert log.lag == 12
    log.append([RawMessage("a", {}, b"", "A", 8, START, 0)], NOW)
    assert log.lag == 5


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
@settings(max_examples=100, deadline=None)
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


# Merging of several streams.


def stream_messages(stream: str, *numbers: int) -> list[RawMessage]:
    return [RawMessage(f"{stream}.{n}", {}, b"", stream, n, START + timedelta(seconds=n)) for n in numbers]


def test_streams_are_merged_by_time_without_reordering_a_stream() -> None:
    notice, live_message = Notice(kind="gap", text=""), RawMessage("core", {}, b"")
    items: list[RawMessage | Notice] = [
        live_message,
        *stream_messages("a", 1, 4, 2),
        *stream_messages("b", 3, 5),
        notice,
        *stream_messages("b", 6),
        *stream_messages("a", 3),
    ]
    merged = [each.subject if isinstance(each, RawMessage) else each.kind for each in merge_by_time(items)]
    assert merged == ["a.1", "b.3", "a.4", "a.2", "b.5", "core", "gap", "a.3", "b.6"]


# The tree of subjects.


def test_a_branch_counts_the_messages_below_it() -> None:
    tree = SubjectTree()
    for subject in ("b", "a.x.1", "a.x.2", "a.x.2", "a.x", "a.y"):
        tree.add(subject)
    assert [(row.path, row.depth, row.n, row.n_children, row.is_subject) for row in tree.rows()] == [
        ("a", 0, 5, 2, False),
        ("a.x", 1, 4, 2, True),
        ("a.x.1", 2, 1, 0, True),
        ("a.x.2", 2, 2, 0, True),
        ("a.y", 1, 1, 0, True),
        ("b", 0, 1, 0, True),
    ]
    assert [row.patterns for row in tree.rows()][:3] == [("a.>",), ("a.x", "a.x.>"), ("a.x.1",)]


@pytest.mark.parametrize(
    ("by", "descending", "paths"),
    [
        ("subject", False, ["a", "a.x", "a.y", "b", "c"]),
        ("subject", True, ["c", "b", "a", "a.y", "a.x"]),
        ("count", True, ["a", "a.y", "a.x", "b", "c"]),
        ("count", False, ["b", "c", "a", "a.x", "a.y"]),
        ("rate", True, ["c", "a", "a.x", "a.y", "b"]),
    ],
)
def test_a_tree_is_sorted_within_each_branch(by: SubjectOrder, descending: bool, paths: list[str]) -> None:
    tree = SubjectTree()
    for subject in ("a.x", "a.y", "a.y", "b"):
        tree.add(subject)
    tree.tick(1.0)
    tree.add("c")
    tree.tick(2.0)
    assert [row.path for row in tree.rows(by, descending=descending)] == paths


def test_large_branches_are_closed_until_they_are_opened() -> None:
    tree = SubjectTree()
    for n in range(AUTO_OPEN_MAX + 1):
        tree.add(f"orders.{n}")
    assert [row.word for row in tree.rows()] == ["orders"] and not tree.rows()[0].is_open
    tree.toggle("orders")
    assert len(tree.rows()) == AUTO_OPEN_MAX + 2
    tree.toggle("orders")
    assert len(tree.rows()) == 1


def test_rates_are_per_second_and_fall_to_zero() -> None:
    tree = SubjectTree()
    tree.tick(10.0)
    for _ in range(6):
        tree.add("a.b")
    tree.add("c")
    tree.tick(12.0)
    assert tree.rate == 3.5 and [row.rate for row in tree.rows()] == [3.0, 3.0, 0.5]
    tree.tick(12.0)
    assert tree.rate == 3.5
    tree.tick(13.0)
    assert tree.rate == 0.0
    tree.reset_counts()
    assert [(row.word, row.n) for row in tree.rows()] == [("a", 0), ("b", 0), ("c", 0)]


def test_subjects_beyond_the_limit_are_counted_together() -> None:
    tree = SubjectTree()
    for n in range(MAX_SUBJECTS + 10):
        tree.add(f"inbox.{n}")
    deep = ".".join("x" * 3_000)
    assert len(tree.add(deep)) == MAX_SUBJECT_CHARS
    assert len(tree) == MAX_SUBJECTS and tree.n_others == 0
    assert [(row.word, row.n, row.is_truncated, row.patterns) for row in tree.rows()] == [
        ("inbox", MAX_SUBJECTS + 10, True, ("inbox.>",)),
        ("x", 1, True, ("x", "x.>")),
    ]
    for n in range(MAX_OVERFLOW_GROUPS + 10):
        tree.add(f"{n}.a")
    assert tree.n_others == 12 and len(tree.rows()) == MAX_OVERFLOW_GROUPS
    tree.tick(1.0)
    tree.add("inbox.new")
    tree.tick(2.0)
    assert tree.rate == 1.0 and next(row for row in tree.rows() if row.word == "inbox").rate == 1.0
    tree.reset_counts()
    assert tree.n_others == 0 and {row.n for row in tree.rows()} == {0}


# Clock skew.


def timed_message(offset_s: float, source: str = "n", **fields: str) -> RawMessage:
    at = (START + timedelta(seconds=offset_s)).isoformat()
    return RawMessage("s", {"ce-time": at, "ce-source": source, **fields}, b"", "S", 1, START)


def test_the_fastest_message_sets_the_skew_of_a_sender_and_the_largest_skew_comes_first() -> None:
    clocks = ClockSkewEstimator()
    for offset in (-30.0, -0.5, -4.0):
        clocks.sample([timed_message(offset)])
    clocks.sample([timed_message(3.5, "ahead"), RawMessage("no.time", {}, b"")])
    assert [tuple(skew) for skew in clocks.skews] == [("ahead", 3.5), ("n", -0.5)]


@pytest.mark.parametrize("n", [2, 3, 7])
def test_every_sender_of_a_batch_is_sampled_in_turn(n: int) -> None:
    clocks = ClockSkewEstimator()
    for _ in range(3 * n):
        clocks.sample([timed_message(float(offset), f"n{offset}") for offset in range(n)])
    assert {skew.sender for skew in clocks.skews} == {f"n{offset}" for offset in range(n)}


def test_live_batches_are_sampled() -> None:
    clocks, batch = ClockSkewEstimator(), LiveBatch(node="pmoves-4090", boot="b", dropped=0, items=[heartbeat()])
    payload = encode(batch)
    clocks.sample([RawMessage("agentgym.live.health.v1.n", {}, payload, "L", 1, START - timedelta(seconds=2))])
    assert [tuple(skew) for skew in clocks.skews] == [("pmoves-4090", 2.0)]


@pytest.mark.parametrize("time_text", ["", "yesterday", "2026-03-04T05:06:07", "9999-12-31T23:59:59-23:00", HOSTILE])
def test_invalid_times_are_ignored(time_text: str) -> None:
    clocks = ClockSkewEstimator()
    clocks.sample([RawMessage("s", {"ce-time": time_text, "ce-source": "n"}, b"", "S", 1, START)])
    clocks.sample([RawMessage("agentgym.live.x", {}, b"[" * 100_000, "S", 1, START)])
    assert clocks.skews == [] or time_text.startswith("9999")


def test_the_number_of_senders_is_bounded() -> None:
    clocks = ClockSkewEstimator()
    for n in range(MAX_SENDERS + 5):
        clocks.sample([timed_message(1.0, f"n{n}")])
    assert len(clocks.skews) == MAX_SENDERS


# User input.


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("all", "all"),
        (" now ", "now"),
        ("1234", 1234),
        ("#7", 7),
        ("10m", NOW - timedelta(minutes=10)),
        ("2d", NOW - timedelta(days=2)),
        ("11:30", NOW - timedelta(minutes=30)),
        ("11:59:30", NOW - timedelta(seconds=30)),
        ("12:30", NOW - timedelta(hours=23, minutes=30)),
        ("2026-03-04 11:00", NOW - timedelta(hours=1)),
        ("2026-03-04T13:00:00+02:00", NOW - timedelta(hours=1)),
        ("", None),
        ("25:00", None),
        ("yesterday", None),
        ("-1", None),
        ("9" * 50, None),
        ("0001-01-01T00:00:00+23:00", None),
    ],
)
def test_a_start_of_the_history_is_parsed(text: str, start: object) -> None:
    assert parse_start(text, NOW) == start


@given(st.text(max_size=30) | st.from_regex(r"[0-9:smhd#. -]{0,20}", fullmatch=True))
@settings(max_examples=200, deadline=None)
def test_any_text_parses_to_a_usable_start_or_none(text: str) -> None:
    start = parse_start(text, NOW)
    if start is not None:
        since = resolve_start(start, NOW)
        assert isinstance(since, str | int) or since >= timedelta()


def test_a_start_in_the_future_begins_now() -> None:
    assert resolve_start(NOW + timedelta(days=1), NOW) == timedelta()
    assert resolve_start(NOW - timedelta(days=1), NOW) == timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("", ALL_SUBJECTS),
        ("a.>", ("a.>",)),
        ("a.*.c, b", ("a.*.c", "b")),
        ("a..b", None),
        ("a.>.b", None),
        ("a>", None),
        ("x" * 300, None),
        (" ".join(f"s{n}" for n in range(50)), None),
    ],
)
def test_subject_patterns_are_parsed(text: str, patterns: tuple[str, ...] | None) -> None:
    assert parse_patterns(text) == patterns
