"""The index: an SQLite database with one row per episode file, for results and lists."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeFile, EpisodeStore
from runner.store.index_schema import COLUMNS, SCHEMA, EpisodeRow, episode_row, from_columns, to_columns
from runner.util.files import DamagedFile, file_lock
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import BUSY_TIMEOUT_S, DATABASE_ERRORS, open_database

logger = logging.getLogger(__name__)

FILES_PER_TRANSACTION = 200
"""Maximum number of files added in one transaction; other writers can get the lock between two transactions."""

Key: TypeAlias = tuple[str, str]
"""Batch id and episode id."""
Stamp: TypeAlias = tuple[int, int]
"""Size in bytes and modification time in nanoseconds of an episode file."""

_PLACEHOLDERS = ", ".join("?" for _ in range(len(EpisodeRow.__struct_fields__) + 2))
_INSERT = f"INSERT OR REPLACE INTO episodes VALUES ({_PLACEHOLDERS})"


class EpisodeIndex:
    """Rows of all episode files of a store; thread-safe, and several processes may open the same index.

    ``damaged`` lists the episode files that the last ``reconcile`` could not read.
    """

    def __init__(self, store: EpisodeStore, connection: sqlite3.Connection) -> None:
        """Create the index on an open database; use ``open_index`` instead."""
        self._store = store
        self._connection = connection
        self._lock = threading.Lock()
        self.damaged: list[DamagedFile] = []

    def insert(self, record: EpisodeRecord) -> None:
        """Insert or replace the row of a saved episode.

        Raises:
            StoreError: the file is missing, or the database cannot be written; the next ``reconcile`` adds the row.
        """
        values = to_columns(episode_row(record), self._store.stat_file(record))
        with self._session() as connection:
            connection.execute(_INSERT, values)

    def recent(self, limit: int = 100, offset: int = 0) -> list[EpisodeRow]:
        """Return episodes, newest first.

        Args:
            limit: maximum number of episodes.
            offset: number of newest episodes to skip.

        Raises:
            StoreError: the database cannot be read.
        """
        query = f"SELECT {COLUMNS} FROM episodes ORDER BY episode_id DESC LIMIT ? OFFSET ?"
        try:
            return [from_columns(values) for values in self.select(query, (limit, offset))]
        except msgspec.ValidationError as exc:
            raise self.unusable(exc) from exc

    def select(self, query: str, parameters: tuple[object, ...] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query on the table ``episodes``; raises like ``recent``."""
        with self._session() as connection:
            return connection.execute(query, parameters).fetchall()

    def reconcile(self) -> None:
        """Synchronize the index with the files: add new and changed files, remove deleted ones.

        A damaged file is read only once, then recognized by size and modification time; each call reports it.

        Raises:
            StoreError: the files or the database cannot be read, or the database cannot be written.
        """
        # Read the rows before the files: an episode saved in between would otherwise look deleted.
        rows = self.select("SELECT batch_id, episode_id, size, mtime_ns FROM episodes")
        known = {(batch, episode): (size, mtime_ns) for batch, episode, size, mtime_ns in rows}
        rows = self.select("SELECT batch_id, episode_id, size, mtime_ns, reason FROM damaged")
        rejected = {(batch, episode): ((size, mtime_ns), reason) for batch, episode, size, mtime_ns, reason in rows}
        self.damaged = []
        changed = list(self._changed_files(known, rejected))
        self._delete_rows([*known, *rejected])
        for start in range(0, len(changed), FILES_PER_TRANSACTION):
            self._add_files(changed[start : start + FILES_PER_TRANSACTION])

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def _changed_files(self, known: dict[Key, Stamp], rejected: dict[Key, tuple[Stamp, str]]) -> Iterator[EpisodeFile]:
        """Yield new and changed files; remove the keys of all existing files from ``known`` and ``rejected``."""
        for file in self._store.list_files(self.damaged):
            key, stamp = (file.batch_id, file.episode_id), (file.size, file.mtime_ns)
            known_stamp, rejection = known.pop(key, None), rejected.pop(key, None)
            if rejection is not None and rejection[0] == stamp:
                self.damaged.append(DamagedFile(self._store.path(*key), rejection[1]))
            elif known_stamp != stamp:
                yield file

    def _add_files(self, files: list[EpisodeFile]) -> None:
        """Load files and replace their rows."""
        rows: list[list[object]] = []
        damaged: list[tuple[object, ...]] = []
        for file in files:
            path = self._store.path(file.batch_id, file.episode_id)
            try:
                rows.append(to_columns(episode_row(self._store.load(path)), file))
            except StoreError as exc:
                self.damaged.append(DamagedFile(path, str(exc)))
                damaged.append((file.episode_id, file.batch_id, file.size, file.mtime_ns, escape_surrogates(str(exc))))
        with self._transaction() as connection:
            _delete(connection, [(file.batch_id, file.episode_id) for file in files])
            connection.executemany(_INSERT, rows)
            connection.executemany("INSERT OR REPLACE INTO damaged VALUES (?, ?, ?, ?, ?)", damaged)

    def _delete_rows(self, keys: list[Key]) -> None:
        if keys:
            with self._transaction() as connection:
                _delete(connection, keys)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._session() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except DATABASE_ERRORS:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except DATABASE_ERRORS as exc:
                raise self.unusable(exc) from exc

    def unusable(self, exc: Exception) -> StoreError:
        """Return the error for an index that cannot be read or has impossible values."""
        path = self._store.data_dir / "index.sqlite"
        return StoreError(
            f"{path} cannot be used: {exc}; if this persists, delete the file: it is rebuilt from the episode files"
        )


def open_index(store: EpisodeStore, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> EpisodeIndex:
    """Open the index of a store and synchronize it with the files.

    An index that is missing, corrupt or of another version is rebuilt.

    Raises:
        StoreError: the files or the database cannot be read or written.
    """
    # Without the lock, two processes could find a corrupt database and one delete the other's new one.
    with file_lock(store.runs, wait=True):
        connection = open_database(store.data_dir / "index.sqlite", SCHEMA, busy_timeout_s=busy_timeout_s)
    return _reconciled(EpisodeIndex(store, connection))


def open_index_to_read(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read; where its file cannot be written, build the index in memory.

    Raises:
        StoreError: the episode files cannot be read.
    """
    try:
        return open_index(store)
    except StoreError as exc:
        logger.warning("%s. Every episode file is read instead", exc)
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA.tables)
    return _reconciled(EpisodeIndex(store, connection))


def _reconciled(index: EpisodeIndex) -> EpisodeIndex:
    try:
        index.reconcile()
    except StoreError:
        index.close()
        raise
    return index


def _delete(connection: sqlite3.Connection, keys: Iterable[Key]) -> None:
    keys = list(keys)
    for table in ("episodes", "damaged"):
        connection.executemany(f"DELETE FROM {table} WHERE batch_id = ? AND episode_id = ?", keys)
