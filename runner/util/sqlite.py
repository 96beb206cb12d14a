"""SQLite files with derived data: opened, checked, and replaced if they are damaged or have another version."""

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
"""Exceptions that ``sqlite3`` raises; the message about a corrupt file may not be valid UTF-8."""

_SIDE_FILES = ("", "-wal", "-shm", "-journal")
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


@dataclass(frozen=True)
class SqliteSchema:
    """Schema of an SQLite file.

    Attributes:
        version: version of the tables; a file of another version is replaced.
        tables: script that creates the tables and sets ``user_version``.
        probes: queries that fail unless the file has this schema.
    """

    version: int
    tables: str
    probes: tuple[str, ...]


class _IncompatibleDatabase(sqlite3.DatabaseError):
    """A readable database that does not match its schema."""

    published_error_type = "_Unusable"


def open_database(path: Path, schema: SqliteSchema, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open a database with mode 0600; a missing, damaged or incompatible file is replaced by a new one.

    If several processes may open the file, the caller must hold a lock: a process could delete the new file of another.

    Raises:
        StoreError: the file can be neither opened nor replaced, or another process keeps it locked.
    """
    try:
        try:
            return _open(path, schema, busy_timeout_s)
        except DATABASE_ERRORS as exc:
            if not _is_damage(exc):
                raise
            logger.warning("%s cannot be used (%s); it is rebuilt from the episode files", path, exc)
        for suffix in _SIDE_FILES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _open(path, schema, busy_timeout_s)
    except (*DATABASE_ERRORS, OSError) as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; check its permissions and the free disk space") from exc


def _open(path: Path, schema: SqliteSchema, busy_timeout_s: float) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its side files the same mode
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, schema)
    except DATABASE_ERRORS:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, schema: SqliteSchema) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # the data is derived: only episode files must survive power loss
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == 0 and n_tables == 0:
        connection.executescript(schema.tables)
        return
    if version != schema.version:
        raise _IncompatibleDatabase(f"its schema is {version}, expected {schema.version}")
    (check_result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if check_result != "ok":
        raise _IncompatibleDatabase(check_result)
    try:
        for probe in schema.probes:
            connection.execute(probe)
    except sqlite3.OperationalError as exc:
        raise _IncompatibleDatabase(str(exc)) if exc.sqlite_errorcode == sqlite3.SQLITE_ERROR else exc from exc


def _is_damage(exc: Exception) -> bool:
    if isinstance(exc, _IncompatibleDatabase | UnicodeDecodeError):
        return True
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE
