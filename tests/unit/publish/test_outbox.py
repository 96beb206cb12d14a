from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from runner.errors import StoreError
from runner.events import subjects
from runner.publish.outbox import (
    ABANDON_AFTER_S,
    DAMAGED,
    KEEP_ACKED_S,
    LOCAL,
    Ack,
    DeadLetter,
    Outbox,
    OutboxEvent,
    SinkCounts,
)
from runner.publish.publisher import Publisher
from runner.store import EpisodeStore, open_index
from runner.util.clock import Clock
from runner.util.sqlite import Database
from tests.support.episodes import RecordedEpisode, new_id, newest_rows, record_episodes
from tests.support.publishing import open_outbox, outbox_event, pending_ids
from tests.unit.publish.conftest import ManualWallClock

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 3, 4, 5, 6, 7, 890123, UTC)


def event(number: int, payload: bytes = b"{}") -> OutboxEvent:
    kind = "agentgym.episode.completed.v1"
    return OutboxEvent(
        id=f"episode:{number}", subject="my.episodes", type=kind, source="node1", time=NOW, payload=payload
    )


def test_an_event_id_is_added_once_and_returned_unchanged(outbox: Outbox) -> None:
    added = event(1, b'{"a": "\\u00e9"}')
    assert outbox.add(added, event(1, b"other"), event(2)) == 2
    assert outbox.add(event(1, b"other")) == 0
    assert outbox.add(event(2), event(3)) == 1
    assert outbox.pending(LOCAL, 10) == [added, event(2), event(3)]
    assert outbox.add() == 0
    for path in outbox.data_dir.glob("*.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_oldest_events_come_first_and_subjects_can_be_excluded(outbox: Outbox) -> None:
    for number in (3, 1):
        outbox.add(event(number))
    outbox.add(msgspec.structs.replace(event(2), subject="other"))
    assert pending_ids(outbox) == ["episode:3", "episode:1", "episode:2"]
    assert [event.id for event in outbox.pending(LOCAL, 2)] == ["episode:3", "episode:1"]
    assert [event.id for event in outbox.pending(LOCAL, 10, without=["other", "more"])] == ["episode:3", "episode:1"]
    assert outbox.pending(LOCAL, 10, without=["my.episodes", "other"]) == []
    assert outbox.n_pending([LOCAL]) == 3


def test_each_sink_has_its_own_marks(outbox: Outbox) -> None:
    outbox.register_sinks("egress")
    outbox.add(*map(event, range(4)))
    outbox.ack(LOCAL, [Ack("episode:0", "S", 1), Ack("episode:1", "S", 2)])
    outbox.mark_dead("egress", "episode:2", "too large")
    assert pending_ids(outbox) == ["episode:2", "episode:3"]
    assert pending_ids(outbox, "egress") == ["episode:0", "episode:1", "episode:3"]
    assert outbox.counts() == {LOCAL: SinkCounts(pending=2, acked=2), "egress": SinkCounts(pending=3, dead=1)}
    assert outbox.n_pending([LOCAL])
    assert not outbox.n_pending([])
    assert not outbox.n_pending(["other"])


def test_a_new_sink_gets_what_ends_from_then_on_and_earlier_events_on_request(outbox: Outbox) -> None:
    episodes = {f"episode:{record.episode_id}" for record in record_episodes(outbox.data_dir, 2)}
    outbox.index.reconcile()
    outbox.add(event(1))
    outbox.register_sinks("egress")
    outbox.register_sinks("egress")
    outbox.add(event(2))
    assert pending_ids(outbox, "egress") == ["episode:2"]
    assert outbox.counts()["egress"] == SinkCounts(pending=1, held=3)
    assert (outbox.send_earlier("other"), outbox.send_earlier("egress"), outbox.send_earlier("egress")) == (0, 3, 0)
    assert set(pending_ids(outbox, "egress")) == {*episodes, "episode:1", "episode:2"} == set(pending_ids(outbox))


def test_what_is_found_in_the_files_is_earlier_than_a_sink_that_was_new_before_they_were_read(outbox: Outbox) -> None:
    outbox.register_sinks("known")
    outbox.is_reading = True
    outbox.register_sinks("known", "new")
    record_episodes(outbox.data_dir, 1)
    for path in outbox.data_dir.glob("index.sqlite*"):
        path.unlink()
    outbox.index.reconcile()
    outbox.add(event(1))  # the batch of an earlier process
    status = outbox_event(2, subjects.FIELD_STATUS)
    outbox.add(status)
    outbox.finish_reading()
    outbox.add(event(3))
    assert pending_ids(outbox, "new") == [status.id, "episode:3"]
    assert len(pending_ids(outbox, "known")) == 4 == len(pending_ids(outbox))


def test_an_episode_that_is_played_while_the_files_are_read_is_sent_to_a_new_sink(outbox: Outbox) -> None:
    outbox.is_reading = True
    outbox.register_sinks("new")
    record = RecordedEpisode(outbox.index._store, outbox.index).record_episode()
    assert pending_ids(outbox, "new") == [f"episode:{record.episode_id}"]


def test_dead_letters_have_a_reason_and_can_be_retried(outbox: Outbox) -> None:
    outbox.add(event(1), event(2))
    outbox.mark_dead(LOCAL, "episode:1", "too large")
    outbox.mark_dead(LOCAL, "episode:2", "not allowed")
    first = DeadLetter(id="episode:1", sink=LOCAL, subject="my.episodes", reason="too large", at=NOW)
    assert outbox.dead_letters()[0] == first
    assert outbox.retry_dead("episode:7") == 0
    assert outbox.retry_dead("episode:2") == 1
    assert pending_ids(outbox) == ["episode:2"]
    assert outbox.retry_dead() == 1
    assert outbox.dead_letters() == []


def test_an_acknowledged_event_is_pruned_later_but_its_id_stays(outbox: Outbox, clock: ManualWallClock) -> None:
    outbox.add(event(1), event(2))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    clock.advance(KEEP_ACKED_S - 1)
    assert outbox.prune() == 0
    clock.advance(2)
    assert outbox.prune() == 1
    assert outbox.counts()[LOCAL] == SinkCounts(pending=1)
    assert outbox.known_ids() == {"episode:1", "episode:2"}
    assert outbox.add(event(1)) == 0
    assert pending_ids(outbox) == ["episode:2"]


def test_an_event_pending_for_one_sink_is_retained(outbox: Outbox, clock: ManualWallClock) -> None:
    outbox.register_sinks("egress")
    outbox.add(event(1))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    clock.advance(ABANDON_AFTER_S - 1)
    assert outbox.prune() == 1
    assert pending_ids(outbox, "egress") == ["episode:1"]


def test_an_abandoned_sink_is_removed_but_never_the_local_broker(outbox: Outbox, clock: ManualWallClock) -> None:
    outbox.register_sinks("egress")
    outbox.reconcile_stream("egress", "S", created=NOW, last_seq=0)
    outbox.add(event(1), event(2))
    outbox.ack(LOCAL, [Ack("episode:1", "S", 1)])
    clock.advance(ABANDON_AFTER_S + 1)
    assert outbox.prune() == 1
    assert outbox.counts() == {LOCAL: SinkCounts(pending=1)}
    assert not outbox.has_known_stream("egress")


def test_a_configured_sink_is_never_removed(outbox: Outbox, clock: ManualWallClock) -> None:
    outbox.register_sinks("egress")
    outbox.add(event(1))
    for _ in range(3):
        clock.advance(ABANDON_AFTER_S - 1)
        outbox.register_sinks("egress")
        outbox.prune()
    assert pending_ids(outbox, "egress") == ["episode:1"]


def test_delivered_events_of_episodes_and_batches_can_be_sent_to_future_sinks(
    outbox: Outbox, clock: ManualWallClock
) -> None:
    (record,) = record_episodes(outbox.data_dir, 1)
    outbox.index.reconcile()
    status = outbox_event(2, subjects.FIELD_STATUS, id="status:1")
    outbox.add(event(1), status)
    ids = [f"episode:{record.episode_id}", "episode:1"]
    outbox.ack(LOCAL, [Ack(each, "S", n) for n, each in enumerate([*ids, status.id])])
    clock.advance(KEEP_ACKED_S + 1)
    assert outbox.prune() == 3
    outbox.register_sinks("egress")
    assert outbox.counts() == {LOCAL: SinkCounts(), "egress": SinkCounts(held=2)}
    outbox.send_earlier("egress")
    assert pending_ids(outbox, "egress") == ids


def test_a_dead_letter_that_is_refused_again_keeps_its_time(outbox: Outbox, clock: ManualWallClock) -> None:
    outbox.add(*map(event, range(3)))
    outbox.mark_dead(LOCAL, "episode:0", "too large")
    outbox.mark_dead(LOCAL, "episode:1", "too large")
    outbox.mark_dead(LOCAL, "episode:2", f"{DAMAGED}: no time")
    before = outbox.dead_letters()
    clock.advance(60)
    outbox.retry_refused(LOCAL)
    assert outbox.dead_letters() == before[2:]
    assert pending_ids(outbox) == ["episode:0", "episode:1"]
    outbox.mark_dead(LOCAL, "episode:0", "too large")
    outbox.mark_dead(LOCAL, "episode:1", "not allowed")
    first, second, _ = outbox.dead_letters()
    assert first == before[0]
    assert (second.reason, second.at > before[1].at) == ("not allowed", True)


def test_dead_letters_are_pruned_eventually(outbox: Outbox, clock: ManualWallClock) -> None:
    outbox.add(event(1))
    outbox.mark_dead(LOCAL, "episode:1", "too large")
    clock.advance(ABANDON_AFTER_S - 1)
    assert outbox.prune() == 0
    clock.advance(2)
    assert outbox.prune() == 1
    assert outbox.dead_letters() == []
    assert outbox.known_ids() == {"episode:1"}


def _add_acknowledged(outbox: Outbox, n: int = 4) -> None:
    outbox.add(*map(event, range(1, n + 1)))
    outbox.ack(LOCAL, [Ack(f"episode:{number}", "S", number) for number in range(1, n + 1)])


def test_the_lost_tail_of_a_stream_and_all_events_of_a_recreated_one_are_pending_again(outbox: Outbox) -> None:
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=0) == 0
    _add_acknowledged(outbox)
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=4) == 0
    assert outbox.reconcile_stream(LOCAL, "other", created=NOW, last_seq=0) == 0
    assert outbox.reconcile_stream("egress", "S", created=NOW, last_seq=0) == 0
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW, last_seq=2) == 2
    assert pending_ids(outbox) == ["episode:3", "episode:4"]
    outbox.ack(LOCAL, [Ack("episode:3"), Ack("episode:4", "S", 9)])
    assert outbox.reconcile_stream(LOCAL, "S", created=NOW + timedelta(seconds=1), last_seq=9) == 3
    assert pending_ids(outbox) == ["episode:1", "episode:2", "episode:4"], "an event without a stream is not sent again"


def test_events_are_reported_after_each_new_event(outbox: Outbox) -> None:
    n_pending: list[int] = []
    outbox.on_add(lambda: n_pending.append(len(pending_ids(outbox))))
    outbox.add(event(1))
    outbox.add(event(1))
    outbox.add(event(2))
    assert n_pending == [1, 2]


@pytest.mark.long
def test_added_events_survive_a_killed_process(outbox: Outbox, tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom runner.publish.outbox import Outbox\n"
        "from runner.store import EpisodeStore, open_index\n"
        "from tests.unit.publish.test_outbox import event\n"
        "outbox = Outbox(open_index(EpisodeStore(Path(sys.argv[1]))))\n"
        "[outbox.add(event(number)) for number in range(50)]\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", program, str(outbox.data_dir)]
    threads = [threading.Thread(target=subprocess.run, args=(command,), kwargs={"cwd": ROOT}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(25, 75):
        outbox.add(event(number))
    for thread in threads:
        thread.join(30)
    assert sorted(pending_ids(outbox)) == sorted(f"episode:{number}" for number in range(75))


def test_acknowledgements_survive_a_power_loss(outbox: Outbox, tmp_path: Path) -> None:
    outbox.add(event(1))
    outbox.ack(LOCAL, [Ack("episode:1")])
    (power_loss := tmp_path / "power_loss").mkdir()
    for path in outbox.data_dir.glob("outbox.sqlite*"):  # both are synced at each commit
        shutil.copy(path, power_loss)
    with open_outbox(power_loss) as survivor:
        assert (survivor.known_ids(), pending_ids(survivor)) == ({"episode:1"}, [])


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated", "empty", "foreign"])
def test_an_unusable_file_is_recreated(damage: str, outbox: Outbox) -> None:
    outbox.add(*(event(number, b"x" * 1000) for number in range(50)))
    outbox.close()
    path = outbox.data_dir / "outbox.sqlite"
    match damage:
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 5000)
        case "truncated":
            os.truncate(path, path.stat().st_size // 2)
        case "empty":
            os.truncate(path, 0)
        case "foreign":
            _execute(path, "ALTER TABLE marks RENAME COLUMN seq TO number")
    with open_outbox(outbox.data_dir) as reopened:
        assert reopened.known_ids() == set()
        assert reopened.add(event(1)) == 1
        assert pending_ids(reopened) == ["episode:1"]


@pytest.mark.parametrize("files", ["index.sqlite", "index.sqlite*"])
def test_an_index_that_is_deleted_while_it_is_open_loses_and_repeats_no_event(outbox: Outbox, files: str) -> None:
    first, second = (f"episode:{record.episode_id}" for record in record_episodes(outbox.data_dir, 2))
    outbox.index.reconcile()
    outbox.add(event(1))
    outbox.ack(LOCAL, [Ack(first, "S", 1)])
    for path in outbox.data_dir.glob(files):
        path.unlink()
    with open_outbox(outbox.data_dir) as other:
        other.add(event(4))
        assert set(pending_ids(outbox)) == {second, "episode:1", "episode:4"} == set(pending_ids(other))
        outbox.ack(LOCAL, [Ack("episode:4")])
        assert set(pending_ids(other)) == {second, "episode:1"}
        assert len(newest_rows(outbox.index)) == 2


@pytest.mark.parametrize("files", ["outbox.sqlite", "outbox.sqlite*"])
def test_an_outbox_that_is_deleted_while_it_is_open_is_filled_again(outbox: Outbox, files: str) -> None:
    outbox.register_sinks("egress")
    episodes = {f"episode:{record.episode_id}" for record in record_episodes(outbox.data_dir, 2)}
    outbox.index.reconcile()
    outbox.ack(LOCAL, map(Ack, episodes))
    for path in outbox.data_dir.glob(files):
        path.unlink()
    assert set(pending_ids(outbox)) == episodes
    outbox.add(event(1))
    assert pending_ids(outbox, "egress") == ["episode:1"]


def test_an_older_copy_of_the_outbox_gets_the_events_that_it_lacks(outbox: Outbox, tmp_path: Path) -> None:
    first = record_episodes(outbox.data_dir, 1)[0].episode_id
    outbox.index.reconcile()
    assert pending_ids(outbox) == [f"episode:{first}"]
    outbox.ack(LOCAL, [Ack(f"episode:{first}")])
    outbox.close()
    shutil.copy(outbox.data_dir / "outbox.sqlite", copy := tmp_path / "copy")
    with open_outbox(outbox.data_dir) as later:
        second = record_episodes(outbox.data_dir, 1)[0].episode_id
        later.index.reconcile()
        later.ack(LOCAL, [Ack(f"episode:{second}")])
    copy.replace(outbox.data_dir / "outbox.sqlite")
    with open_outbox(outbox.data_dir) as restored:
        assert pending_ids(restored) == [f"episode:{second}"]


def test_events_are_pending_again_right_after_the_index_was_deleted(outbox: Outbox) -> None:
    episodes = {f"episode:{record.episode_id}" for record in record_episodes(outbox.data_dir, 2)}
    outbox.index.reconcile()
    assert set(pending_ids(outbox)) == episodes
    (outbox.data_dir / "index.sqlite").unlink()
    assert outbox.n_pending([LOCAL]) == 2  # without any use of the index by others
    (outbox.data_dir / "index.sqlite").unlink()
    assert set(pending_ids(outbox)) == episodes


def test_an_index_that_is_damaged_in_use_is_made_again_and_the_outbox_stays(outbox: Outbox) -> None:
    episodes = {f"episode:{record.episode_id}" for record in record_episodes(outbox.data_dir, 50)}
    outbox.index.reconcile()
    outbox.register_sinks("egress")
    assert set(pending_ids(outbox)) == episodes
    with outbox.index.database.session() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index = outbox.data_dir / "index.sqlite"
    with index.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * (index.stat().st_size - 4 * 4096))
    with pytest.raises(StoreError, match="malformed"):
        outbox.pending(LOCAL, 100)
    assert set(pending_ids(outbox)) == episodes
    assert outbox.counts() == {LOCAL: SinkCounts(pending=50), "egress": SinkCounts(held=50)}


def test_no_event_is_forgotten_before_the_files_were_read(outbox: Outbox, clock: ManualWallClock) -> None:
    clock.now = datetime.now(UTC)
    (record,) = record_episodes(outbox.data_dir, 1)
    outbox.register_sinks("egress")
    outbox.index.reconcile()
    event_id = f"episode:{record.episode_id}"
    assert pending_ids(outbox) == [event_id]
    outbox.send_earlier("egress")
    outbox.ack("egress", [Ack(event_id)])
    outbox.close()
    outbox.index.close()
    (outbox.data_dir / "index.sqlite").unlink()
    clock.advance(ABANDON_AFTER_S + 60)
    store = EpisodeStore(outbox.data_dir)
    with (
        closing(open_index(store, reconcile=False)) as index,
        closing(Outbox(index, clock=Clock(now=lambda: clock.now))) as later,
    ):
        later.is_reading = True
        later.register_sinks("egress")
        later.prune()
        index.reconcile()
        later.finish_reading()
        assert (pending_ids(later), pending_ids(later, "egress")) == ([event_id], [])


def test_earlier_events_of_deleted_episodes_are_not_counted(outbox: Outbox) -> None:
    records = record_episodes(outbox.data_dir, 2)
    outbox.index.reconcile()
    outbox.register_sinks("egress")
    outbox.index._store.path(records[0].batch_id, records[0].episode_id).unlink()
    outbox.index.reconcile()
    assert (outbox.n_held("egress"), outbox.counts()["egress"].held, outbox.send_earlier("egress")) == (1, 1, 1)


def test_an_id_in_two_batches_is_sent_once(outbox: Outbox) -> None:
    (record,) = record_episodes(outbox.data_dir, 1)
    path, other = outbox.index._store.path(record.batch_id, record.episode_id), new_id()
    copy = outbox.index._store.path(other, record.episode_id)
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes().replace(record.batch_id.encode(), other.encode()))
    outbox.index.reconcile()
    assert len(newest_rows(outbox.index)) == 2
    assert pending_ids(outbox) == [f"episode:{record.episode_id}"]


def test_the_event_of_a_deleted_episode_is_forgotten_after_a_month(outbox: Outbox, clock: ManualWallClock) -> None:
    clock.now = datetime.now(UTC)
    (record,) = record_episodes(outbox.data_dir, 1)
    outbox.add(event(1))
    path = outbox.index._store.path(record.batch_id, record.episode_id)
    content = path.read_bytes()
    path.unlink()
    outbox.index.reconcile()
    clock.advance(ABANDON_AFTER_S - 60)
    outbox.prune()
    assert outbox.known_ids() == {"episode:1", f"episode:{record.episode_id}"}
    clock.advance(120)
    outbox.prune()
    assert (outbox.known_ids(), pending_ids(outbox)) == ({"episode:1"}, ["episode:1"])
    path.write_bytes(content)
    outbox.index.reconcile()
    assert pending_ids(outbox) == ["episode:1", f"episode:{record.episode_id}"]


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_full_disk_delays_an_event(outbox: Outbox) -> None:
    outbox.add(event(1))
    with outbox.database.session() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        outbox.add(event(2, b"x" * 1_000_000))
    assert pending_ids(outbox) == ["episode:1"]
    assert outbox.n_pending([LOCAL]) == 2
    with outbox.database.session() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    assert outbox.add(event(3)) == 1
    assert pending_ids(outbox) == ["episode:1", "episode:2", "episode:3"]


def test_an_event_that_is_added_later_is_added_by_the_next_read(outbox: Outbox) -> None:
    calls: list[None] = []
    outbox.on_add(lambda: calls.append(None))
    outbox.add_later(event(1))
    assert calls
    assert pending_ids(outbox) == ["episode:1"]


def test_events_wait_while_another_process_has_locked_the_outbox(outbox: Outbox) -> None:
    assert pending_ids(outbox) == []
    with closing(sqlite3.connect(outbox.data_dir / "outbox.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            outbox.add(event(1))
        assert pending_ids(outbox) == []
    assert pending_ids(outbox) == ["episode:1"]
    assert outbox.add(event(1)) == 0


@pytest.mark.parametrize("value", ["\udc80", 2**70])
def test_a_statement_that_can_never_be_executed_blocks_no_other(outbox: Outbox, value: object) -> None:
    outbox.database.write_later(("UPDATE events SET subject = ? WHERE n = 0", (value,)))
    assert outbox.add(event(1)) == 1
    assert (pending_ids(outbox), outbox.n_unwritten) == (["episode:1"], 0)


def test_an_observer_that_is_removed_meanwhile_is_no_error(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    observers = iter([lambda: None, None] * 2)
    monkeypatch.setattr(Database, "on_write", property(lambda _: next(observers)), raising=False)
    outbox.add_later(event(1))
    next(observers)
    assert outbox.add(event(2)) == 1


def test_a_short_write_does_not_shorten_the_wait_of_reads(outbox: Outbox) -> None:
    before = outbox.database.select("PRAGMA busy_timeout")
    outbox.add(event(1))
    outbox.ack(LOCAL, [Ack("episode:1")])
    assert outbox.database.select("PRAGMA busy_timeout") == before


async def test_waiting_for_an_outbox_that_cannot_be_written_ends(outbox: Outbox) -> None:
    with closing(sqlite3.connect(outbox.data_dir / "outbox.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not await Publisher(outbox, []).wait_until_drained(30)
