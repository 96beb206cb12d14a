from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.state.bus_message import MAX_HEADERS, LogEntry, Message, Remark
from agentgym_tui.state.clock_skew import MAX_SENDERS, Clocks
from agentgym_tui.state.event_log import MAX_PAYLOAD, EventLog
from agentgym_tui.state.event_order import by_time
from agentgym_tui.state.event_query import EVERYTHING, patterns_of, since_of, start_of
from agentgym_tui.state.subject_tree import MANY, MAX_CUT, MAX_SUBJECT, MAX_SUBJECTS, By, SubjectTree
from runner.events.codec import encode
from runner.events.live import LiveBatch
from runner.subscribe.buffer import Incoming
from runner.subscribe.messages import Notice
from tests.support.console.samples import HOSTILE, START, heartbeat

pytestmark = pytest.mark.usefixtures("utc")
NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def kept(n: int, subject: str = "a.b", payload: bytes = b"x", **headers: str) -> Incoming:
    return Incoming(subject, headers, payload, "S", n, START, 100 - n)


def messages(log: EventLog) -> list[Message]:
    return [entry for entry in log.shown if isinstance(entry, Message)]


def numbers(log: EventLog) -> list[int | None]:
    return [message.sequence for message in messages(log)]


# The log.


def test_what_came_is_kept_in_its_order_and_not_decoded() -> None:
    log = EventLog()
    gap = Notice(kind="gap", text="3 left", count=3)
    log.take([kept(1), gap, Incoming("c", {"h": "v"}, b"\xff")], NOW)
    first, remark, last = log.shown
    assert isinstance(first, Message) and (first.at, first.sequence, first.stream) == (START, 1, "S")
    assert isinstance(remark, Remark) and (remark.kind, remark.text) == ("gap", "3 left")
    assert isinstance(last, Message) and (last.at, last.payload, last.headers) == (NOW, b"\xff", {"h": "v"})
    assert (log.n_seen, log.n_gap, log.n_skipped, log.lag) == (2, 3, 0, 99)


def test_gaps_and_what_was_skipped_are_counted_apart() -> None:
    log = EventLog()
    log.take([Notice(kind="skipped", text="s", count=5), Notice(kind="gap", text="lost its newest")], NOW)
    assert (log.n_gap, log.n_skipped, log.n_seen) == (1, 5, 0)


def test_lag_is_what_each_stream_has_behind() -> None:
    log = EventLog()
    log.take([Incoming("a", {}, b"", "A", 1, START, 7), Incoming("b", {}, b"", "B", 1, START, 5)], NOW)
    assert log.lag == 12
    log.take([Incoming("a", {}, b"", "A", 8, START, 0)], NOW)
    assert log.lag == 5


def test_the_oldest_go_and_are_counted() -> None:
    log = EventLog(max_entries=3)
    log.take([kept(n) for n in range(5)], NOW)
    assert numbers(log) == [2, 3, 4] and (log.n_gone, log.n_seen, len(log)) == (2, 5, 3) and log.full


def test_words_are_found_in_subject_headers_and_payload_also_later() -> None:
    log = EventLog()
    log.take([kept(1, "Orders.new"), kept(2, "b", b'{"a": "ORDERS new"}'), kept(3, "b", b"", x="orders", y="New")], NOW)
    log.take([kept(4, "b", b"other"), Notice(kind="no_history", text="orders, new ones")], NOW)
    log.search(" ORDERS new ")
    assert numbers(log) == [1, 2, 3] and isinstance(log.shown[-1], Remark)
    log.take([kept(5, "orders", b"new"), kept(6)], NOW)
    assert numbers(log) == [1, 2, 3, 5]
    log.search("")
    assert numbers(log) == [1, 2, 3, 4, 5, 6]


def test_only_what_names_the_episode_is_taken() -> None:
    log = EventLog()
    log.begin("01J")
    log.take(
        [kept(1, payload=b'{"episode_id":"01J"}'), kept(2), Incoming("a", {"ce-id": "episode:01J"}, b"", "S", 3)], NOW
    )
    assert numbers(log) == [1, 3] and log.n_seen == 3
    log.begin()
    assert (len(log), log.n_seen, log.lag) == (0, 0, 0)


def test_large_messages_are_cut_and_say_so() -> None:
    log = EventLog()
    log.take([Incoming("s", {f"h{n}": "v" * 1_000 for n in range(500)}, b"x" * (2 * MAX_PAYLOAD))], NOW)
    (message,) = messages(log)
    assert (len(message.payload), message.n_bytes) == (MAX_PAYLOAD, 2 * MAX_PAYLOAD)
    assert sum(map(len, message.headers.values())) <= MAX_HEADERS


ITEMS = st.one_of(
    st.builds(
        lambda subject, payload, n: Incoming(subject, {"h": subject}, payload, "S", n, START, n),
        st.sampled_from(["a.b", "a.c", "x", HOSTILE, "b." * 300, ""]),
        st.sampled_from([b"", b"needle", b"y" * 3_000, HOSTILE.encode("utf-8", "replace")]),
        st.integers(0, 9),
    ),
    st.builds(lambda n: Notice(kind="gap", text="needle", count=n), st.integers(-1, 9)),
)


@given(st.lists(st.lists(ITEMS, max_size=12), max_size=12), st.sampled_from(["", "needle", "a.b y", "\ud800"]))
@settings(max_examples=100, deadline=None)
def test_the_log_stays_within_bounds_and_shows_what_holds_the_words(
    chunks: list[list[Incoming | Notice]], words: str
) -> None:
    log, all_entries = EventLog(max_entries=20, max_bytes=20_000), EventLog(max_entries=20, max_bytes=20_000)
    log.search(words)
    for chunk in chunks:
        log.take(chunk, NOW)
        all_entries.take(chunk, NOW)
        assert len(log) <= 20 and (log.n_bytes <= 20_000 or len(log) == 1)
    all_entries.search(words)
    assert [content(entry) for entry in log.shown] == [content(entry) for entry in all_entries.shown]
    seen = sum(isinstance(each, Incoming) for chunk in chunks for each in chunk)
    assert log.n_seen == seen == sum(row.n for row in log.subjects.rows() if row.depth == 0) + log.subjects.n_others


def content(entry: LogEntry) -> tuple[object, ...]:
    return (entry.number, entry.text) if isinstance(entry, Remark) else (entry.number, entry.subject, entry.payload)


# The order of several streams.


def of_stream(stream: str, *numbers: int) -> list[Incoming]:
    return [Incoming(f"{stream}.{n}", {}, b"", stream, n, START + timedelta(seconds=n)) for n in numbers]


def test_streams_are_merged_by_time_each_in_its_own_order() -> None:
    notice, unkept = Notice(kind="gap", text=""), Incoming("core", {}, b"")
    came: list[Incoming | Notice] = [
        unkept,
        *of_stream("a", 1, 4, 2),
        *of_stream("b", 3, 5),
        notice,
        *of_stream("b", 6),
        *of_stream("a", 3),
    ]
    said = [each.subject if isinstance(each, Incoming) else each.kind for each in by_time(came)]
    assert said == ["a.1", "b.3", "a.4", "a.2", "b.5", "core", "gap", "a.3", "b.6"]


# The tree of subjects.


def test_a_tree_sums_what_is_said_below() -> None:
    tree = SubjectTree()
    for subject in ("b", "a.x.1", "a.x.2", "a.x.2", "a.x", "a.y"):
        tree.add(subject)
    assert [(row.path, row.depth, row.n, row.n_below, row.is_subject) for row in tree.rows()] == [
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
def test_a_tree_is_ordered_branch_by_branch(by: By, descending: bool, paths: list[str]) -> None:
    tree = SubjectTree()
    for subject in ("a.x", "a.y", "a.y", "b"):
        tree.add(subject)
    tree.tick(1.0)
    tree.add("c")
    tree.tick(2.0)
    assert [row.path for row in tree.rows(by, descending=descending)] == paths


def test_large_branches_are_closed_until_they_are_opened() -> None:
    tree = SubjectTree()
    for n in range(MANY + 1):
        tree.add(f"orders.{n}")
    assert [row.word for row in tree.rows()] == ["orders"] and not tree.rows()[0].is_open
    tree.toggle("orders")
    assert len(tree.rows()) == MANY + 2
    tree.toggle("orders")
    assert len(tree.rows()) == 1


def test_rates_are_per_second_and_fall_to_nothing() -> None:
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
    tree.restart()
    assert [(row.word, row.n) for row in tree.rows()] == [("a", 0), ("b", 0), ("c", 0)]


def test_subjects_without_end_are_counted_together() -> None:
    tree = SubjectTree()
    for n in range(MAX_SUBJECTS + 10):
        tree.add(f"inbox.{n}")
    deep = ".".join("x" * 3_000)
    assert len(tree.add(deep)) == MAX_SUBJECT
    assert len(tree) == MAX_SUBJECTS and tree.n_others == 0
    assert [(row.word, row.n, row.is_cut, row.patterns) for row in tree.rows()] == [
        ("inbox", MAX_SUBJECTS + 10, True, ("inbox.>",)),
        ("x", 1, True, ("x", "x.>")),
    ]
    for n in range(MAX_CUT + 10):
        tree.add(f"{n}.a")
    assert tree.n_others == 12 and len(tree.rows()) == MAX_CUT
    tree.tick(1.0)
    tree.add("inbox.new")
    tree.tick(2.0)
    assert tree.rate == 1.0 and next(row for row in tree.rows() if row.word == "inbox").rate == 1.0
    tree.restart()
    assert tree.n_others == 0 and {row.n for row in tree.rows()} == {0}


# Clocks.


def sent(offset_s: float, source: str = "n", **fields: str) -> Incoming:
    at = (START + timedelta(seconds=offset_s)).isoformat()
    return Incoming("s", {"ce-time": at, "ce-source": source, **fields}, b"", "S", 1, START)


def test_of_a_sender_the_fastest_message_counts_and_the_largest_skew_comes_first() -> None:
    clocks = Clocks()
    for offset in (-30.0, -0.5, -4.0):
        clocks.sample([sent(offset)])
    clocks.sample([sent(3.5, "ahead"), Incoming("no.time", {}, b"")])
    assert [tuple(skew) for skew in clocks.skews] == [("ahead", 3.5), ("n", -0.5)]


@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_sender_that_is_always_followed_by_others_is_looked_at_too(n: int) -> None:
    clocks = Clocks()
    for _ in range(3 * n):
        clocks.sample([sent(float(offset), f"n{offset}") for offset in range(n)])
    assert {skew.sender for skew in clocks.skews} == {f"n{offset}" for offset in range(n)}


def test_live_items_tell_the_time_too() -> None:
    clocks, batch = Clocks(), LiveBatch(node="pmoves-4090", boot="b", dropped=0, items=[heartbeat()])
    payload = encode(batch)
    clocks.sample([Incoming("agentgym.live.health.v1.n", {}, payload, "L", 1, START - timedelta(seconds=2))])
    assert [tuple(skew) for skew in clocks.skews] == [("pmoves-4090", 2.0)]


@pytest.mark.parametrize("time_text", ["", "yesterday", "2026-03-04T05:06:07", "9999-12-31T23:59:59-23:00", HOSTILE])
def test_times_that_are_none_say_nothing(time_text: str) -> None:
    clocks = Clocks()
    clocks.sample([Incoming("s", {"ce-time": time_text, "ce-source": "n"}, b"", "S", 1, START)])
    clocks.sample([Incoming("agentgym.live.x", {}, b"[" * 100_000, "S", 1, START)])
    assert clocks.skews == [] or time_text.startswith("9999")


def test_senders_without_end_make_room_for_each_other() -> None:
    clocks = Clocks()
    for n in range(MAX_SENDERS + 5):
        clocks.sample([sent(1.0, f"n{n}")])
    assert len(clocks.skews) == MAX_SENDERS


# What a person types.


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
def test_a_place_in_the_history(text: str, start: object) -> None:
    assert start_of(text, NOW) == start


@given(st.text(max_size=30) | st.from_regex(r"[0-9:smhd#. -]{0,20}", fullmatch=True))
@settings(max_examples=200, deadline=None)
def test_whatever_is_typed_is_a_place_or_none(text: str) -> None:
    start = start_of(text, NOW)
    if start is not None:
        since = since_of(start, NOW)
        assert isinstance(since, str | int) or since >= timedelta()


def test_history_that_has_not_begun_begins_now() -> None:
    assert since_of(NOW + timedelta(days=1), NOW) == timedelta()
    assert since_of(NOW - timedelta(days=1), NOW) == timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("", EVERYTHING),
        ("a.>", ("a.>",)),
        ("a.*.c, b", ("a.*.c", "b")),
        ("a..b", None),
        ("a.>.b", None),
        ("a>", None),
        ("x" * 300, None),
        (" ".join(f"s{n}" for n in range(50)), None),
    ],
)
def test_subjects_as_they_are_typed(text: str, patterns: tuple[str, ...] | None) -> None:
    assert patterns_of(text) == patterns
