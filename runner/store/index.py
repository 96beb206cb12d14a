"""The index: an SQLite database with one row per episode file, for results and lists.

It is derived from the files, and made again from them on any doubt. The row of an archived episode has the size and
checksum of the member of its archive in place of a file's.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeFile, EpisodeStore, stamp_of
from runner.store.index_rows import Rows, read_rows
from runner.store.index_scan import Key, scan_folders
from runner.store.index_schema import COLUMNS, SCHEMA, EpisodeRow, episode_row, from_columns, to_columns
from runner.util.files import DamagedFile
from runner.util.sqlite import BUSY_TIMEOUT_S, Database, Parameters

logger = logging.getLogger(__name__)

FILE_NAME = "index.sqlite"
FILES_PER_TRANSACTION = 200
"""Maximum number of files added in one transaction; other writers can get the lock between two transactions."""

_PLACEHOLDERS = ", ".join("?" for _ in range(len(EpisodeRow.__struct_fields__) + 3))
_ADVICE = "free disk space; if this persists, delete the file: it is made again from the episode files"
_INSERT = f"INSERT OR REPLACE INTO episodes VALUES ({_PLACEHOLDERS})"
_SET_PLAYED = (
    "UPDATE unannounced SET played = 1, subject = ? WHERE n = (SELECT max(n) FROM unannounced) AND episode_id = ?"
)
_DAMAGED = "SELECT batch_id, episode_id, reason FROM damaged ORDER BY 2"


def open_index(store: EpisodeStore, *, reconcile: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> EpisodeIndex:
    """Open the index of a store and synchronize it with the files.

    Raises ``StoreError`` if the files or the database cannot be read or written.
    """
    path = store.data_dir / FILE_NAME
    return _opened(store, Database(path, SCHEMA, busy_timeout_s=busy_timeout_s, advice=_ADVICE), reconcile=reconcile)


def open_index_to_read(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read; where its file cannot be written, build the index in memory."""
    try:
        return open_index(store)
    except StoreError as exc:
        logger.warning("%s. Every episode file is read instead", exc)
    return _opened(store, Database(None, SCHEMA), reconcile=True)


def _opened(store: EpisodeStore, database: Database, *, reconcile: bool) -> EpisodeIndex:
    index = EpisodeIndex(store, database)
    try:
        index.is_complete()
        if reconcile:
            index.reconcile()
    except StoreError:
        index.close()
        raise
    return index


class EpisodeIndex:
    """Rows of all episode files of a store; thread-safe, for several processes. ``open_index`` opens it.

    Attributes:
        damaged: the episode files that the last ``reconcile`` could not read.
        progress: number of files that a running ``reconcile`` has read, and of those that it reads; None: unknown.
        episode_subject: subject of the events of inserted episodes; None: the one of the process that sends them.
    """

    def __init__(self, store: EpisodeStore, database: Database) -> None:
        self._store = store
        self.database = database
        self._generation = 0
        self._scanning = threading.RLock()
        self.damaged: list[DamagedFile] = []
        self.progress: tuple[int, int] | None = None
        self.episode_subject: str | None = None

    @property
    def data_dir(self) -> Path:
        return self._store.data_dir

    def insert(self, record: EpisodeRecord, content: EpisodeRecord | None = None) -> None:
        """Insert or replace the row of a saved episode that was played here.

        The row of an episode that ends right after another one waits for the next call or use of the index; if the
        process dies before, the next start derives it from the file. ``content`` is the episode as its file has it, if
        the record lacks texts; its steps may be encoded. Raises ``StoreError`` like ``Database.write``, and if the file
        is missing.
        """
        values = tuple(to_columns(episode_row(record, content), self._store.stat_file(record)))
        self.database.write_grouped((_INSERT, values), (_SET_PLAYED, (self.episode_subject, record.episode_id)))

    def insert_settled(self, record: EpisodeRecord) -> None:
        """Insert the row of a saved episode that was not played here, so that no event of it is ever sent."""
        values = to_columns(episode_row(record), self._store.stat_file(record), settled=True)
        with self.transaction() as connection:
            connection.execute(_INSERT, values)

    def rows(self, clause: str, parameters: Parameters = ()) -> Iterator[EpisodeRow]:
        """Yield the episodes that an SQL clause after ``FROM episodes`` selects."""
        try:
            yield from map(from_columns, self.select(f"SELECT {COLUMNS} FROM episodes {clause}", parameters))
        except msgspec.ValidationError as exc:
            raise self.unusable(exc) from exc

    def select(self, query: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Write first what was not written yet; raises ``StoreError``."""
        self.complete()
        return self.database.select(query, parameters)

    def complete(self) -> None:
        """Read the files again if the database was deleted, replaced or damaged; raises ``StoreError``."""
        with self._scanning:  # other threads wait for the rows
            if not self.is_complete():
                self.reconcile()

    def is_complete(self) -> bool:
        """Return whether the file is the one that was opened first, or scanned last; raises ``StoreError``."""
        with self.database.session():  # opens another file
            self._generation = self._generation or self.database.generation
            return self._generation == self.database.generation

    def write_waiting(self) -> None:
        self.database.write_waiting()

    def unusable(self, exc: Exception) -> StoreError:
        return self.database.unusable(exc)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self.database.transaction()

    def close(self) -> None:
        """Write what was not written yet, if possible, and close the database."""
        self.database.close()

    def reconcile(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Synchronize the index with the files: add new and changed files, remove deleted ones; see ``scan_folders``.

        A damaged file is read only once, then recognized by size and modification time; each call reports it.
        ``should_stop`` is checked between two transactions; the next call reads the files that are left over. Raises
        ``StoreError`` if the files or the database cannot be read, or the database cannot be written.
        """
        self.database.write_waiting()
        with self.database.session():  # opens a new file
            generation = self.database.generation
        damaged: list[DamagedFile] = []
        changed, gone, stamps = scan_folders(self._store, self.database.select, damaged)
        changed.sort(key=lambda file: file.episode_id)
        if gone:
            with self.transaction() as connection:
                _delete(connection, gone)
        parts = [changed[n : n + FILES_PER_TRANSACTION] for n in range(0, len(changed), FILES_PER_TRANSACTION)]
        with closing(read_rows(self._store, parts)) as found:
            for number, part in enumerate(parts):
                self.progress = number * FILES_PER_TRANSACTION, len(changed)
                if should_stop():
                    break
                self._replace(part, next(found))
            else:
                self.progress = None
                self._trust(stamps, generation)
        for batch_id, episode_id, reason in self.database.select(_DAMAGED):
            path, archive = self._store.path(batch_id, episode_id), self._store.archive_path(batch_id)
            damaged.append(DamagedFile(path if os.path.lexists(path) else archive, reason))
        self.damaged = damaged

    def check_file(self, path: Path) -> None:
        """Read an episode file again if it was changed in place, which changes no folder; raises ``StoreError``."""
        try:
            stamp = stamp_of(path.stat(follow_symlinks=False))
        except OSError:  # it is archived, or gone
            return
        key = (path.parent.name, path.stem)
        known = self.select("SELECT size, mtime_ns FROM episodes WHERE batch_id = ? AND episode_id = ?", key)
        if known and known[0] != stamp:
            with self.transaction() as connection:
                connection.execute("DELETE FROM folders WHERE batch_id = ?", key[:1])
            self.reconcile()

    def _replace(self, files: Iterable[EpisodeFile], found: Rows) -> None:
        with self.transaction() as connection:
            _delete(connection, [(file.batch_id, file.episode_id) for file in files])
            connection.executemany(_INSERT, found.rows)
            connection.executemany("INSERT OR REPLACE INTO damaged VALUES (?, ?, ?, ?, ?)", found.damaged)

    def _trust(self, stamps: Mapping[str, str], generation: int) -> None:
        """Remember the folders whose episodes all have rows now, unless these rows are in a file that was replaced."""
        with self.transaction() as connection:
            if self.database.generation == generation:
                connection.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?)", stamps.items())
        self._generation = generation


def _delete(connection: sqlite3.Connection, keys: Iterable[Key]) -> None:
    """Delete rows, and the stamps of their folders: another process may have read these later."""
    keys = list(keys)
    for table in ("episodes", "damaged"):
        connection.executemany(f"DELETE FROM {table} WHERE batch_id = ? AND episode_id = ?", keys)
    connection.executemany("DELETE FROM folders WHERE batch_id = ?", {(batch_id,) for batch_id, _ in keys})
