"""SQLite files whose data is also stored elsewhere: opened, checked, and replaced if damaged or of another version."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.util.files import set_aside, sync_folder
from runner.util.resources import file_advice

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions that ``sqlite3`` raises; the message about a corrupt file may not be valid UTF-8."""

_SIDE_FILES = ("", "-wal", "-shm", "-journal")
DAMAGED_SUFFIX = ".damaged"
"""Suffix of a damaged file that was set aside."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_SHORT_READ = sqlite3.SQLITE_IOERR_SHORT_READ
"""A file is shorter than its index: its write-ahead log was deleted while another process has it open."""

FileState: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class SqliteSchema(msgspec.Struct, frozen=True):
    """Schema of an SQLite file.

    Attributes:
        version: version of the tables; a file of another version is upgraded if possible, and replaced otherwise.
        probes: queries that fail unless the file has this schema.
        upgrade: script that replaces only the tables that are derived, in one transaction, and sets ``user_version``;
            None: a file is always replaced as a whole.
        kept_probes: queries that fail unless the file has the tables that ``upgrade`` keeps.
        source: what the file is rebuilt from, for messages.
        durable: whether a commit must survive power loss; then a replaced file is also kept, with ``DAMAGED_SUFFIX``,
            and a file of a later version is an error.
    """

    version: int
    tables: str
    probes: tuple[str, ...]
    upgrade: str | None = None
    kept_probes: tuple[str, ...] = ()
    source: str = "the episode files"
    durable: bool = False


class _IncompatibleDatabase(sqlite3.DatabaseError):
    """A readable database that does not match its schema."""

    published_error_type = "_Unusable"


def open_database(
    path: Path,
    schema: SqliteSchema,
    *,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    on_damage: Callable[[Exception], object] = lambda damage: None,
) -> sqlite3.Connection:
    """Open a database with mode 0600; a missing, damaged or incompatible file is replaced by a new one.

    If several processes may open the file, the caller must hold a lock: a process could delete the new file of another.
    ``on_damage`` is called with the problem of a file before it is replaced. Raises ``StoreError`` if the file can be
    neither opened nor replaced, another process keeps it locked, or it is of a later version that the schema refuses.
    """
    try:
        _remove_impostors(path, keep=schema.durable)
        if not (schema.durable or os.path.lexists(path)):  # another process may still use those of a deleted file
            for suffix in _SIDE_FILES[1:]:
                _remove(path, suffix, keep=False)
        try:
            return _open(path, schema, busy_timeout_s)
        except DATABASE_ERRORS as exc:
            if not is_damage(exc):
                raise
            logger.warning("%s cannot be used (%s); it is rebuilt from %s", path, exc, schema.source)
            on_damage(exc)
        for suffix in _SIDE_FILES:
            _remove(path, suffix, keep=schema.durable)
        return _open(path, schema, busy_timeout_s)
    except (*DATABASE_ERRORS, OSError) as exc:
        advice = file_advice(exc, "check its permissions and the free disk space")
        raise StoreError(f"{path} cannot be opened: {exc}; {advice}") from exc
    except StoreError as exc:
        raise StoreError(f"{path} cannot be opened: {exc}") from exc


def read_rows(path: Path, query: str, *, busy_timeout_s: float) -> list[Any]:
    """Return the rows of a query without changing the file, which another process may have open.

    Raises one of ``DATABASE_ERRORS`` if the file is missing, damaged, of another kind, or locked for
    ``busy_timeout_s``.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=busy_timeout_s)) as connection:
        return connection.execute(query).fetchall()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction that may write; an exception undoes what the block has changed."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def file_state(path: Path) -> FileState:
    """Return the identity, time of change and size of a database's files, without using the database.

    Some of it changes with every commit of any process, except with two commits within milliseconds if the write-ahead
    log starts over at the second one.
    """
    return tuple(map(_stat, (path, path.with_name(path.name + "-wal"))))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _remove(path: Path, suffix: str, *, keep: bool) -> None:
    file = path.with_name(path.name + suffix)
    if not (keep or file.is_dir()):
        file.unlink(missing_ok=True)
    elif os.path.lexists(file):
        set_aside(file, path.with_name(path.name + DAMAGED_SUFFIX + suffix))


def _remove_impostors(path: Path, *, keep: bool) -> None:
    """Remove side files that are no regular files, e.g. folders: with them, SQLite cannot open the database."""
    for suffix in _SIDE_FILES[1:]:
        file = path.with_name(path.name + suffix)
        if os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode):
            logger.warning("%s is not a regular file; it is removed or renamed", file)
            _remove(path, suffix, keep=keep)


def _open(path: Path, schema: SqliteSchema, busy_timeout_s: float) -> sqlite3.Connection:
    if path.exists() and not path.is_file():
        raise _IncompatibleDatabase("it is not a regular file")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its side files the same mode
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, schema)
        if schema.durable:
            sync_folder(path.parent)  # the file may be new
    except (*DATABASE_ERRORS, OSError, StoreError):
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, schema: SqliteSchema) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if schema.durable else 'NORMAL'}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == 0 and n_tables == 0:
        connection.executescript(schema.tables)
        return
    if schema.durable and version > schema.version:
        raise StoreError(f"it has schema {version}, this version reads {schema.version}; use the version that wrote it")
    (check_result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if check_result != "ok":
        raise _IncompatibleDatabase(check_result)
    _probe(connection, schema.kept_probes)
    try:
        if version != schema.version:
            raise _IncompatibleDatabase(f"its schema is {version}, expected {schema.version}")
        _probe(connection, schema.probes)
    except _IncompatibleDatabase as exc:
        if schema.upgrade is None:
            raise
        logger.info("%s is read again: %s", schema.source, exc)
        with _sql_errors_as_incompatible():
            connection.executescript(schema.upgrade)


def _probe(connection: sqlite3.Connection, probes: tuple[str, ...]) -> None:
    with _sql_errors_as_incompatible():
        for probe in probes:
            connection.execute(probe)


@contextmanager
def _sql_errors_as_incompatible() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        raise _IncompatibleDatabase(str(exc)) if exc.sqlite_errorcode == sqlite3.SQLITE_ERROR else exc from exc


def is_damage(exc: Exception) -> bool:
    """Return whether a database file is damaged or of another kind, so that waiting does not help."""
    if isinstance(exc, _IncompatibleDatabase | UnicodeDecodeError):
        return True
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code & 0xFF in _DAMAGE or code == _SHORT_READ
