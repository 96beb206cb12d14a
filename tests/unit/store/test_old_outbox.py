"""State directories of earlier versions, whose outbox is a database of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runner.cli.outbox import main_outbox
from runner.errors import StoreError
from runner.node.state_lock import StateLock
from runner.publish.outbox import SinkCounts
from runner.store import EpisodeStore, open_index
from tests.support.episodes import record_episodes
from tests.support.publishing import open_outbox, pending_ids

EGRESS = "egress nats://lab:4222"
NOW = "2026-03-04T05:06:07+00:00"
OLD_SCHEMA = """
    CREATE TABLE events (n INTEGER PRIMARY KEY AUTOINCREMENT, id UNIQUE, subject, type, source, time, payload);
    CREATE TABLE marks (sink, n INTEGER, state, stream, seq, reason, at, PRIMARY KEY (sink, n)) WITHOUT ROWID;
    CREATE INDEX waiting ON marks (sink, n) WHERE state = 'pending';
    CREATE TABLE settled (id PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE sinks (name PRIMARY KEY, seen_at) WITHOUT ROWID;
    CREATE TABLE streams (sink, name, created, PRIMARY KEY (sink, name)) WITHOUT ROWID;
    PRAGMA journal_mode = WAL;
    PRAGMA user_version = 1;
"""


def store_old_outbox(data_dir: Path, episode_ids: list[str]) -> None:
    """Write the outbox of an earlier version: four episodes settled, acknowledged, waiting for a sink, and a batch."""
    settled, acked, half, dead, *_ = (f"episode:{episode_id}" for episode_id in episode_ids)
    with closing(sqlite3.connect(data_dir / "outbox.sqlite", isolation_level=None)) as old:
        old.executescript(OLD_SCHEMA)
        old.executemany("INSERT INTO sinks VALUES (?, ?)", [("local", 7.0), (EGRESS, 8.0)])
        old.execute("INSERT INTO settled VALUES (?)", (settled,))
        for n, id_ in enumerate((acked, half, dead, "batch:b"), 11):
            kind = f"agentgym.{id_.partition(':')[0]}"
            row = (n, id_, "lab.subject", kind, "node1", NOW, b"{}")
            old.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        marks = [
            ("local", 11, "acked", "S", 1, None, 9.0),
            (EGRESS, 11, "acked", None, None, None, 9.0),
            ("local", 12, "acked", "S", 2, None, 9.0),
            (EGRESS, 12, "pending", None, None, None, 9.0),
            ("local", 13, "dead", None, None, "too large", 9.0),
            (EGRESS, 13, "acked", None, None, None, 9.0),
            ("local", 14, "pending", None, None, None, 9.0),
            (EGRESS, 14, "pending", None, None, None, 9.0),
        ]
        old.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)", marks)
        old.execute("INSERT INTO streams VALUES ('local', 'S', ?)", (NOW,))


def make_old_directory(data_dir: Path) -> list[str]:
    """Return the ids of five stored episodes, the last of which the old outbox does not know."""
    episode_ids = [record.episode_id for record in record_episodes(data_dir, 5)]
    for path in data_dir.glob("index.sqlite*"):
        path.unlink()
    store_old_outbox(data_dir, episode_ids)
    return episode_ids


def test_nothing_is_lost_or_sent_again_from_an_outbox_of_an_earlier_version(tmp_path: Path) -> None:
    settled, acked, half, dead, missing = make_old_directory(tmp_path)
    for _ in range(2):
        with open_outbox(tmp_path) as outbox:
            assert pending_ids(outbox, "local") == ["batch:b", f"episode:{missing}"]
            assert pending_ids(outbox, EGRESS) == [f"episode:{half}", "batch:b", f"episode:{missing}"]
            assert [letter.id for letter in outbox.dead_letters()] == [f"episode:{dead}"]
            assert outbox.counts() == {
                "local": SinkCounts(pending=2, acked=2, dead=1),
                EGRESS: SinkCounts(pending=3, acked=2),
            }
            assert outbox.known_ids("episode") == {f"episode:{id_}" for id_ in (settled, acked, half, dead, missing)}
            assert {event.subject for event in outbox.pending("local", 1)} == {"lab.subject"}
            assert outbox.has_known_stream("local")
        assert list(tmp_path.glob("outbox.sqlite*")) == []


def test_an_index_that_was_made_before_the_move_does_not_send_delivered_events_again(tmp_path: Path) -> None:
    episode_ids = [record.episode_id for record in record_episodes(tmp_path, 5)]
    _, _, half, dead, missing = episode_ids
    store_old_outbox(tmp_path, episode_ids)
    with open_outbox(tmp_path) as outbox:
        assert pending_ids(outbox, "local") == [f"episode:{missing}", "batch:b"]
        assert set(pending_ids(outbox, EGRESS)) == {f"episode:{half}", "batch:b", f"episode:{missing}"}
        assert [letter.id for letter in outbox.dead_letters()] == [f"episode:{dead}"]


def test_a_move_that_was_interrupted_before_the_removal_is_repeated_without_effect(tmp_path: Path) -> None:
    make_old_directory(tmp_path)
    kept = [(path, path.read_bytes()) for path in tmp_path.glob("outbox.sqlite*")]
    with open_outbox(tmp_path) as outbox:
        outbox.retry_dead()
        waiting = pending_ids(outbox, "local"), pending_ids(outbox, EGRESS)
    for path, content in kept:
        path.write_bytes(content)
    with open_outbox(tmp_path) as outbox:
        assert (pending_ids(outbox, "local"), pending_ids(outbox, EGRESS)) == waiting


@pytest.mark.parametrize("content", [b"", b"not a database" * 400])
def test_an_unusable_outbox_is_removed_and_all_events_are_sent_again(tmp_path: Path, content: bytes) -> None:
    episode_ids = make_old_directory(tmp_path)
    for path in tmp_path.glob("outbox.sqlite*"):
        path.unlink()
    (tmp_path / "outbox.sqlite").write_bytes(content)
    with open_outbox(tmp_path) as outbox:
        assert pending_ids(outbox, "local") == sorted(f"episode:{id_}" for id_ in episode_ids)
    assert not (tmp_path / "outbox.sqlite").exists()


def test_only_an_owner_takes_over_an_outbox_that_another_node_may_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_old_directory(tmp_path)
    before = (tmp_path / "outbox.sqlite").read_bytes()
    open_index(EpisodeStore(tmp_path)).close()
    node = StateLock(tmp_path)
    assert main_outbox(["--data-dir", str(tmp_path)]) == 0
    assert (tmp_path / "outbox.sqlite").read_bytes() == before
    node.release()
    assert main_outbox(["--data-dir", str(tmp_path)]) == 0
    assert not (tmp_path / "outbox.sqlite").exists()
    assert "Dead letters" in capsys.readouterr().out


def test_a_locked_outbox_is_not_removed(tmp_path: Path) -> None:
    make_old_directory(tmp_path)
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"outbox\.sqlite cannot be moved into the index: .*locked"):
            open_index(EpisodeStore(tmp_path), is_owner=True, busy_timeout_s=0.05)
    with open_outbox(tmp_path) as outbox:
        assert pending_ids(outbox, "local")[0] == "batch:b"
