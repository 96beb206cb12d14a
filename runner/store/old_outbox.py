"""Events and marks moved into an index: from the outbox of earlier versions, and from an index deleted while open."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from runner.errors import StoreError
from runner.util.resources import file_advice
from runner.util.sqlite import DATABASE_ERRORS, is_damage

logger = logging.getLogger(__name__)

_FILES = ("", "-wal", "-shm", "-journal", ".opening")
# The triggers of the index mark events as waiting, without a time: only such marks are replaced by those of the old
# outbox, because the others are newer. An event without any mark has been delivered everywhere. A sink that only the
# old outbox has waits for the events that are new in the index, too.
_MOVE = """
    BEGIN IMMEDIATE;
    INSERT INTO main.marks (sink, n, state)
        SELECT new.name, waiting.n, 'pending' FROM (SELECT DISTINCT n FROM main.marks) AS waiting
        JOIN old.sinks AS new ON new.name NOT IN (SELECT name FROM main.sinks);
    INSERT OR IGNORE INTO main.sinks SELECT name, seen_at FROM old.sinks;
    INSERT INTO main.events (id) SELECT id FROM old.settled WHERE id NOT IN (SELECT id FROM main.events);
    INSERT INTO main.events (id, subject, type, source, time, payload)
        SELECT id, subject, type, source, time, payload FROM old.events
        WHERE id NOT IN (SELECT id FROM main.events) ORDER BY n;
    DELETE FROM main.marks WHERE state = 'pending' AND at IS NULL
        AND n IN (SELECT events.n FROM main.events AS events JOIN old.settled USING (id));
    INSERT INTO main.marks
        SELECT marks.sink, moved.n, marks.state, marks.stream, marks.seq, marks.reason, marks.at
        FROM old.marks AS marks JOIN old.events AS events USING (n) JOIN main.events AS moved ON moved.id = events.id
        WHERE moved.n IN (SELECT n FROM main.marks)
        ON CONFLICT (sink, n) DO UPDATE SET state = excluded.state, stream = excluded.stream, seq = excluded.seq,
            reason = excluded.reason, at = excluded.at WHERE state = 'pending' AND at IS NULL;
    INSERT OR IGNORE INTO main.streams SELECT sink, name, created FROM old.streams;
    COMMIT;
"""
_MOVE_DELETED = f"""
    CREATE TABLE old.settled AS SELECT id FROM old.events WHERE n NOT IN (SELECT n FROM old.marks);
    DELETE FROM old.events WHERE id IN (SELECT id FROM old.settled);
    {_MOVE.replace("COMMIT;", "")}
    INSERT OR IGNORE INTO main.episodes SELECT * FROM old.episodes;
    INSERT OR IGNORE INTO main.damaged SELECT * FROM old.damaged;
    COMMIT;
"""


def take_over(path: Path, connection: sqlite3.Connection) -> None:
    """Move the events and marks of an old outbox into an open index, then remove the old files.

    The caller holds a lock. What the index already knows stays as it is, so that an interrupted move can be repeated.
    Raises ``StoreError`` if the old outbox cannot be read now, or the index cannot be written.
    """
    if not os.path.lexists(path):
        return
    try:
        if not path.is_file() or _is_moved(path, connection):
            _remove(path)
    except (*DATABASE_ERRORS, OSError) as exc:
        advice = file_advice(exc, "free disk space or check its permissions")
        raise StoreError(f"{path} cannot be moved into the index: {exc}; {advice}") from exc


def add_deleted_index(deleted: sqlite3.Connection, connection: sqlite3.Connection) -> None:
    """Add the rows of an index whose file was deleted while it was open to an index that has replaced it."""
    connection.execute("ATTACH '' AS old")  # a temporary database, which may be larger than the memory
    try:
        for table in ("events", "marks", "sinks", "streams", "episodes", "damaged"):
            rows = deleted.execute(f"SELECT * FROM {table}")
            connection.execute(f"CREATE TABLE old.{table} ({', '.join(name for name, *_ in rows.description)})")
            values = ", ".join("?" for _ in rows.description)
            connection.executemany(f"INSERT INTO old.{table} VALUES ({values})", rows)
        connection.executescript(_MOVE_DELETED)
    finally:
        _detach(connection)


def _is_moved(path: Path, connection: sqlite3.Connection) -> bool:
    """Return whether the old file is not needed any more."""
    try:
        return _move(path, connection)
    except DATABASE_ERRORS as exc:
        if not is_damage(exc) and getattr(exc, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
            raise
        logger.warning("%s cannot be used (%s); its events are sent again with the same ids", path, exc)
        return True


def _move(path: Path, connection: sqlite3.Connection) -> bool:
    """Return whether the rows are on the disk, so that a power loss cannot undo the move."""
    connection.execute("ATTACH ? AS old", (str(path),))
    try:
        connection.executescript(_MOVE)
        (is_busy, *_) = connection.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy
    finally:
        _detach(connection)


def _detach(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    with suppress(sqlite3.Error):  # an error of the attached file counts, and not this one
        connection.execute("DETACH old")


def _remove(path: Path) -> None:
    """Remove the files of the old outbox; a folder in the place of one is no outbox and stays."""
    for suffix in _FILES:
        file = path.with_name(path.name + suffix)
        if not file.is_dir():
            file.unlink(missing_ok=True)
