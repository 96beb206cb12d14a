"""The index: one row per episode file, so that results and lists need not read the files."""

from __future__ import annotations

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
from runner.store.sqlite import DATABASE_ERRORS, open_database
from runner.util.files import DamagedFile, file_lock
from runner.util.safe_values import escape_surrogates

FILES_PER_TRANSACTION = 200
"""Files that are added at once, so that other writers get their turn."""

Key: TypeAlias = tuple[str, str]
Stamp: TypeAlias = tuple[int, int]

_HOLES = ", ".join("?" for _ in range(len(EpisodeRow.__struct_fields__) + 2))
_INSERT = f"INSERT OR REPLACE INTO episodes VALUES ({_HOLES})"


class EpisodeIndex:
    """The rows of all episode files of a store; usable from several threads, beside other processes.

    ``damaged`` names the episode files that the last ``reconcile`` could not use.
    """

    def __init__(self, store: EpisodeStore, connection: sqlite3.Connection) -> None:
        """Take an open database; see ``open_index``."""
        self._store = store
        self._connection = connection
        self._lock = threading.Lock()
        self.damaged: list[DamagedFile] = []

    def insert(self, record: EpisodeRecord) -> None:
        """Add a saved episode, or replace its row.

        Raises:
            StoreError: when its file is gone or the database cannot be written; the next ``reconcile`` adds it.
        """
        values = to_columns(episode_row(record), self._store.file(record))
        with self._session() as connection:
            connection.execute(_INSERT, values)

    def recent(self, limit: int = 100, offset: int = 0) -> list[EpisodeRow]:
        """Episodes, the newest first.

        Raises:
            StoreError: when the database cannot be read.
        """
        query = f"SELECT {COLUMNS} FROM episodes ORDER BY episode_id DESC LIMIT ? OFFSET ?"
        try:
            return [from_columns(values) for values in self.select(query, (limit, offset))]
        except msgspec.ValidationError as exc:
            raise self._unusable(exc) from exc

    def select(self, query: str, parameters: tuple[object, ...] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query over the table ``episodes``; raises like ``recent``."""
        with self._session() as connection:
            return connection.execute(query, parameters).fetchall()

    def reconcile(self) -> None:
        """Agree with the files again: add new and changed ones, drop vanished ones.

        A damaged file is read once and remembered by size and time; it is reported each time.

        Raises:
            StoreError: when the files or the database cannot be used.
        """
        # The rows come first: an episode saved and inserted in between would else look as if its file had vanished.
        rows = self.select("SELECT batch_id, episode_id, size, mtime_ns FROM episodes")
        known = {(batch, episode): (size, mtime_ns) for batch, episode, size, mtime_ns in rows}
        rows = self.select("SELECT batch_id, episode_id, size, mtime_ns, reason FROM damaged")
        refused = {(batch, episode): ((size, mtime_ns), reason) for batch, episode, size, mtime_ns, reason in rows}
        self.damaged = []
        changed = list(self._changed(known, refused))
        self._drop([*known, *refused])
        for start in range(0, len(changed), FILES_PER_TRANSACTION):
            self._read(changed[start : start + FILES_PER_TRANSACTION])

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def _changed(self, known: dict[Key, Stamp], refused: dict[Key, tuple[Stamp, str]]) -> Iterator[EpisodeFile]:
        """The files that have to be read; what is still left in the two dicts has no file any more."""
        for file in self._store.files(self.damaged):
            key, stamp = (file.batch_id, file.episode_id), (file.size, file.mtime_ns)
            was_known, was_refused = known.pop(key, None), refused.pop(key, None)
            if was_refused is not None and was_refused[0] == stamp:
                self.damaged.append(DamagedFile(self._store.path(*key), was_refused[1]))
            elif was_known != stamp:
                yield file

    def _read(self, files: list[EpisodeFile]) -> None:
        """Load files and replace what the database says about them."""
        good: list[list[object]] = []
        bad: list[tuple[object, ...]] = []
        for file in files:
            path = self._store.path(file.batch_id, file.episode_id)
            try:
                good.append(to_columns(episode_row(self._store.load(path)), file))
            except StoreError as exc:
                self.damaged.append(DamagedFile(path, str(exc)))
                bad.append((file.episode_id, file.batch_id, file.size, file.mtime_ns, escape_surrogates(str(exc))))
        with self._transaction() as connection:
            _delete(connection, [(file.batch_id, file.episode_id) for file in files])
            connection.executemany(_INSERT, good)
            connection.executemany("INSERT OR REPLACE INTO damaged VALUES (?, ?, ?, ?, ?)", bad)

    def _drop(self, keys: list[Key]) -> None:
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
                raise self._unusable(exc) from exc

    def _unusable(self, exc: Exception) -> StoreError:
        path = self._store.data_dir / "index.sqlite"
        return StoreError(f"{path} cannot be used: {exc}; delete it if that goes on, it is made anew from the episodes")


def open_index(store: EpisodeStore) -> EpisodeIndex:
    """The index of a store, in agreement with its files; made anew when missing, corrupt or of another version.

    Raises:
        StoreError: when the files or the database cannot be used.
    """
    # Without the lock two processes could both find a corrupt database, and one delete what the other just made.
    with file_lock(store.runs, wait=True):
        connection = open_database(store.data_dir / "index.sqlite", SCHEMA)
    index = EpisodeIndex(store, connection)
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
