"""SQLite files that can be made anew: opened, checked, and replaced when they are broken or of another version."""

from __future__ import annotations

import logging
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from runner.errors import StoreError

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0

DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises; the latter when a broken file makes it describe the damage in no readable text."""

_SIDE_FILES = ("", "-wal", "-shm", "-journal")
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


@dataclass(frozen=True)
class SqliteSchema:
    """What a file has to hold.

    Attributes:
        version: of the tables; a file of another version is made anew.
        tables: the script that makes them and sets ``user_version``.
        probes: queries that work only on these tables.
    """

    version: int
    tables: str
    probes: tuple[str, ...]


class _IncompatibleDatabase(sqlite3.DatabaseError):
    """A readable database that does not match its schema."""

    error_type = "_Unusable"


def open_database(path: Path, schema: SqliteSchema) -> sqlite3.Connection:
    """Open a file for this user alone, or make a new one where there is none that can be used.

    Processes that may open it at the same time have to take turns: one could delete what the other has just made.

    Raises:
        StoreError: when the file can be neither used nor replaced, or others keep it locked.
    """
    try:
        try:
            return _open(path, schema)
        except DATABASE_ERRORS as exc:
            if not _is_damage(exc):
                raise
            logger.warning("%s cannot be used (%s) and is made anew from the episode files", path, exc)
        for suffix in _SIDE_FILES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _open(path, schema)
    except (*DATABASE_ERRORS, OSError) as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; check its permissions and the room on the disk") from exc


def _open(path: Path, schema: SqliteSchema) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's side files take over its mode
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, schema)
    except DATABASE_ERRORS:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, schema: SqliteSchema) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # the episode files are what is held against power loss
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == 0 and n_tables == 0:
        connection.executescript(schema.tables)
        return
    if version != schema.version:
        raise _IncompatibleDatabase(f"its schema is {version}, not {schema.version}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _IncompatibleDatabase(verdict)
    try:
        for probe in schema.probes:
            connection.execute(probe)
    except sqlite3.OperationalError as exc:
        raise _IncompatibleDatabase(str(exc)) if exc.sqlite_errorcode == sqlite3.SQLITE_ERROR else exc from exc


def _is_damage(exc: Exception) -> bool:
    if isinstance(exc, _IncompatibleDatabase | UnicodeDecodeError):
        return True
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE
