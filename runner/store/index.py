"""The index: an SQLite database with one row per episode file, for results and lists.

It is derived from the files, and made again from them on any doubt. The row of an archived episode has the size and
modification time of its archive in place of those of a file.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.store.archive import Member, episode_member, read_directory, read_member
from runner.store.episode_file import EpisodeRecord, decode_episode
from runner.store.episode_store import ArchiveFile, EpisodeFile, EpisodeStore
from runner.store.index_schema import COLUMNS, SCHEMA, EpisodeRow, episode_row, from_columns, to_columns
from runner.util.clock import is_ulid
from runner.util.files import DamagedFile
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import BUSY_TIMEOUT_S, Database, Parameters

logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]  # batch id and episode id
Stamp: TypeAlias = tuple[int, int]
"""Size in bytes and modification time in nanoseconds of the file that a row was read from."""

FILE_NAME = "index.sqlite"
FILES_PER_TRANSACTION = 200
"""Maximum number of files added in one transaction; other writers can get the lock between two transactions."""

_PLACEHOLDERS = ", ".join("?" for _ in range(len(EpisodeRow.__struct_fields__) + 3))
_ADVICE = "free disk space; if this persists, delete the file: it is made again from the episode files"
_INSERT = f"INSERT OR REPLACE INTO episodes VALUES ({_PLACEHOLDERS})"
_SET_PLAYED = (
    "UPDATE unannounced SET played = 1, subject = ? WHERE n = (SELECT max(n) FROM unannounced) AND episode_id = ?"
)
_FOREIGN = "it has no episode of this batch; move it away, and open it with agentgym-tui open or import it"


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
        index.refresh()
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
        with self._scanning:  # a new file has all rows only after its scan
            self.refresh()
            if self._generation != self.database.generation:
                self.reconcile()
        return self.database.select(query, parameters)

    def refresh(self) -> None:
        """Open the file again if it was deleted, replaced or damaged; raises ``StoreError``."""
        with self.database.session():
            self._generation = self._generation or self.database.generation

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
        """Synchronize the index with the files: add new and changed files, remove deleted ones.

        A damaged file is read only once, then recognized by size and modification time; each call reports it.
        ``should_stop`` is checked between two transactions; the next call reads the files that are left over. Raises
        ``StoreError`` if the files or the database cannot be read, or the database cannot be written.
        """
        # Read the rows before the files: an episode saved in between would otherwise look deleted.
        known = self._stamps()
        generation = self.database.generation
        rows = self.database.select("SELECT batch_id, episode_id, size, mtime_ns, reason FROM damaged")
        rejected = {(batch, episode): ((size, mtime_ns), reason) for batch, episode, size, mtime_ns, reason in rows}
        self.damaged = []
        archives: list[ArchiveFile] = []
        changed = sorted(self._changed_files(known, rejected, archives), key=lambda file: file.episode_id)
        unread = self._keep_archived(known, rejected, archives)
        if gone := [*known, *rejected]:
            with self.transaction() as connection:
                _delete(connection, gone)
        for start in range(0, len(changed), FILES_PER_TRANSACTION):
            self.progress = start, len(changed)
            if should_stop():
                return
            self._add_files(changed[start : start + FILES_PER_TRANSACTION])
        self.progress = None
        for archive in unread:
            if should_stop():
                return
            self._add_archive(archive)
        self._generation = generation

    def _stamps(self) -> dict[Key, Stamp]:
        """Takes half the memory that ``select`` would take for 100,000 rows."""
        self.database.write_waiting()
        batches: dict[str, str] = {}
        with self.database.session() as connection:
            rows = connection.execute("SELECT batch_id, episode_id, size, mtime_ns FROM episodes")
            return {(batches.setdefault(row[0], row[0]), row[1]): (row[2], row[3]) for row in rows}

    def _keep_archived(
        self, known: dict[Key, Stamp], rejected: dict[Key, tuple[Stamp, str]], archives: list[ArchiveFile]
    ) -> list[ArchiveFile]:
        stamps = {key: stamp for key, (stamp, _) in rejected.items()} | known
        # the newest last: of an episode in several archives, its row counts
        unread = sorted(_unread_archives(self._store, archives, stamps), key=lambda each: each.path.name)
        for key in [key for key in known if key not in stamps]:
            del known[key]
        for key in [key for key in rejected if key not in stamps]:
            self.damaged.append(DamagedFile(self._store.path(*key), rejected.pop(key)[1]))
        return unread

    def _add_archive(self, archive: ArchiveFile) -> None:
        """Replace the rows of the episodes in an archive, all at once: its stamp in a row means that it was read."""
        rows, damaged = _read_archive(self._store, archive, self.damaged)
        if not rows and not damaged:
            return
        self._replace([(archive.batch_id, str(row[0])) for row in [*rows, *damaged]], rows, damaged)

    def _changed_files(
        self, known: dict[Key, Stamp], rejected: dict[Key, tuple[Stamp, str]], archives: list[ArchiveFile]
    ) -> Iterator[EpisodeFile]:
        """Yield new and changed files; remove the keys of all existing files from ``known`` and ``rejected``."""
        for file in self._store.list_files(self.damaged, archives):
            key, stamp = (file.batch_id, file.episode_id), (file.size, file.mtime_ns)
            known_stamp, rejection = known.pop(key, None), rejected.pop(key, None)
            if rejection is not None and rejection[0] == stamp:
                self.damaged.append(DamagedFile(self._store.path(*key), rejection[1]))
            elif known_stamp != stamp:
                yield file

    def _add_files(self, files: list[EpisodeFile]) -> None:
        rows: list[list[object]] = []
        damaged: list[tuple[object, ...]] = []
        for file in files:
            path = self._store.path(file.batch_id, file.episode_id)
            try:
                record = self._store.load(path)
                rows.append(to_columns(episode_row(record), file, settled=record.origin is not None))
            except StoreError as exc:
                self.damaged.append(DamagedFile(path, str(exc)))
                damaged.append((file.episode_id, file.batch_id, file.size, file.mtime_ns, escape_surrogates(str(exc))))
        self._replace([(file.batch_id, file.episode_id) for file in files], rows, damaged)

    def _replace(self, keys: list[Key], rows: list[list[object]], damaged: list[tuple[object, ...]]) -> None:
        with self.transaction() as connection:
            _delete(connection, keys)
            connection.executemany(_INSERT, rows)
            connection.executemany("INSERT OR REPLACE INTO damaged VALUES (?, ?, ?, ?, ?)", damaged)


def _delete(connection: sqlite3.Connection, keys: Iterable[Key]) -> None:
    keys = list(keys)
    for table in ("episodes", "damaged"):
        connection.executemany(f"DELETE FROM {table} WHERE batch_id = ? AND episode_id = ?", keys)


def _unread_archives(
    store: EpisodeStore, archives: Iterable[ArchiveFile], without_file: MutableMapping[Key, Stamp]
) -> Iterator[ArchiveFile]:
    """Yield the archives that were not read yet; remove the keys that archives contain from ``without_file``."""
    keys: defaultdict[str, list[Key]] = defaultdict(list)
    for key in without_file:
        keys[key[0]].append(key)
    found: defaultdict[str, list[ArchiveFile]] = defaultdict(list)
    for archive in archives:
        found[archive.batch_id].append(archive)
    for batch_id in sorted({*keys, *found}):
        known = _remove_known(keys[batch_id], found[batch_id], without_file)
        if len(known) == len(found[batch_id]) and not any(key in without_file for key in keys[batch_id]):
            continue
        # an archive replaces files only after it was completed: what has no file now is in an archive that exists now
        with suppress(StoreError):  # the list of files reports the folder
            yield from list(store.list_archives(batch_id))


def _remove_known(
    keys: Iterable[Key], archives: Iterable[ArchiveFile], without_file: MutableMapping[Key, Stamp]
) -> set[Stamp]:
    stamps = {(archive.size, archive.mtime_ns) for archive in archives}
    known = set()
    for key in keys:
        if (stamp := without_file[key]) in stamps:
            known.add(stamp)
            del without_file[key]
    return known


def _read_archive(
    store: EpisodeStore, archive: ArchiveFile, damaged: list[DamagedFile]
) -> tuple[list[list[object]], list[tuple[object, ...]]]:
    """Return the rows of the episodes in an archive that have no file, and those of its damaged members."""
    rows: list[list[object]] = []
    rejected: list[tuple[object, ...]] = []
    try:
        members = read_directory(archive.path)
    except StoreError as exc:
        damaged.append(DamagedFile(archive.path, str(exc)))
        return rows, rejected
    own = [(each, Path(each.name).stem) for each in members.values() if _is_of_batch(each, archive.batch_id)]
    if not own:
        damaged.append(DamagedFile(archive.path, _FOREIGN))
    for member, episode_id in own:
        path = store.path(archive.batch_id, episode_id)
        if path.exists():
            continue
        file = EpisodeFile(archive.batch_id, episode_id, archive.size, archive.mtime_ns)
        try:
            record = decode_episode(read_member(archive.path, member), path)
        except StoreError as exc:
            damaged.append(DamagedFile(archive.path, str(exc)))
            rejected.append((episode_id, archive.batch_id, archive.size, archive.mtime_ns, str(exc)))
        else:
            rows.append(to_columns(episode_row(record), file, settled=True))
    return rows, rejected


def _is_of_batch(member: Member, batch_id: str) -> bool:
    stem = Path(member.name).stem
    return is_ulid(stem) and member.name == episode_member(batch_id, stem)
