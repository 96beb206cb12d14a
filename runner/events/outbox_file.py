"""The SQLite file under the outbox: its tables, and what to do with one that is broken or of another version."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import StoreError

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the tables below; a file of another version is made anew."""

BUSY_TIMEOUT_S = 10.0

DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises; the latter when a broken file makes it describe the damage in no readable text."""

_SIDE_FILES = ("", "-wal", "-shm", "-journal")
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})

# Columns that are compared have the same type, else SQLite uses no index for that.
# Each event has one mark per sink. Of events that are through everywhere only the id stays, in "settled".
_TABLES = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE events (n INTEGER PRIMARY KEY AUTOINCREMENT, id UNIQUE, subject, type, source, time, payload);
    CREATE TABLE marks (sink, n INTEGER, state, stream, seq, reason, at, PRIMARY KEY (sink, n)) WITHOUT ROWID;
    CREATE INDEX waiting ON marks (sink, n) WHERE state = 'pending';
    CREATE TABLE settled (id PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE sinks (name PRIMARY KEY, seen_at) WITHOUT ROWID;
    CREATE TABLE streams (sink, name, created, PRIMARY KEY (sink, name)) WITHOUT ROWID;
    PRAGMA user_version = {VERSION};
    COMMIT;
"""
_PROBES = (
    "SELECT n, id, subject, type, source, time, payload FROM events LIMIT 0",
    "SELECT sink, n, state, stream, seq, reason, at FROM marks LIMIT 0",
    "SELECT n FROM marks INDEXED BY waiting WHERE sink = '' AND state = 'pending' LIMIT 0",
    "SELECT id FROM settled LIMIT 0",
    "SELECT name, seen_at FROM sinks LIMIT 0",
    "SELECT sink, name, created FROM streams LIMIT 0",
)


class _Unusable(sqlite3.DatabaseError):
    """A readable database that is not an outbox of this version."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the outbox, or make a new one where there is none that can be used.

    Raises:
        StoreError: when the file can be neither used nor replaced, or others keep it locked.
    """
    try:
        # Without the lock two processes could both find a broken file, and one delete what the other just made.
        with _locked(path.with_name(path.name + ".opening")):
            try:
                return _open(path)
            except DATABASE_ERRORS as exc:
                if not _is_damage(exc):
                    raise
                logger.warning("%s cannot be used (%s) and is made anew", path, exc)
            for suffix in _SIDE_FILES:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return _open(path)
    except (*DATABASE_ERRORS, OSError) as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; check its permissions and the room on the disk") from exc


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's side files take over its mode
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection)
    except DATABASE_ERRORS:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # the episode files are what is held against power loss
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == 0 and n_tables == 0:
        connection.executescript(_TABLES)
        return
    if version != VERSION:
        raise _Unusable(f"its schema is {version}, not {VERSION}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _Unusable(verdict)
    try:
        for probe in _PROBES:
            connection.execute(probe)
    except sqlite3.OperationalError as exc:
        raise _Unusable(str(exc)) if exc.sqlite_errorcode == sqlite3.SQLITE_ERROR else exc from exc


def _is_damage(exc: Exception) -> bool:
    if isinstance(exc, _Unusable | UnicodeDecodeError):
        return True
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
