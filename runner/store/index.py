"""The index: an SQLite database with one row per episode file, for results and lists, and the events of these rows.

The row of an archived episode has the size and modification time of its archive in place of those of a file.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.store.archive import Member, episode_member, read_directory, read_member
from runner.store.episode_file import EpisodeRecord, decode_episode
from runner.store.episode_store import ArchiveFile, EpisodeFile, EpisodeStore
from runner.store.index_schema import COLUMNS, SCHEMA, EpisodeRow, episode_row, from_columns, to_columns
from runner.util.clock import is_ulid
from runner.util.files import DamagedFile, file_lock
from runner.util.resources import file_advice
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import BUSY_TIMEOUT_S, DATABASE_ERRORS, is_damage, open_database, transaction

logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]  # batch id and episode id
Stamp: TypeAlias = tuple[int, int]
"""Size in bytes and modification time in nanoseconds of the file that a row was read from."""
Statement: TypeAlias = tuple[str, tuple[object, ...]]
FileId: TypeAlias = tuple[int, int]  # device and inode

FILE_NAME = "index.sqlite"
FILES_PER_TRANSACTION = 200
"""Maximum number of files added in one transaction; other writers can get the lock between two transactions."""
WRITE_TIMEOUT_S = 0.25
"""Seconds that ``write`` waits for another process that has locked the database; an episode ends that much later."""
GROUP_S = 0.1
"""Seconds in which the rows of several episodes are written together; a transaction costs as much as several rows."""
MAX_UNWRITTEN = 10_000
"""Maximum number of statements that wait; older ones are dropped, and the next start derives them from the files."""

_PLACEHOLDERS = ", ".join("?" for _ in range(len(EpisodeRow.__struct_fields__) + 2))
_ADVICE = (
    "free disk space; if this persists, delete the file: it is rebuilt from the episode files, and their events are "
    "sent again with the same ids"
)
_INSERT = f"INSERT OR REPLACE INTO episodes VALUES ({_PLACEHOLDERS})"
_SET_SUBJECT = "UPDATE events SET subject = ? WHERE id = ?"
_FOREIGN = "it has no episode of this batch; move it away, and open it with agentgym-tui open or import it"
_KNOWN = "INSERT INTO events (id) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM events WHERE id = ?1)"
_SETTLED = "DELETE FROM marks WHERE n = (SELECT n FROM events WHERE id = ?)"


def open_index(store: EpisodeStore, *, reconcile: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> EpisodeIndex:
    """Open the index of a store and synchronize it with the files.

    A missing or corrupt index is rebuilt; one of another version since 5 keeps its events and marks. Raises
    ``StoreError`` if the files or the database cannot be read or written.
    """
    # Without the lock, two processes could find a corrupt database and one delete the other's new one.
    with file_lock(store.runs, wait=True):
        connection = open_database(store.data_dir / FILE_NAME, SCHEMA, busy_timeout_s=busy_timeout_s)
        index = EpisodeIndex(store, connection, busy_timeout_s, file_id(store.data_dir / FILE_NAME))
    return _reconciled(index) if reconcile else index


def open_index_to_read(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read; where its file cannot be written, build the index in memory."""
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


class EpisodeIndex:
    """Rows of all episode files of a store, and the events of these rows; thread-safe, for several processes.

    ``open_index`` opens it; without ``file_id``, the database is in memory.

    Attributes:
        damaged: the episode files that the last ``reconcile`` could not read.
        progress: number of files that a running ``reconcile`` has read, and of those that it reads; None: unknown.
        episode_subject: subject of the events of inserted episodes; None: the one of the process that sends them.
        on_write: called in the writing thread after ``write`` has added rows, and after statements were queued.
    """

    def __init__(
        self,
        store: EpisodeStore,
        connection: sqlite3.Connection,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        file_id: FileId | None = None,
    ) -> None:
        self._store = store
        self._connection = connection
        self._file_id = file_id
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.RLock()
        self._queue_lock = threading.Lock()  # never held while the database is used
        self._unwritten: deque[Statement] = deque(maxlen=MAX_UNWRITTEN)
        self._next_group_s = 0.0
        self._timeout_s: float | None = None
        self.damaged: list[DamagedFile] = []
        self.progress: tuple[int, int] | None = None
        self.episode_subject: str | None = None
        self.on_write: Callable[[], None] | None = None

    @property
    def data_dir(self) -> Path:
        return self._store.data_dir

    @property
    def _path(self) -> Path:
        return self._store.data_dir / FILE_NAME

    @property
    def n_unwritten(self) -> int:
        return len(self._unwritten)

    def insert(self, record: EpisodeRecord, content: EpisodeRecord | None = None) -> None:
        """Insert or replace the row of a saved episode, and add its event if it is new.

        The row of an episode that ends within ``GROUP_S`` of the last transaction waits for the next call or use of the
        index; if the process dies before, the next start derives it from the file. ``content`` is the episode as its
        file has it, if the record lacks texts; its steps may be encoded. Raises ``StoreError`` like ``write``, and if
        the file is missing.
        """
        values = tuple(to_columns(episode_row(record, content), self._store.stat_file(record)))
        statements: list[Statement] = [(_INSERT, values)]
        if self.episode_subject is not None:
            statements.append((_SET_SUBJECT, (self.episode_subject, f"episode:{record.episode_id}")))
        if time.monotonic() < self._next_group_s:
            self.write_later(*statements)
        else:
            self.write(*statements)

    def insert_settled(self, record: EpisodeRecord) -> None:
        """Insert the row of a saved episode that was not played here, so that no event of it is ever sent."""
        values = to_columns(episode_row(record), self._store.stat_file(record))
        with self.transaction() as connection:
            _add_settled_events(connection, [record.episode_id])
            connection.execute(_INSERT, values)

    def write(self, *statements: Statement, timeout_s: float = WRITE_TIMEOUT_S) -> int:
        """Execute statements in one transaction, after those that failed before; return the number of changed rows.

        ``timeout_s`` are the seconds to wait for another process that has locked the database. Raises ``StoreError``
        if it cannot be written now; the next call, and every ``select``, tries again.
        """
        self._queue(statements)
        with self._session() as connection:
            with self._queue_lock:
                waiting = list(self._unwritten)
            self._set_timeout(connection, timeout_s)
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

    def write_later(self, *statements: Statement) -> None:
        """Queue statements for the next ``write``, ``write_waiting`` or ``select``; returns immediately."""
        self._queue(statements)
        self._note_write()

    def write_waiting(self) -> None:
        """If executing them fails, the statements wait for the next call."""
        if self._unwritten:
            with suppress(StoreError):
                self.write()

    def _queue(self, statements: Iterable[Statement]) -> None:
        with self._queue_lock:
            self._unwritten.extend(statements)

    def _note_write(self) -> None:
        on_write = self.on_write  # another thread may remove it
        if on_write is not None:
            on_write()

    def rows(self, clause: str, parameters: tuple[object, ...] | Mapping[str, object] = ()) -> Iterator[EpisodeRow]:
        """Yield the episodes that an SQL clause after ``FROM episodes`` selects."""
        try:
            yield from map(from_columns, self.select(f"SELECT {COLUMNS} FROM episodes {clause}", parameters))
        except msgspec.ValidationError as exc:
            raise self.unusable(exc) from exc

    def select(self, query: str, parameters: tuple[object, ...] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        """Write first what was not written yet; raises ``StoreError``."""
        self.write_waiting()
        with self._session() as connection:
            self._set_timeout(connection, self._busy_timeout_s)
            return connection.execute(query, parameters).fetchall()

    def reconcile(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Synchronize the index with the files: add new and changed files, remove deleted ones.

        A damaged file is read only once, then recognized by size and modification time; each call reports it.
        ``should_stop`` is checked between two transactions; the next call reads the files that are left over. Raises
        ``StoreError`` if the files or the database cannot be read, or the database cannot be written.
        """
        # Read the rows before the files: an episode saved in between would otherwise look deleted.
        known = self._stamps()
        rows = self.select("SELECT batch_id, episode_id, size, mtime_ns, reason FROM damaged")
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

    def close(self) -> None:
        """Write what was not written yet, if possible, and close the database."""
        try:
            if self._unwritten:
                self.write(timeout_s=self._busy_timeout_s)
        except StoreError as exc:
            logger.warning("the next start adds %d changes that could not be written: %s", self.n_unwritten, exc)
        with self._lock:
            self._connection.close()

    def _stamps(self) -> dict[Key, Stamp]:
        """Takes half the memory that ``select`` would take for 100,000 rows."""
        self.write_waiting()
        batches: dict[str, str] = {}
        with self._session() as connection:
            self._set_timeout(connection, self._busy_timeout_s)
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
        keys = [(archive.batch_id, str(row[0])) for row in [*rows, *damaged]]
        self._replace(keys, rows, damaged, settled=[str(row[0]) for row in rows])

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
        imported: list[str] = []
        damaged: list[tuple[object, ...]] = []
        for file in files:
            path = self._store.path(file.batch_id, file.episode_id)
            try:
                record = self._store.load(path)
                rows.append(to_columns(episode_row(record), file))
                if record.origin is not None:
                    imported.append(record.episode_id)
            except StoreError as exc:
                self.damaged.append(DamagedFile(path, str(exc)))
                damaged.append((file.episode_id, file.batch_id, file.size, file.mtime_ns, escape_surrogates(str(exc))))
        self._replace([(file.batch_id, file.episode_id) for file in files], rows, damaged, settled=imported)

    def _replace(
        self, keys: list[Key], rows: list[list[object]], damaged: list[tuple[object, ...]], *, settled: list[str]
    ) -> None:
        with self.transaction() as connection:
            _delete(connection, keys)
            _add_settled_events(connection, settled)
            connection.executemany(_INSERT, rows)
            connection.executemany("INSERT OR REPLACE INTO damaged VALUES (?, ?, ?, ?, ?)", damaged)

    @contextmanager
    def transaction(self, timeout_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """By default, ``timeout_s`` (the seconds to wait for a lock) is as in ``open_index``."""
        timeout_s = self._busy_timeout_s if timeout_s is None else timeout_s
        with self._session() as connection:
            self._set_timeout(connection, timeout_s)
            with transaction(connection):
                yield connection

    def _set_timeout(self, connection: sqlite3.Connection, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            connection.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")
            self._timeout_s = timeout_s

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._file_id not in (None, file_id(self._path)):
                    with suppress(StoreError):  # without room for a new file, the deleted one serves
                        self._reopen()
                yield self._connection
            except DATABASE_ERRORS as exc:
                raise self.unusable(exc) from exc

    def _reopen(self) -> None:
        """Continue in the file that other processes use since the open one was deleted, and add its rows there."""
        with file_lock(self._store.runs, wait=True):
            new = open_database(self._path, SCHEMA, busy_timeout_s=self._busy_timeout_s)
            try:
                _add_deleted_index(self._connection, new)
            except DATABASE_ERRORS as exc:
                if not is_damage(exc):
                    new.close()
                    raise self.unusable(exc) from exc
            self._connection.close()
            self._connection, self._file_id = new, file_id(self._path)
        logger.warning("%s was deleted or replaced while it was open; its rows were written again", self._path)
        self.reconcile()

    def unusable(self, exc: Exception) -> StoreError:
        return StoreError(f"{self._path} cannot be used: {exc}; {file_advice(exc, _ADVICE)}")


def file_id(path: Path) -> FileId | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _execute(connection: sqlite3.Connection, statement: Statement) -> int:
    """Return the number of changed rows; drop a statement with impossible values, which would block all others."""
    try:
        return connection.execute(*statement).rowcount
    except UnicodeDecodeError:  # the message about a corrupt file
        raise
    except (ValueError, OverflowError, sqlite3.DataError) as exc:
        logger.error("%r cannot be executed and is dropped: %s; report this as a bug", statement[0], exc)
        return 0


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
            rows.append(to_columns(episode_row(record), file))
    return rows, rejected


def _is_of_batch(member: Member, batch_id: str) -> bool:
    stem = Path(member.name).stem
    return is_ulid(stem) and member.name == episode_member(batch_id, stem)


def _add_settled_events(connection: sqlite3.Connection, episode_ids: Iterable[str]) -> None:
    """Add the events of episodes as delivered, unless they are known: of archived ones, and of imported ones."""
    for episode_id in episode_ids:
        event_id = f"episode:{episode_id}"
        if connection.execute(_KNOWN, (event_id,)).rowcount:
            connection.execute(_SETTLED, (event_id,))


# The triggers of the index mark events as waiting, without a time: only such marks are replaced by those of the deleted
# file, because the others are newer. An event without any mark has been delivered everywhere. A sink that only the
# deleted file has waits for the events that are new in the index, too.
_ADD_DELETED = """
    CREATE TABLE old.settled AS SELECT id FROM old.events WHERE n NOT IN (SELECT n FROM old.marks);
    DELETE FROM old.events WHERE id IN (SELECT id FROM old.settled);
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
    INSERT OR IGNORE INTO main.episodes SELECT * FROM old.episodes;
    INSERT OR IGNORE INTO main.damaged SELECT * FROM old.damaged;
    COMMIT;
"""


def _add_deleted_index(deleted: sqlite3.Connection, connection: sqlite3.Connection) -> None:
    """Add the rows of an index whose file was deleted while it was open to an index that has replaced it."""
    connection.execute("ATTACH '' AS old")  # a temporary database, which may be larger than the memory
    try:
        for table in ("events", "marks", "sinks", "streams", "episodes", "damaged"):
            rows = deleted.execute(f"SELECT * FROM {table}")
            connection.execute(f"CREATE TABLE old.{table} ({', '.join(name for name, *_ in rows.description)})")
            values = ", ".join("?" for _ in rows.description)
            connection.executemany(f"INSERT INTO old.{table} VALUES ({values})", rows)
        connection.executescript(_ADD_DELETED)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with suppress(sqlite3.Error):  # an error of the attached file counts, and not this one
            connection.execute("DETACH old")
