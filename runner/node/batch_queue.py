"""The queue of requested batches, on the disk twice, so that it survives restarts of the node, damage and power loss.

The first record is a file of SQLite. The second one, ``batches.jsonl``, gets a line with the state of a batch when the
batch is accepted, resumed or ended; a damaged, lost or outdated queue file is restored from each last line.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from runner.batch.spec import INTEGER_LIMIT, MAX_EPISODES, BatchSpec
from runner.errors import RunnerError, StoreError
from runner.types import MAX_WORKERS
from runner.util.clock import derive_ulid, is_ulid
from runner.util.files import read_file, replace_file, set_aside, write_all
from runner.util.resources import file_advice
from runner.util.sqlite import DATABASE_ERRORS, SqliteSchema, open_database, read_rows, transaction

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["queued", "running", "completed", "cancelled", "interrupted"]

ENDED: Final[tuple[Status, ...]] = ("completed", "cancelled")
"""The statuses that a batch keeps for good."""
MAX_LINE_BYTES = 128 * 1024
"""Maximum length of a line; the request that starts a batch is smaller."""
MAX_GROWTH = 4
"""A file that is this many times as large as the last lines of its batches is written again at the start."""


class QueuedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A requested batch with its current status."""

    batch_id: str
    battery_id: str | None
    spec: BatchSpec
    status: Status = "queued"
    n_done: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


_DECODER = msgspec.json.Decoder(QueuedBatch)


def check_batch(batch: QueuedBatch) -> QueuedBatch:
    """Raise a ``ValueError`` if no node can have written the batch."""
    spec, ids = batch.spec, (batch.batch_id, batch.battery_id or batch.batch_id)
    numbers = [batch.n_done, spec.seed, spec.task_index, *chain.from_iterable(spec.chosen or ()), *(spec.tasks or ())]
    if spec.adaptive is not None:
        numbers += [spec.adaptive.task_index, spec.adaptive.repeat]
    is_planned = min(spec.repeat, spec.attempts, spec.n_planned) > 0 and spec.n_planned <= MAX_EPISODES
    is_planned = is_planned and (spec.tasks is None or len(set(spec.tasks)) == spec.repeat)
    is_planned = is_planned and (not isinstance(spec.workers, int) or 0 <= spec.workers <= MAX_WORKERS)
    if not (all(map(is_ulid, ids)) and is_planned and all(abs(number) < INTEGER_LIMIT for number in numbers)):
        raise ValueError("a batch has an invalid id or number")
    return batch


class BatchJournal:
    """The file of batches, which need not exist; each write is on the disk when it returns.

    Attributes:
        is_complete: whether ``read`` found the file with its first line, which is empty, and could read all others.
        is_tidy: whether, in addition, the last line has an end, and few lines are outdated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_complete = self.is_tidy = False
        self._written: tuple[int, int] | None = None

    def read(self) -> dict[str, QueuedBatch]:
        """Return the batches by id, in the order of acceptance; none if the file is missing or unreadable.

        Unreadable lines are logged and skipped. A batch that has ended stays so, whatever the order of its lines.
        """
        if not os.path.lexists(self.path):
            return {}
        try:
            content = read_file(self.path)
        except StoreError as exc:
            logger.warning("%s", exc)
            self._set_aside()
            return {}
        batches, last_lines, n_damaged = _read_lines(content)
        if n_damaged:
            logger.warning("%s has %d damaged lines; the others are used", self.path, n_damaged)
        self.is_complete = content.startswith(b"\n") and not n_damaged
        is_large = len(content) > MAX_GROWTH * sum(map(len, last_lines.values())) + 1
        self.is_tidy = self.is_complete and content.endswith(b"\n") and not is_large
        self._written = _version(self.path.stat()) if self.is_tidy else None
        return batches

    def append(self, *batches: QueuedBatch) -> bool:
        """Append the states of batches; return False if the file is missing or another one, or its length has changed.

        Raises:
            OSError: the file cannot be written; it is as before.
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(descriptor)
            if _version(status) != self._written:
                return False  # e.g. a partial line, which the next one would continue
            try:
                write_all(descriptor, _lines(batches))
                os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, status.st_size)  # the next line must not continue a partial one
                raise
            self._written = _version(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            advice = "check for a full disk, and that it is a file"
            raise StoreError(f"{self.path} cannot be written: {exc}; {advice}") from exc

    def rewrite(self, batches: Iterable[QueuedBatch]) -> None:
        replace_file(self.path, b"\n" + _lines(batches))
        self._written = _version(self.path.stat())

    def _set_aside(self) -> None:
        try:
            set_aside(self.path, self.path.with_name(f"{self.path.name}.damaged"))
        except OSError as exc:
            raise StoreError(f"{self.path} cannot be renamed: {exc}; move it away (no episode is lost)") from exc


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def _read_lines(content: bytes) -> tuple[dict[str, QueuedBatch], dict[str, bytes], int]:
    batches: dict[str, QueuedBatch] = {}
    last_lines: dict[str, bytes] = {}
    n_damaged = 0
    for line in filter(None, content.split(b"\n")):
        try:
            batch = _decode(line)
        except (ValueError, RecursionError):
            n_damaged += 1
            continue
        if batch.has_ended or batch.batch_id not in batches or not batches[batch.batch_id].has_ended:
            batches[batch.batch_id], last_lines[batch.batch_id] = batch, line
    return batches, last_lines, n_damaged


def _decode(line: bytes) -> QueuedBatch:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("the line is too long")
    return check_batch(_DECODER.decode(line))


def _lines(batches: Iterable[QueuedBatch]) -> bytes:
    return b"".join(msgspec.json.encode(batch) + b"\n" for batch in batches)


BUSY_TIMEOUT_S = 1.0
"""Maximum seconds to wait for another process that has locked the queue file; a control request waits as long."""
MAX_QUEUED = 1000
COLUMNS = "batch_id, battery_id, spec, status, n_done"
"""The columns of the table ``batches`` that hold the fields of a ``QueuedBatch``, in their order."""

_SCHEMA = SqliteSchema(
    version=0,
    tables="""
    CREATE TABLE batches (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        batch_id TEXT NOT NULL UNIQUE,
        battery_id TEXT,
        spec BLOB NOT NULL,
        status TEXT NOT NULL,
        n_done INTEGER NOT NULL DEFAULT 0
    )
""",
    probes=(f"SELECT position, {COLUMNS} FROM batches LIMIT 0",),
    source="batches.jsonl and the episode files",
    durable=True,
)
_HELD = "CREATE TABLE IF NOT EXISTS held (batch_id TEXT PRIMARY KEY) WITHOUT ROWID"
"""Table of the queued batches that were paused; separate, because the files of earlier versions lack it."""
_FORGET_HELD = "DELETE FROM held WHERE batch_id NOT IN (SELECT batch_id FROM batches WHERE status = 'queued')"
_MARK_INCOMPLETE = "CREATE TABLE IF NOT EXISTS incomplete (batch_id TEXT)"
"""Exists until the batches that the journal lacks were restored: a node may be killed while it reads its episodes."""
_IS_MARKED = "SELECT count(*) FROM sqlite_master WHERE name = 'incomplete'"
_READY = "status = 'queued' AND batch_id NOT IN (SELECT batch_id FROM held)"
_INSERT = f"INSERT INTO batches ({COLUMNS}) VALUES (?, ?, ?, ?, ?)"


class QueueFull(RunnerError):
    pass


class BatchQueue:
    """First-in, first-out queue of batches in SQLite; thread-safe within the node that owns it.

    A batch that a method has added, queued again or ended survives power loss, and is restored from the journal if the
    queue file is lost, damaged or replaced by an older copy. Batches that an earlier node left unfinished become
    ``interrupted``; held ones stay queued and held, unless the queue file was lost.

    Attributes:
        notice: what was lost from the queue file and restored, for people; None if nothing was.
        is_incomplete: whether batches may be missing: the queue file was lost or damaged, and so was the journal. Not
            before the first node of the folder, because a node does not list the batches of foreground runs.
        on_change: called after batches were added, moved or changed their status; must return quickly.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._journal = BatchJournal(path.with_name("batches.jsonl"))
        self.notice: str | None = None
        self.is_incomplete = False
        self.on_change: Callable[[], object] = lambda: None
        damage: list[Exception] = []
        self._connection = open_database(path, _SCHEMA, busy_timeout_s=BUSY_TIMEOUT_S, on_damage=damage.append)
        self._connection.text_factory = lambda data: data.decode(errors="replace")
        try:
            with self._transaction() as connection:
                self._restore(connection, is_replaced=bool(damage))
        except StoreError:
            self._connection.close()
            raise

    def add(self, *batches: QueuedBatch) -> bool:
        """Append all batches, or none and return False, because the queue already has one of the ids.

        Raises ``QueueFull`` if too many batches would wait.
        """
        try:
            with self._transaction() as connection:
                connection.executemany(_INSERT, map(encode_row, batches))
                _check_room(connection)
                self._record(connection, batches)
        except sqlite3.IntegrityError:
            return False
        return True

    def get(self, batch_id: str) -> QueuedBatch | None:
        rows = self._select("WHERE batch_id = ?", (batch_id,))
        return rows[0] if rows else None

    def ids(self) -> set[str]:
        with self._locked_connection() as connection:
            return {batch_id for (batch_id,) in connection.execute("SELECT batch_id FROM batches")}

    @property
    def has_ready(self) -> bool:
        with self._locked_connection() as connection:
            return connection.execute(f"SELECT 1 FROM batches WHERE {_READY} LIMIT 1").fetchone() is not None

    def in_battery(self, battery_id: str) -> list[QueuedBatch]:
        """In the order in which the batches were added."""
        return self._select("WHERE battery_id = ? ORDER BY position", (battery_id,))

    def ended_batteries(self) -> dict[str, int]:
        """Return the number of finished episodes of each battery whose batches have all ended, by its id."""
        ended = "HAVING min(status IN ('completed', 'cancelled'))"
        select = f"SELECT battery_id, sum(n_done) FROM batches WHERE battery_id IS NOT NULL GROUP BY battery_id {ended}"
        with self._locked_connection() as connection:
            return dict(connection.execute(select))

    def queued(self) -> list[QueuedBatch]:
        """In the order in which the batches will run."""
        return self._select("WHERE status = 'queued' ORDER BY position", ())

    def ready(self) -> list[QueuedBatch]:
        """Queued batches that are not held, in the order in which they will run."""
        return self._select(f"WHERE {_READY} ORDER BY position", ())

    def is_held(self, batch_id: str) -> bool:
        with self._locked_connection() as connection:
            return connection.execute("SELECT 1 FROM held WHERE batch_id = ?", (batch_id,)).fetchone() is not None

    def hold(self, batch_id: str) -> bool:
        """Keep a queued batch from starting until ``release``, even after a restart; return False if none is queued."""
        is_queued, _ = self._hold("batch_id = ? AND status = 'queued'", (batch_id,))
        return is_queued

    def hold_all(self) -> int:
        """Keep all queued batches from starting, like ``hold``; return the number of those that were not held yet."""
        _, n_added = self._hold("status = 'queued'", ())
        return n_added

    def release(self, batch_id: str) -> bool:
        """Let a held batch start when its turn comes; return False if it is not held."""
        if not self.is_held(batch_id):
            return False
        with self._transaction() as connection:
            return connection.execute("DELETE FROM held WHERE batch_id = ?", (batch_id,)).rowcount == 1

    def interrupted(self) -> list[QueuedBatch]:
        return self._select("WHERE status = 'interrupted' ORDER BY position", ())

    def finished(self) -> list[QueuedBatch]:
        return self._select("WHERE status IN ('completed', 'cancelled') ORDER BY position", ())

    def listed(self, *, n_waiting: int, n_others: int) -> list[QueuedBatch]:
        """Return the batches that matter most, the newest first: what runs, what runs next, and the newest others."""
        first = "SELECT position FROM batches WHERE status = 'queued' ORDER BY position LIMIT ?"
        others = "WHERE status != 'queued' ORDER BY status != 'running', position DESC LIMIT ?"
        condition = f"position IN ({first}) OR position IN (SELECT position FROM batches {others})"
        return self._select(f"WHERE {condition} ORDER BY position DESC", (n_waiting, n_others))

    @property
    def n_queued(self) -> int:
        with self._locked_connection() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM batches WHERE status = 'queued'").fetchone()[0])

    def set_status(
        self, batch_id: str, status: Status, *, n_done: int | None = None, only: tuple[Status, ...] = ()
    ) -> bool:
        """Set the status of a batch and, if given, the number of its finished episodes; return whether they were set.

        ``only`` are the statuses that it may have before; empty: any.
        """
        condition = f" AND status IN ({', '.join('?' * len(only))})" if only else ""
        statement = f"UPDATE batches SET status = ?, n_done = coalesce(?, n_done) WHERE batch_id = ?{condition}"
        with self._transaction() as connection:
            is_set = connection.execute(statement, (status, n_done, batch_id, *only)).rowcount == 1
            if is_set and status in ENDED:
                self._record(connection, select_batches(connection, "WHERE batch_id = ?", (batch_id,)))
        return is_set

    def queue_again(self, specs: Mapping[str, BatchSpec]) -> None:
        """Queue the interrupted batches among these again, with new specs that have the same episodes.

        Raises ``QueueFull`` if too many batches would wait; then none is changed.
        """
        update = "UPDATE batches SET status = 'queued', spec = ? WHERE batch_id = ? AND status = 'interrupted'"
        with self._transaction() as connection:
            for batch_id, spec in specs.items():
                if connection.execute(update, (msgspec.json.encode(spec), batch_id)).rowcount:
                    self._record(connection, select_batches(connection, "WHERE batch_id = ?", (batch_id,)))
            _check_room(connection)

    def move(self, batch_ids: Collection[str], to: int) -> bool:
        """Move the queued batches among these so that ``to`` others run before them; return False if none is queued."""
        select = "SELECT position, batch_id FROM batches WHERE status = 'queued' ORDER BY position"
        with self._transaction() as connection:
            rows = connection.execute(select).fetchall()
            moved = [batch_id for _, batch_id in rows if batch_id in batch_ids]
            others = [batch_id for _, batch_id in rows if batch_id not in batch_ids]
            places = zip((position for position, _ in rows), [*others[:to], *moved, *others[to:]], strict=True)
            # two rows never have the same position, so all get temporary ones first
            connection.execute("UPDATE batches SET position = -position WHERE status = 'queued'")
            connection.executemany("UPDATE batches SET position = ? WHERE batch_id = ?", places)
        return bool(moved)

    def set_done(self, batch_id: str, n_done: int) -> None:
        with self._locked_connection() as connection:
            connection.execute("UPDATE batches SET n_done = ? WHERE batch_id = ?", (n_done, batch_id))

    def set_complete(self) -> None:
        with self._transaction() as connection:
            connection.execute("DROP TABLE IF EXISTS incomplete")
        self.is_incomplete = False

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _hold(self, condition: str, values: tuple[str, ...]) -> tuple[bool, int]:
        """Return whether there are any, and the number of those that were not held yet."""
        with self._transaction() as connection:
            rows = connection.execute(f"SELECT batch_id FROM batches WHERE {condition}", values).fetchall()
            n_added = connection.executemany("INSERT OR IGNORE INTO held VALUES (?)", rows).rowcount
        return bool(rows), max(n_added, 0)  # it is -1 without rows

    def _restore(self, connection: sqlite3.Connection, *, is_replaced: bool) -> None:
        """Add what the journal has and the queue file has lost; batches that run or wait become ``interrupted``."""
        connection.execute(_HELD)
        journaled = self._journal.read()
        n_damaged = delete_damaged_rows(connection)
        has_ended = {batch.batch_id: batch.has_ended for batch in select_batches(connection, "", ())}
        lost = [batch for batch_id, batch in journaled.items() if batch_id not in has_ended]
        ended = [batch for id_, batch in journaled.items() if batch.has_ended and has_ended.get(id_) is False]
        connection.executemany(_INSERT, map(encode_row, lost))
        update = "UPDATE batches SET status = ?, n_done = ? WHERE batch_id = ?"
        connection.executemany(update, [(batch.status, batch.n_done, batch.batch_id) for batch in ended])
        # held batches stay queued: none has started, and none may start before it is released
        connection.execute(f"UPDATE batches SET status = 'interrupted' WHERE status = 'running' OR {_READY}")
        connection.execute(_FORGET_HELD)
        restored = select_batches(connection, "ORDER BY position", ())
        is_damaged = bool(is_replaced or lost or ended or n_damaged)
        has_lost = (is_damaged or not restored) and not self._journal.is_complete
        self.is_incomplete = bool(connection.execute(_IS_MARKED).fetchone()[0])
        if has_lost and self._path.with_name("nats").is_dir():
            self.is_incomplete = True
            connection.execute(_MARK_INCOMPLETE)
        if not self._journal.is_tidy or _without_progress(restored) != _without_progress(journaled.values()):
            with self._journal.writing():
                self._journal.rewrite(restored)
        if is_damaged or self.is_incomplete:
            self.notice = _describe_loss(self._path, n_lost=len(lost), n_ended=len(ended), n_damaged=n_damaged)
            if self.is_incomplete:
                self.notice += "; batches.jsonl was damaged, too: lost batches without a stored episode are not listed"
            logger.warning("%s", self.notice)

    def _record(self, connection: sqlite3.Connection, batches: Iterable[QueuedBatch]) -> None:
        """Append batches to the journal before the commit, so that every state in the queue file is also there."""
        with self._journal.writing():
            if not self._journal.append(*batches):
                self._journal.rewrite(select_batches(connection, "ORDER BY position", ()))

    def _select(self, condition: str, values: tuple[str | int, ...]) -> list[QueuedBatch]:
        with self._locked_connection() as connection:
            return select_batches(connection, condition, values)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._locked_connection() as connection, transaction(connection):
            yield connection
        self.on_change()

    @contextmanager
    def _locked_connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.IntegrityError:
                raise
            except sqlite3.Error as exc:
                advice = file_advice(exc, "check for a full disk")
                raise StoreError(f"the batch queue cannot be used: {exc}; {advice}") from exc


def queued_ids(path: Path, *, unfinished: bool = False) -> set[str]:
    """Return the ids of all or the ``unfinished`` batches in a queue file, which a running node may have open."""
    if not path.exists():
        return set()
    condition = "WHERE status NOT IN ('completed', 'cancelled')" if unfinished else ""
    try:
        rows = read_rows(path, f"SELECT batch_id FROM batches {condition}", busy_timeout_s=BUSY_TIMEOUT_S)
    except DATABASE_ERRORS as exc:
        raise StoreError(f"{path} cannot be read: {exc}; the next node restores it (no episode is lost)") from exc
    return {batch_id for (batch_id,) in rows}


def _check_room(connection: sqlite3.Connection) -> None:
    (n_queued,) = connection.execute("SELECT COUNT(*) FROM batches WHERE status = 'queued'").fetchone()
    if n_queued > MAX_QUEUED:
        raise QueueFull(f"the request makes {n_queued} batches wait; this node queues at most {MAX_QUEUED}")


def _describe_loss(path: Path, *, n_lost: int, n_ended: int, n_damaged: int) -> str:
    counts = {
        "batches that were missing and are listed again": n_lost,
        "batches that had ended": n_ended,
        "damaged rows that were removed": n_damaged,
    }
    restored = "; ".join(f"{name}: {count}" for name, count in counts.items() if count) or "no batch was found"
    causes = "damage, a deletion, an older copy, a power loss or a kill"
    return f"{path} was incomplete ({causes}) and was restored from batches.jsonl: {restored}"


def _without_progress(batches: Iterable[QueuedBatch]) -> dict[str, tuple[BatchSpec, Status | None]]:
    return {batch.batch_id: (batch.spec, batch.status if batch.has_ended else None) for batch in batches}


def derived_batch_id(battery_id: str, name: str) -> str:
    """The id is a ULID derived only from the arguments."""
    digest = hashlib.blake2b(f"{battery_id}/{name}".encode(), digest_size=10).digest()
    return derive_ulid(battery_id, digest)


def queue_entries(requested_id: str, specs: Sequence[BatchSpec]) -> list[QueuedBatch]:
    """Return the entries of a request: one with the requested id, or several in a battery with that id.

    An adaptive run is always a battery, because further batches follow.
    """
    if len(specs) == 1 and specs[0].adaptive is None:
        return [QueuedBatch(batch_id=requested_id, battery_id=None, spec=specs[0])]
    one_per_env = len({spec.env for spec in specs}) == len(specs)
    return [battery_entry(requested_id, spec, by_env=one_per_env and spec.adaptive is None) for spec in specs]


def battery_entry(battery_id: str, spec: BatchSpec, *, by_env: bool = False) -> QueuedBatch:
    """With ``by_env``, the battery has no other batch of the same environment."""
    name = spec.env if by_env else f"{spec.env}/{spec.model or ''}/{spec.task_index}"
    return QueuedBatch(batch_id=derived_batch_id(battery_id, name), battery_id=battery_id, spec=spec)


def delete_damaged_rows(connection: sqlite3.Connection) -> int:
    """Rows that are no batches may be of another version. Return their number."""
    damaged: list[tuple[int]] = []
    for position, *row in connection.execute(f"SELECT position, {COLUMNS} FROM batches"):
        try:
            _batch_of_row(row)
        except (ValueError, RecursionError):
            damaged.append((position,))
    connection.executemany("DELETE FROM batches WHERE position = ?", damaged)
    return len(damaged)


def select_batches(connection: sqlite3.Connection, condition: str, values: tuple[str | int, ...]) -> list[QueuedBatch]:
    """Raises a ``ValueError`` if a row is damaged."""
    return [_batch_of_row(row) for row in connection.execute(f"SELECT {COLUMNS} FROM batches {condition}", values)]


def encode_row(batch: QueuedBatch) -> tuple[str, str | None, bytes, Status, int]:
    return batch.batch_id, batch.battery_id, msgspec.json.encode(batch.spec), batch.status, batch.n_done


def _batch_of_row(row: Iterable[object]) -> QueuedBatch:
    fields = dict(zip(QueuedBatch.__struct_fields__, row, strict=True))
    if not isinstance(spec := fields["spec"], bytes):
        raise msgspec.ValidationError("a row of the batch queue is damaged")
    return check_batch(msgspec.convert(fields | {"spec": msgspec.json.decode(spec, type=BatchSpec)}, QueuedBatch))
