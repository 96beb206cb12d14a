from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from runner.errors import StoreError
from runner.publish.outbox import ABANDON_AFTER_S, KEEP_ACKED_S, LOCAL, Ack, DeadLetter, Outbox, OutboxEvent, SinkCounts
from runner.util.clock import Clock

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 3, 4, 5, 6, 7, 890123, UTC)


class Time:
    def __init__(self) -> None:
        self.now = NOW

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def outbox(tmp_path: Path, time: Time) -> Iterator[Outbox]:
    outbox = Outbox(tmp_path / "outbox.sqlite", Clock(now=lambda: time.now))
    yield outbox
    outbox.close()


def event(number: int, payload: bytes = b"{}") -> OutboxEvent:
    kind = "agentgym.episode.completed.v1"
    return OutboxEvent(
        id=f"episode:{number}", subject="my.episodes", type=kind, source="node1", time=NOW, payload=payload
    )


def waiting(outbox: Outbox, sink: str = LOCAL) -> list[str]:
    return [event.id for event in outbox.pending(sink, 1000)]


def test_an_event_comes_out_as_it_went_in(outbox: Outbox) -> None:
    told = event(1, b'{"a": "\\u00e9"}')
    assert outbox.add(told) == 1
    assert outbox.pending(LOCAL, 10) == [told]


def test_an_id_is_taken_once(outbox: Outbox) -> None:
    assert outbox.add(event(1), event(1, b"other"), event(2)) == 2
    assert outbox.add(event(1, b"other")) == 0
    assert outbox.add(event(2), event(3)) == 1
    assert [waiting.payload for waiting in outbox.pending(LOCAL, 10)] == [b"{}", b"{}", b"{}"]
    assert outbox.add() == 0


def test_the_oldest_come_first(outbox: Outbox) -> None:
    for number in (3, 1, 2):
        outbox.add(event(number))
    assert waiting(outbox) == ["episode:3", "episode:1", "episode:2"]
    assert [event.id for event in outbox.pending(LOCAL, 2)] == ["episode:3", "episode:1"]


def test_subjects_can_be_left_out(outbox: Outbox) -> None:
    outbox.add(event(1), msgspec.structs.replace(event(2), subject="other"), event(3))
    assert [event.id for event in outbox.pending(LOCAL, 10, without=["other", "more"])] == ["episode:1", "episode:3"]
    assert outbox.pending(LOCAL, 10, without=["my.episodes", "other"]) == []
    assert outbox.n_pending([LOCAL]) == 3


def test_each_sink_has_marks_of_its_own(outbox: Outbox) -> None:
    outbox.register_sinks("egress")
    outbox.add(*map(event, range(4)))
    outbox.ack(LOCAL, [Ack("episode:0", "S", 1), Ack("episode:1", "S", 2)])
    outbox.mark_dead("egress", "episode:2", "too large")
    assert waiting(outbox) == ["episode:2", "episode:3"]
    assert waiting(outbox, "egress") == ["episode:0", "episode:1", "episode:3"]
    assert outbox.counts() == {LOCAL: SinkCounts(pending=2, acked=2), "egress": SinkCounts(pending=3, dead=1)}
    assert outbox.has_pending([LOCAL])
    assert not outbox.has_pending([])
    assert not outbox.has_pending(["other"])


def test_a_new_sink_gets_what_is_still_kept(outbox: Outbox, time: Time) -> None:
    outbox.add(event(1), event(2), event(3))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    time.passes(KEEP_ACKED_S + 1)
    outbox.ack(LOCAL, [Ack("episode:2", "S", 2)])
    assert outbox.prune() == 1
    outbox.register_sinks("egress")
    outbox.register_sinks("egress")
    assert waiting(outbox, "egress") == ["episode:2", "episode:3"]
    assert waiting(outbox) == ["episode:3"]


def test_dead_letters_say_why_and_can_be_tried_again(outbox: Outbox) -> None:
    outbox.add(event(1), event(2))
    outbox.mark_dead(LOCAL, "episode:1", "too large")
    outbox.mark_dead(LOCAL, "episode:2", "not allowed")
    first = DeadLetter(id="episode:1", sink=LOCAL, subject="my.episodes", reason="too large", at=NOW)
    assert outbox.dead_letters()[0] == first
    assert outbox.retry_dead("episode:7") == 0
    assert outbox.retry_dead("episode:2") == 1
    assert waiting(outbox) == ["episode:2"]
    assert outbox.retry_dead() == 1
    assert outbox.dead_letters() == []


def test_an_acknowledged_event_goes_after_a_while_but_its_id_stays(outbox: Outbox, time: Time) -> None:
    outbox.add(event(1), event(2))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    time.passes(KEEP_ACKED_S - 1)
    assert outbox.prune() == 0
    time.passes(2)
    assert outbox.prune() == 1
    assert outbox.counts()[LOCAL] == SinkCounts(pending=1)
    assert outbox.known_ids() == {"episode:1", "episode:2"}
    assert outbox.add(event(1)) == 0
    assert waiting(outbox) == ["episode:2"]


def test_an_event_that_waits_for_one_sink_is_kept(outbox: Outbox, time: Time) -> None:
    outbox.register_sinks("egress")
    outbox.add(event(1))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    time.passes(ABANDON_AFTER_S - 1)
    assert outbox.prune() == 0
    assert waiting(outbox, "egress") == ["episode:1"]


def test_a_sink_that_nobody_serves_is_forgotten_in_the_end_but_never_the_own_broker(outbox: Outbox, time: Time) -> None:
    outbox.register_sinks("egress")
    outbox.reconcile_stream("egress", "S", created=NOW, last_seq=0)
    outbox.add(event(1), event(2))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    time.passes(ABANDON_AFTER_S + 1)
    assert outbox.prune() == 1
    assert outbox.counts() == {LOCAL: SinkCounts(pending=1)}
    assert outbox._connection.execute("SELECT count(*) FROM streams WHERE sink = 'egress'").fetchone() == (0,)


def test_a_sink_that_is_configured_is_not_forgotten(outbox: Outbox, time: Time) -> None:
    outbox.register_sinks("egress")
    outbox.add(event(1))
    for _ in range(3):
        time.passes(ABANDON_AFTER_S - 1)
        outbox.register_sinks("egress")
        outbox.prune()
    assert waiting(outbox, "egress") == ["episode:1"]


def test_without_another_sink_nothing_is_kept_for_one(outbox: Outbox, time: Time) -> None:
    outbox.add(*map(event, range(4)))
    outbox.ack(LOCAL, [Ack(f"episode:{number}", "S", number) for number in range(4)])
    time.passes(KEEP_ACKED_S + 1)
    assert outbox.prune() == 4
    outbox.register_sinks("egress")
    assert outbox.counts() == {LOCAL: SinkCounts(), "egress": SinkCounts()}


def test_dead_letters_go_in_the_end(outbox: Outbox, time: Time) -> None:
    outbox.add(event(1))
    outbox.mark_dead(LOCAL, "episode:1", "too large")
    time.passes(ABANDON_AFTER_S - 1)
    assert outbox.prune() == 0
    time.passes(2)
    assert outbox.prune() == 1
    assert outbox.dead_letters() == []
    assert outbox.known_ids() == {"episode:1"}


def _acked(outbox: Outbox, n: int = 4) -> None:
    outbox.add(*map(event, range(1, n + 1)))
    outbox.ack(LOCAL, [Ack(f"episode:{number}", "S", number) for number in range(1, n + 1)])


def test_the_lost_tail_of_a_stream_waits_again(outbox: Outbox) -> None:
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=0) == 0
    _acked(outbox)
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=4) == 0
    assert outbox.reconcile_stream(LOCAL, "other", created=NOW, last_seq=0) == 0
    assert outbox.reconcile_stream("egress", "S", created=NOW, last_seq=0) == 0
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=2) == 2
    assert waiting(outbox) == ["episode:3", "episode:4"]


def test_all_of_a_stream_that_was_made_anew_waits_again(outbox: Outbox) -> None:
    outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=0)
    _acked(outbox)
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW + timedelta(seconds=1), last_seq=9) == 4
    assert len(waiting(outbox)) == 4


def test_what_no_stream_keeps_is_not_sent_again(outbox: Outbox) -> None:
    outbox.add(event(1))
    outbox.ack(LOCAL, [Ack("episode:1")])
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=0) == 0
    assert waiting(outbox) == []


def test_the_adder_is_heard(outbox: Outbox) -> None:
    heard: list[int] = []
    outbox.on_add = lambda: heard.append(len(waiting(outbox)))
    outbox.add(event(1))
    outbox.add(event(1))
    outbox.add(event(2))
    assert heard == [1, 2]


def test_what_was_added_outlives_the_process(outbox: Outbox, tmp_path: Path) -> None:
    adder = (
        "import os, sys\nfrom pathlib import Path\nfrom runner.publish.outbox import Outbox\n"
        "from tests.unit.publish.test_outbox import event\n"
        "outbox = Outbox(Path(sys.argv[1]))\n"
        "[outbox.add(event(number)) for number in range(50)]\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", adder, str(outbox.path)]
    threads = [threading.Thread(target=subprocess.run, args=(command,), kwargs={"cwd": ROOT}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(25, 75):
        outbox.add(event(number))
    for thread in threads:
        thread.join(30)
    assert sorted(waiting(outbox)) == sorted(f"episode:{number}" for number in range(75))


def test_the_file_is_private(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(event(1))
    for path in tmp_path.glob("outbox.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("harm", ["missing", "garbage", "truncated", "empty", "old", "newer", "foreign"])
def test_a_file_that_cannot_be_used_is_made_anew(harm: str, outbox: Outbox) -> None:
    outbox.add(*(event(number, b"x" * 1000) for number in range(50)))
    outbox.close()
    path = outbox.path
    match harm:
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 5000)
        case "truncated":
            os.truncate(path, path.stat().st_size // 2)
        case "empty":
            os.truncate(path, 0)
        case "old" | "newer":
            _run(path, f"PRAGMA user_version = {2 if harm == 'newer' else 0}")
        case "foreign":
            _run(path, "ALTER TABLE marks RENAME COLUMN seq TO number")
    again = Outbox(path)
    assert again.known_ids() == set()
    assert again.add(event(1)) == 1
    assert waiting(again) == ["episode:1"]
    again.close()


def _run(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"missing/outbox\.sqlite cannot be opened"):
        Outbox(tmp_path / "missing" / "outbox.sqlite")


def test_a_full_disk_costs_no_more_than_the_event(outbox: Outbox) -> None:
    outbox.add(event(1))
    (pages,) = outbox._connection.execute("PRAGMA page_count").fetchone()
    outbox._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        outbox.add(event(2, b"x" * 1_000_000))
    outbox._connection.execute("PRAGMA max_page_count = 1000000")
    assert outbox.add(event(2)) == 1
    assert waiting(outbox) == ["episode:1", "episode:2"]
