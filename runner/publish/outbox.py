"""The outbox: every durable event of a state directory, with one mark per sink that says whether it got there."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from runner.errors import StoreError
from runner.store import sqlite as database
from runner.store.sqlite import DATABASE_ERRORS
from runner.util.clock import Clock

_VERSION = 1


# Columns that are compared have the same type, else SQLite uses no index for that.
# Each event has one mark per sink. Of events that are through everywhere only the id stays, in "settled".
_SCHEMA = database.SqliteSchema(
    version=_VERSION,
    tables=f"""
    BEGIN IMMEDIATE;
    CREATE TABLE events (n INTEGER PRIMARY KEY AUTOINCREMENT, id UNIQUE, subject, type, source, time, payload);
    CREATE TABLE marks (sink, n INTEGER, state, stream, seq, reason, at, PRIMARY KEY (sink, n)) WITHOUT ROWID;
    CREATE INDEX waiting ON marks (sink, n) WHERE state = 'pending';
    CREATE TABLE settled (id PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE sinks (name PRIMARY KEY, seen_at) WITHOUT ROWID;
    CREATE TABLE streams (sink, name, created, PRIMARY KEY (sink, name)) WITHOUT ROWID;
    PRAGMA user_version = {_VERSION};
    COMMIT;
""",
    probes=(
        "SELECT n, id, subject, type, source, time, payload FROM events LIMIT 0",
        "SELECT sink, n, state, stream, seq, reason, at FROM marks LIMIT 0",
        "SELECT n FROM marks INDEXED BY waiting WHERE sink = '' AND state = 'pending' LIMIT 0",
        "SELECT id FROM settled LIMIT 0",
        "SELECT name, seen_at FROM sinks LIMIT 0",
        "SELECT sink, name, created FROM streams LIMIT 0",
    ),
)


def connect(path: Path) -> sqlite3.Connection:
    """Open the outbox, or make a new one where there is none that can be used; raises a ``StoreError``."""
    try:
        with _locked(path.with_name(path.name + ".opening")):
            return database.open_database(path, _SCHEMA)
    except OSError as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; check its permissions") from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


LOCAL = "local"
"""The sink that every outbox has: the node's own broker."""

KEEP_ACKED_S = 600.0
"""Seconds an event is kept after its last acknowledgement, so that it can be sent again.

A broker flushes what it acknowledged to its disk every 2 minutes by default: a power loss takes the rest back. A sink
that is new gets what is kept at that time: all that waits for another one, and what arrived there in these seconds.
"""

ABANDON_AFTER_S = 30 * 86400.0
"""Seconds after which a dead letter, or a sink that nobody has configured any more, is given up."""

MAX_PRUNED_PER_TRANSACTION = 5000

_ADD_UNSETTLED = (
    "INSERT OR IGNORE INTO events (id, subject, type, source, time, payload) "
    "SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM settled WHERE id = ?1)"
)


class OutboxEvent(msgspec.Struct, frozen=True):
    """A durable event ready to be sent: ``subject`` is where, ``type`` the canonical subject, ``source`` the node."""

    id: str
    subject: str
    type: str
    source: str
    time: datetime
    payload: bytes


class Ack(msgspec.Struct, frozen=True):
    """That a sink has an event: where in which stream, both None where no stream keeps it."""

    id: str
    stream: str | None = None
    seq: int | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a sink can never take as it is."""

    id: str
    sink: str
    subject: str
    reason: str
    at: datetime


class SinkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many events wait for a sink, arrived of those still kept, and cannot be sent."""

    pending: int = 0
    acked: int = 0
    dead: int = 0


class Outbox:
    """Usable from several threads, and by several processes at once; all methods raise ``StoreError``.

    A file that is broken is made anew: the caller adds what it can derive from the episode files, see ``known_ids``.

    Attributes:
        on_add: called, on the adding thread, after this object has added something.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        """Open or create the file ``path``, for this user alone."""
        self.path = path
        self.on_add: Callable[[], None] | None = None
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._connection = connect(path)
        self.register_sinks(LOCAL)

    def register_sinks(self, *sinks: str) -> None:
        """Say that these sinks are configured; one that is new gets everything that is still kept."""
        with self._transaction() as connection:
            for sink in sinks:
                row = (sink, self._now())
                if connection.execute("INSERT OR IGNORE INTO sinks VALUES (?, ?)", row).rowcount:
                    connection.execute(
                        "INSERT INTO marks (sink, n, state, at) SELECT ?, n, 'pending', ? FROM events", row
                    )
                else:
                    connection.execute("UPDATE sinks SET seen_at = ?2 WHERE name = ?1", row)

    def add(self, *events: OutboxEvent) -> int:
        """Let events wait for every sink; those whose ids were ever added are left out. Returns how many were new."""
        if not events:
            return 0
        rows = [
            (event.id, event.subject, event.type, event.source, event.time.isoformat(), event.payload)
            for event in events
        ]
        with self._transaction() as connection:
            (last,) = connection.execute("SELECT coalesce(max(n), 0) FROM events").fetchone()
            n_new = connection.executemany(_ADD_UNSETTLED, rows).rowcount
            marks = "INSERT INTO marks (sink, n, state, at) SELECT name, n, 'pending', ? FROM events, sinks WHERE n > ?"
            connection.execute(marks, (self._now(), last))
        if n_new and self.on_add is not None:
            self.on_add()
        return n_new

    def pending(self, sink: str, limit: int, *, without: Sequence[str] = ()) -> list[OutboxEvent]:
        """The oldest events that wait for a sink, those of some subjects left out."""
        others = f"AND subject NOT IN ({', '.join('?' * len(without))}) " if without else ""
        query = (
            "SELECT id, subject, type, source, time, payload FROM marks INDEXED BY waiting CROSS JOIN events USING (n) "
            f"WHERE sink = ? AND state = 'pending' {others}ORDER BY n LIMIT ?"
        )
        with self._session() as connection:
            rows = connection.execute(query, (sink, *without, limit)).fetchall()
        return [OutboxEvent(row[0], row[1], row[2], row[3], datetime.fromisoformat(row[4]), row[5]) for row in rows]

    def has_pending(self, sinks: Sequence[str]) -> bool:
        """Whether anything waits for one of these sinks."""
        return self.n_pending(sinks) > 0

    def n_pending(self, sinks: Sequence[str]) -> int:
        """How many events wait for these sinks, one that waits for several counted for each."""
        query = "SELECT count(*) FROM marks INDEXED BY waiting WHERE sink = ? AND state = 'pending'"
        with self._session() as connection:
            return sum(connection.execute(query, (sink,)).fetchone()[0] for sink in sinks)

    def ack(self, sink: str, acks: Iterable[Ack]) -> None:
        """Note that a sink has these events."""
        now = self._now()
        rows = [(ack.stream, ack.seq, now, sink, ack.id) for ack in acks]
        self._mark("state = 'acked', stream = ?, seq = ?, reason = NULL, at = ?", rows)

    def mark_dead(self, sink: str, event_id: str, reason: str) -> None:
        """Note that a sink can never take this event as it is."""
        self._mark("state = 'dead', reason = ?, at = ?", [(reason, self._now(), sink, event_id)])

    def _mark(self, change: str, rows: Sequence[tuple[object, ...]]) -> None:
        update = f"UPDATE marks SET {change} WHERE sink = ? AND n = (SELECT n FROM events WHERE id = ?)"
        with self._transaction() as connection:
            connection.executemany(update, rows)

    def retry_dead(self, event_id: str | None = None) -> int:
        """Let a dead letter, or all of them, wait again; returns how many do."""
        update = (
            "UPDATE marks SET state = 'pending', reason = NULL, at = ?1 WHERE state = 'dead' "
            "AND (?2 IS NULL OR n = (SELECT n FROM events WHERE id = ?2))"
        )
        with self._transaction() as connection:
            return connection.execute(update, (self._now(), event_id)).rowcount

    def reconcile_stream(self, sink: str, stream: str, *, created: datetime | None, last_seq: int) -> int:
        """Compare what a sink acknowledged with what its stream holds, and let what was lost wait again.

        Lost is everything of a stream that was made anew, and what lies behind the stream's last sequence. Returns how
        many events wait again; those acknowledged more than ``KEEP_ACKED_S`` seconds ago may be gone from here.
        """
        made = created.isoformat() if created else None
        with self._transaction() as connection:
            key = (sink, stream)
            known = connection.execute("SELECT created FROM streams WHERE sink = ? AND name = ?", key).fetchone()
            connection.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", (*key, made))
            kept = last_seq if known is None or known[0] == made else -1
            lost = "UPDATE marks SET state = 'pending' WHERE sink = ? AND stream = ? AND seq > ? AND state = 'acked'"
            return connection.execute(lost, (*key, kept)).rowcount

    def has_known_stream(self, sink: str) -> bool:
        """Whether a stream of this sink was ever seen."""
        with self._session() as connection:
            return connection.execute("SELECT 1 FROM streams WHERE sink = ? LIMIT 1", (sink,)).fetchone() is not None

    def prune(self) -> int:
        """Drop events that are through everywhere and old enough, remembering their ids; returns how many."""
        now = self._now()
        kept = (
            "SELECT n FROM marks WHERE state = 'pending' OR (state = 'acked' AND at > ?) OR (state = 'dead' AND at > ?)"
        )
        gone = f"SELECT n FROM events WHERE n NOT IN ({kept}) ORDER BY n LIMIT {MAX_PRUNED_PER_TRANSACTION}"
        with self._transaction() as connection:
            unserved = "(SELECT name FROM sinks WHERE name != ? AND seen_at < ?)"
            for table, column in (("marks", "sink"), ("streams", "sink"), ("sinks", "name")):
                connection.execute(f"DELETE FROM {table} WHERE {column} IN {unserved}", (LOCAL, now - ABANDON_AFTER_S))
            rows = connection.execute(gone, (now - KEEP_ACKED_S, now - ABANDON_AFTER_S)).fetchall()
            connection.executemany("INSERT OR IGNORE INTO settled SELECT id FROM events WHERE n = ?", rows)
            connection.executemany("DELETE FROM events WHERE n = ?", rows)
            places = connection.execute("SELECT name FROM sinks").fetchall()
            connection.executemany(
                "DELETE FROM marks WHERE sink = ? AND n = ?", [(sink, n) for (sink,) in places for (n,) in rows]
            )
            return len(rows)

    def known_ids(self) -> set[str]:
        """The ids of all events that were ever added."""
        with self._session() as connection:
            rows = connection.execute("SELECT id FROM events UNION ALL SELECT id FROM settled").fetchall()
        return {event_id for (event_id,) in rows}

    def dead_letters(self) -> list[DeadLetter]:
        """What cannot be sent, the oldest first."""
        query = "SELECT id, sink, subject, reason, at FROM marks JOIN events USING (n) WHERE state = 'dead' ORDER BY n"
        with self._session() as connection:
            rows = connection.execute(query).fetchall()
        names = DeadLetter.__struct_fields__
        return [msgspec.convert(dict(zip(names, row, strict=True)), DeadLetter, strict=False) for row in rows]

    def counts(self) -> dict[str, SinkCounts]:
        """The state of every sink."""
        query = "SELECT name, state, count(n) FROM sinks LEFT JOIN marks ON sink = name GROUP BY name, state"
        with self._session() as connection:
            rows = connection.execute(query).fetchall()
        found: dict[str, dict[str, int]] = {}
        for sink, state, count in rows:
            found.setdefault(sink, {}).update({state: count} if state else {})
        return {sink: SinkCounts(**counts) for sink, counts in found.items()}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._session() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except DATABASE_ERRORS as exc:
                raise StoreError(f"{self.path} cannot be used: {exc}; make room or check its permissions") from exc
