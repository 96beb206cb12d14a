"""Outbox of a state directory: an SQLite file of durable events, with the delivery state of each event per sink."""

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
from runner.util.clock import Clock
from runner.util.resources import file_advice
from runner.util.sqlite import DATABASE_ERRORS, SqliteSchema, open_database

_VERSION = 1


# Compared columns have the same type, as SQLite does not use an index otherwise.
# Each event has one mark per sink. Once an event is delivered everywhere, only its id stays, in "settled".
_SCHEMA = SqliteSchema(
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


def _connect(path: Path) -> sqlite3.Connection:
    try:
        with _locked(path.with_name(path.name + ".opening")):
            return open_database(path, _SCHEMA)
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
"""Name of the sink that every outbox has: the node's own broker."""

KEEP_ACKED_S = 600.0
"""Seconds to keep an event after its last acknowledgement, so that it can be sent again.

nats-server writes acknowledged messages to disk every 2 minutes by default, so a power loss can lose them. A new sink
gets all events kept at that time.
"""

ABANDON_AFTER_S = 30 * 86400.0
"""Seconds after which dead letters, and sinks that are no longer configured, are deleted."""

MAX_PRUNED_PER_TRANSACTION = 5000

_ADD_UNSETTLED = (
    "INSERT OR IGNORE INTO events (id, subject, type, source, time, payload) "
    "SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM settled WHERE id = ?1)"
)


class OutboxEvent(msgspec.Struct, frozen=True):
    """Durable event ready to be sent; ``type`` is the canonical subject, ``source`` the name of the node."""

    id: str
    subject: str
    type: str
    source: str
    time: datetime
    payload: bytes


class Ack(msgspec.Struct, frozen=True):
    """Acknowledgement of an event by a sink; ``stream`` and ``seq`` are None when no stream keeps it."""

    id: str
    stream: str | None = None
    seq: int | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Event that a sink can never accept in its current form."""

    id: str
    sink: str
    subject: str
    reason: str
    at: datetime


class SinkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of pending, acknowledged (and still stored) and undeliverable events of a sink."""

    pending: int = 0
    acked: int = 0
    dead: int = 0


class Outbox:
    """Durable events and their delivery state per sink; safe for several threads and processes.

    A broken file is replaced by an empty one; the caller restores its events from the episode files (``known_ids``).

    Attributes:
        on_add: called in the adding thread after this object has added new events.

    Raises:
        StoreError: from all methods, when the file cannot be used.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        """Open or create the file ``path``, readable only by this user."""
        self.path = path
        self.on_add: Callable[[], None] | None = None
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._connection = _connect(path)
        self.register_sinks(LOCAL)

    def register_sinks(self, *sinks: str) -> None:
        """Register the configured sinks; a new sink gets every event that is still stored."""
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
        """Add events for every sink, except those whose id was added before; returns the number of new events."""
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
        """Return the oldest pending events of a sink, except those on the subjects in ``without``."""
        exclusion = f"AND subject NOT IN ({', '.join('?' * len(without))}) " if without else ""
        query = (
            "SELECT id, subject, type, source, time, payload FROM marks INDEXED BY waiting CROSS JOIN events USING (n) "
            f"WHERE sink = ? AND state = 'pending' {exclusion}ORDER BY n LIMIT ?"
        )
        with self._session() as connection:
            rows = connection.execute(query, (sink, *without, limit)).fetchall()
        return [OutboxEvent(row[0], row[1], row[2], row[3], datetime.fromisoformat(row[4]), row[5]) for row in rows]

    def n_pending(self, sinks: Sequence[str]) -> int:
        """Return the number of pending events, counting an event once for each of these sinks."""
        query = "SELECT count(*) FROM marks INDEXED BY waiting WHERE sink = ? AND state = 'pending'"
        with self._session() as connection:
            return sum(connection.execute(query, (sink,)).fetchone()[0] for sink in sinks)

    def ack(self, sink: str, acks: Iterable[Ack]) -> None:
        """Mark events as acknowledged by a sink."""
        now = self._now()
        rows = [(ack.stream, ack.seq, now, sink, ack.id) for ack in acks]
        self._mark("state = 'acked', stream = ?, seq = ?, reason = NULL, at = ?", rows)

    def mark_dead(self, sink: str, event_id: str, reason: str) -> None:
        """Mark an event as undeliverable to a sink."""
        self._mark("state = 'dead', reason = ?, at = ?", [(reason, self._now(), sink, event_id)])

    def _mark(self, change: str, rows: Sequence[tuple[object, ...]]) -> None:
        update = f"UPDATE marks SET {change} WHERE sink = ? AND n = (SELECT n FROM events WHERE id = ?)"
        with self._transaction() as connection:
            connection.executemany(update, rows)

    def retry_dead(self, event_id: str | None = None) -> int:
        """Make one dead letter, or all of them, pending again; returns their number."""
        update = (
            "UPDATE marks SET state = 'pending', reason = NULL, at = ?1 WHERE state = 'dead' "
            "AND (?2 IS NULL OR n = (SELECT n FROM events WHERE id = ?2))"
        )
        with self._transaction() as connection:
            return connection.execute(update, (self._now(), event_id)).rowcount

    def reconcile_stream(self, sink: str, stream: str, *, created: datetime | None, last_seq: int) -> int:
        """Compare acknowledged events with the state of their stream and make lost ones pending again.

        A recreated stream has lost all events; any other stream has lost the events after its last sequence.

        Args:
            sink: key of the sink.
            stream: name of the stream.
            created: creation time of the stream.
            last_seq: last sequence of the stream.

        Returns:
            The number of events that are pending again; pruned events (see ``KEEP_ACKED_S``) are not.
        """
        created_at = created.isoformat() if created else None
        with self._transaction() as connection:
            key = (sink, stream)
            known = connection.execute("SELECT created FROM streams WHERE sink = ? AND name = ?", key).fetchone()
            connection.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", (*key, created_at))
            last_valid_seq = last_seq if known is None or known[0] == created_at else -1
            lost = "UPDATE marks SET state = 'pending' WHERE sink = ? AND stream = ? AND seq > ? AND state = 'acked'"
            return connection.execute(lost, (*key, last_valid_seq)).rowcount

    def has_known_stream(self, sink: str) -> bool:
        """Whether any stream of this sink is known."""
        with self._session() as connection:
            return connection.execute("SELECT 1 FROM streams WHERE sink = ? LIMIT 1", (sink,)).fetchone() is not None

    def prune(self) -> int:
        """Delete old events that no sink needs, but keep their ids, and sync the file.

        Returns the number of deleted events. Without the sync, a power loss could undo acknowledgements that are older
        than the duplicate window of a stream.
        """
        n_deleted = self._delete_settled()
        with self._session() as connection:
            connection.execute("PRAGMA wal_checkpoint")
        return n_deleted

    def _delete_settled(self) -> int:
        now = self._now()
        needed = (
            "SELECT n FROM marks WHERE state = 'pending' OR (state = 'acked' AND at > ?) OR (state = 'dead' AND at > ?)"
        )
        removable = f"SELECT n FROM events WHERE n NOT IN ({needed}) ORDER BY n LIMIT {MAX_PRUNED_PER_TRANSACTION}"
        with self._transaction() as connection:
            abandoned = "(SELECT name FROM sinks WHERE name != ? AND seen_at < ?)"
            for table, column in (("marks", "sink"), ("streams", "sink"), ("sinks", "name")):
                connection.execute(f"DELETE FROM {table} WHERE {column} IN {abandoned}", (LOCAL, now - ABANDON_AFTER_S))
            rows = connection.execute(removable, (now - KEEP_ACKED_S, now - ABANDON_AFTER_S)).fetchall()
            connection.executemany("INSERT OR IGNORE INTO settled SELECT id FROM events WHERE n = ?", rows)
            connection.executemany("DELETE FROM events WHERE n = ?", rows)
            sinks = connection.execute("SELECT name FROM sinks").fetchall()
            connection.executemany(
                "DELETE FROM marks WHERE sink = ? AND n = ?", [(sink, n) for (sink,) in sinks for (n,) in rows]
            )
            return len(rows)

    def known_ids(self) -> set[str]:
        """Return the ids of all events that were ever added."""
        with self._session() as connection:
            rows = connection.execute("SELECT id FROM events UNION ALL SELECT id FROM settled").fetchall()
        return {event_id for (event_id,) in rows}

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        query = "SELECT id, sink, subject, reason, at FROM marks JOIN events USING (n) WHERE state = 'dead' ORDER BY n"
        with self._session() as connection:
            rows = connection.execute(query).fetchall()
        names = DeadLetter.__struct_fields__
        return [msgspec.convert(dict(zip(names, row, strict=True)), DeadLetter, strict=False) for row in rows]

    def counts(self) -> dict[str, SinkCounts]:
        """Return the event counts of every sink."""
        query = "SELECT name, state, count(n) FROM sinks LEFT JOIN marks ON sink = name GROUP BY name, state"
        with self._session() as connection:
            rows = connection.execute(query).fetchall()
        by_sink: dict[str, dict[str, int]] = {}
        for sink, state, count in rows:
            by_sink.setdefault(sink, {}).update({state: count} if state else {})
        return {sink: SinkCounts(**counts) for sink, counts in by_sink.items()}

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
                advice = file_advice(exc, "free disk space or check permissions")
                raise StoreError(f"{self.path} cannot be used: {exc}; {advice}") from exc
