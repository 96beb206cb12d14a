"""SQLite files for several threads and processes: opened, checked, and opened again when they were replaced.

A derived file is deleted and made again on any doubt. A durable one is the only copy of its data: a damaged one is set
aside, and one of a later version is refused.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.util.files import file_lock, set_aside, sync_folder
from runner.util.resources import file_advice

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
MAX_LOCKED_S = 5.0
"""Seconds to wait for another process that opens the file; it may be stopped."""
WRITE_TIMEOUT_S = 0.25
"""Seconds that ``write`` waits for another process that has locked the file; an episode ends that much later."""
GROUP_S = 0.1
"""Seconds in which statements of several calls are written together; a transaction costs as much as several rows."""
MAX_UNWRITTEN = 10_000
"""Maximum number of statements that wait; older ones are dropped, and the next start derives them from the files."""
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions that ``sqlite3`` raises; the message about a corrupt file may not be valid UTF-8."""

_SIDE_FILES = ("", "-wal", "-shm", "-journal")
DAMAGED_SUFFIX = ".damaged"
"""Suffix of a damaged file that was set aside."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_SHORT_READ = sqlite3.SQLITE_IOERR_SHORT_READ
"""A file is shorter than its index: its write-ahead log was deleted while another process has it open."""
_CHECK_FREE_SPACE: Final = "check its permissions and the free disk space"

FileState: TypeAlias = tuple[tuple[int, int, int] | None, ...]
FileId: TypeAlias = tuple[int, int]
"""Device and inode."""
Statement: TypeAlias = tuple[str, tuple[object, ...]]
Parameters: TypeAlias = tuple[object, ...] | Mapping[str, object]


class SqliteSchema(msgspec.Struct, frozen=True):
    """Schema of an SQLite file.

    Attributes:
        version: version of the tables; a file of another version is replaced.
        probes: queries that fail unless the file has this schema.
        source: what the file is made from again, for messages.
        is_checked: whether all pages of the file are looked at when it is opened; otherwise damage shows in use.
        durable: whether a commit must survive power loss; then a replaced file is also kept, with ``DAMAGED_SUFFIX``,
            and a file of a later version is an error.
    """

    version: int
    tables: str
    probes: tuple[str, ...]
    source: str = "the episode files"
    is_checked: bool = True
    durable: bool = False


class _IncompatibleDatabase(sqlite3.DatabaseError):
    """A readable database that does not match its schema."""

    published_error_type = "_Unusable"


class Database:
    """An SQLite file that several threads and processes use, and that may be deleted or replaced at any time.

    Each use opens the file if it is not open, was damaged, or was replaced. All methods raise ``StoreError`` if it
    cannot be used.

    Args:
        path: None: in memory.
        advice: what helps if the file cannot be used, after the cause.
        attached: another database, whose tables are read as those of ``other``.

    Attributes:
        generation: how often the file was opened; the content of a derived file is new each time.
        on_write: called in the writing thread after ``write`` has changed rows, and after statements were queued.
    """

    def __init__(
        self,
        path: Path | None,
        schema: SqliteSchema,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        advice: str = _CHECK_FREE_SPACE,
        attached: Database | None = None,
    ) -> None:
        self.path, self._schema, self._advice = path, schema, advice
        self._busy_timeout_s = busy_timeout_s
        self._attached = attached
        self._attached_id: FileId | None = None
        self._lock = threading.RLock()
        self._queue_lock = threading.Lock()  # never held while the file is used
        self._unwritten: deque[Statement] = deque(maxlen=MAX_UNWRITTEN)
        self._next_group_s = 0.0
        self._connection: sqlite3.Connection | None = None
        self._file_id: FileId | None = None
        self._is_closed = False
        self.generation = 0
        self.on_write: Callable[[], None] | None = None

    @contextmanager
    def session(self, timeout_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """Use the connection alone; ``timeout_s`` are the seconds to wait for another process that has locked the file.

        A damaged file is replaced at the next use: a derived one is deleted, a durable one is checked first.
        """
        with self._lock:
            try:
                connection = self._opened()
                timeout_s = self._busy_timeout_s if timeout_s is None else timeout_s
                connection.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")
                yield connection
            except DATABASE_ERRORS as exc:
                if is_damage(exc):
                    self._drop()
                    if self._attached is not None:  # the damage may be there: its next use looks at it, too
                        self._attached.release()
                raise self.unusable(exc) from exc

    @contextmanager
    def transaction(self, timeout_s: float | None = None) -> Iterator[sqlite3.Connection]:
        with self.session(timeout_s) as connection, transaction(connection):
            yield connection

    def select(self, query: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Write first what was not written yet."""
        self.write_waiting()
        with self.session() as connection:
            return connection.execute(query, parameters).fetchall()

    @property
    def n_unwritten(self) -> int:
        return len(self._unwritten)

    def write(self, *statements: Statement, timeout_s: float = WRITE_TIMEOUT_S) -> int:
        """Execute statements in one transaction, after those that failed before; return the number of changed rows.

        What cannot be written now is tried again by the next ``write`` and every ``select``.
        """
        self._queue(statements)
        with self.session(timeout_s) as connection:
            with self._queue_lock:
                waiting = list(self._unwritten)
            with transaction(connection):
                n_rows = sum(_execute(connection, statement) for statement in waiting)
            with self._queue_lock:
                for statement in waiting:
                    if self._unwritten and self._unwritten[0] is statement:  # otherwise the full queue has dropped it
                        self._unwritten.popleft()
            self._next_group_s = time.monotonic() + GROUP_S
        if n_rows:
            self._note_write()
        return n_rows

    def write_grouped(self, *statements: Statement) -> None:
        """Write statements like ``write``, or like ``write_later`` within ``GROUP_S`` of the last transaction."""
        if time.monotonic() < self._next_group_s:
            self.write_later(*statements)
        else:
            self.write(*statements)

    def write_later(self, *statements: Statement) -> None:
        """Queue statements for the next ``write``, ``write_waiting`` or ``select``; returns immediately."""
        self._queue(statements)
        self._note_write()

    def write_waiting(self) -> None:
        """If executing them fails, the statements wait for the next call."""
        if self._unwritten:
            with suppress(StoreError):
                self.write()

    def release(self) -> None:
        """Close the file until the next use."""
        with self._lock:
            self._disconnect()

    def close(self) -> None:
        """Write what was not written yet, if possible, and close the file for good."""
        try:
            if self._unwritten:
                self.write(timeout_s=self._busy_timeout_s)
        except StoreError as exc:
            logger.warning("the next start adds %d changes that could not be written: %s", self.n_unwritten, exc)
        with self._lock:
            self._disconnect()
            self._is_closed = True

    def unusable(self, exc: Exception) -> StoreError:
        return StoreError(f"{self.path or 'the index'} cannot be used: {exc}; {file_advice(exc, self._advice)}")

    def _queue(self, statements: tuple[Statement, ...]) -> None:
        with self._queue_lock:
            self._unwritten.extend(statements)

    def _note_write(self) -> None:
        on_write = self.on_write  # another thread may remove it
        if on_write is not None:
            on_write()

    def _opened(self) -> sqlite3.Connection:
        if self._is_closed:
            raise StoreError(f"{self.path or 'the index'} cannot be used: it was closed")
        if self._connection is None:
            self._connect()
        elif self.path is not None and file_id(self.path) != self._file_id:
            with suppress(StoreError):  # without room for a new file, the deleted one serves
                self._connect()
                logger.warning("%s was deleted or replaced while it was open", self.path)
        assert self._connection is not None
        if self._attached is not None and self._attached.path is not None:
            self._attach(self._connection, self._attached.path)
        return self._connection

    def _connect(self) -> None:
        if self.path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.executescript(self._schema.tables)
            found = None
        else:
            # Without the lock, two processes could find a damaged file and one delete the other's new one.
            with file_lock(self.path.with_suffix(".lock"), wait_s=MAX_LOCKED_S, create=True):
                connection = _open_database(self.path, self._schema, busy_timeout_s=self._busy_timeout_s)
                found = file_id(self.path)
        self._disconnect()
        self._connection, self._file_id = connection, found
        self.generation += 1

    def _attach(self, connection: sqlite3.Connection, attached: Path) -> None:
        if (found := file_id(attached)) == self._attached_id:
            return
        if self._attached_id is not None:
            self._attached_id = None
            connection.execute("DETACH other")
        connection.execute("ATTACH ? AS other", (f"{attached.as_uri()}?mode=ro",))  # read-only, so never locked
        self._attached_id = found

    def _drop(self) -> None:
        # a file with another id is the new one of another process
        if self.path is not None and not self._schema.durable and file_id(self.path) == self._file_id:
            with suppress(OSError):
                self.path.unlink()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._attached_id = self._file_id = None


def _open_database(path: Path, schema: SqliteSchema, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open a database with mode 0600; a missing, damaged or incompatible file is replaced by a new one.

    The caller must hold a lock: a process could delete the new file of another. Raises ``StoreError`` if the file can
    be neither opened nor replaced, another process keeps it locked, or it is of a later version that the schema
    refuses.
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
        for suffix in _SIDE_FILES:
            _remove(path, suffix, keep=schema.durable)
        return _open(path, schema, busy_timeout_s)
    except (*DATABASE_ERRORS, OSError) as exc:
        raise StoreError(f"{path} cannot be opened: {exc}; {file_advice(exc, _CHECK_FREE_SPACE)}") from exc
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


def file_id(path: Path) -> FileId | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False, uri=True)
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
    if schema.is_checked:
        (check_result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if check_result != "ok":
            raise _IncompatibleDatabase(check_result)
    with _sql_errors_as_incompatible():
        if version != schema.version:
            raise _IncompatibleDatabase(f"its schema is {version}, expected {schema.version}")
        for probe in schema.probes:
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
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_OK)  # a wrong use of the library has none
    return code & 0xFF in _DAMAGE or code == _SHORT_READ


def _execute(connection: sqlite3.Connection, statement: Statement) -> int:
    """Return the number of changed rows; drop a statement with impossible values, which would block all others."""
    try:
        return connection.execute(*statement).rowcount
    except UnicodeDecodeError:  # the message about a corrupt file
        raise
    except (ValueError, OverflowError, sqlite3.DataError) as exc:
        logger.error("%r cannot be executed and is dropped: %s; report this as a bug", statement[0], exc)
        return 0
