"""Queue of requested batches, stored on disk so that it survives restarts of the node."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from runner.batch.spec import BatchSpec
from runner.errors import RunnerError, StoreError

Status: TypeAlias = Literal["queued", "running", "completed", "cancelled", "interrupted"]

BUSY_TIMEOUT_S = 1.0
"""Maximum seconds to wait for another process that has locked the queue file; a control request waits as long."""
MAX_QUEUED = 1000
"""Maximum number of batches that wait in the queue."""

_TABLE = """
CREATE TABLE IF NOT EXISTS batches (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    batch_id TEXT NOT NULL UNIQUE,
    battery_id TEXT,
    spec BLOB NOT NULL,
    status TEXT NOT NULL,
    n_done INTEGER NOT NULL DEFAULT 0
)
"""
_COLUMNS = "batch_id, battery_id, spec, status, n_done"


class QueueFull(RunnerError):
    """More than ``MAX_QUEUED`` batches would wait."""


class QueuedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A requested batch with its current status."""

    batch_id: str
    battery_id: str | None
    spec: BatchSpec
    status: Status = "queued"
    n_done: int = 0


class BatchQueue:
    """First-in, first-out queue of batches in SQLite; thread-safe within the node that owns it."""

    def __init__(self, path: Path) -> None:
        """Open or create the queue; batches that a killed node left unfinished become ``interrupted``.

        Raises:
            StoreError: if the file cannot be used.
        """
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
            )
            path.chmod(0o600)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(_TABLE)
            self._connection.execute("UPDATE batches SET status = 'interrupted' WHERE status IN ('queued', 'running')")
        except (sqlite3.Error, OSError) as exc:
            raise StoreError(f"{path} cannot be used: {exc}; move the file away (no episode is lost)") from exc

    def add(self, *batches: QueuedBatch) -> bool:
        """Append all batches and return True; if the queue already has one of the ids, append none and return False.

        Raises:
            QueueFull: if too many batches would wait; none is appended.
        """
        rows = [
            (batch.batch_id, batch.battery_id, msgspec.json.encode(batch.spec), batch.status, batch.n_done)
            for batch in batches
        ]
        with self._locked_connection() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(f"INSERT INTO batches ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)", rows)
                _check_room(connection)
                connection.execute("COMMIT")
            except sqlite3.IntegrityError:
                return False
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return True

    def get(self, batch_id: str) -> QueuedBatch | None:
        """Return the batch with this id, or None."""
        rows = self._select("WHERE batch_id = ?", (batch_id,))
        return rows[0] if rows else None

    def in_battery(self, battery_id: str) -> list[QueuedBatch]:
        """Return the batches of a battery in the order in which they were added."""
        return self._select("WHERE battery_id = ? ORDER BY position", (battery_id,))

    def queued(self) -> list[QueuedBatch]:
        """Return the batches with the status ``queued``, in the order in which they will run."""
        return self._select("WHERE status = 'queued' ORDER BY position", ())

    def finished(self) -> list[QueuedBatch]:
        """Return the completed and cancelled batches."""
        return self._select("WHERE status IN ('completed', 'cancelled') ORDER BY position", ())

    def newest(self, limit: int) -> list[QueuedBatch]:
        """Return the most recently added batches, the newest first."""
        return self._select("ORDER BY position DESC LIMIT ?", (limit,))

    def set_status(self, batch_id: str, status: Status, *, only: tuple[Status, ...] = ()) -> bool:
        """Set the status of a batch and return whether it was set.

        If ``only`` is not empty, the status is set only if ``only`` contains the current status.
        """
        condition = f" AND status IN ({', '.join('?' * len(only))})" if only else ""
        return self._write(f"UPDATE batches SET status = ? WHERE batch_id = ?{condition}", (status, batch_id, *only))

    def queue_again(self, specs: Mapping[str, BatchSpec]) -> None:
        """Queue the interrupted batches among these again; other batches stay as they are.

        Args:
            specs: the new spec of each batch id, with the same episodes.

        Raises:
            QueueFull: if too many batches would wait; no batch is changed.
        """
        rows = [(msgspec.json.encode(spec), batch_id) for batch_id, spec in specs.items()]
        with self._locked_connection() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "UPDATE batches SET status = 'queued', spec = ? WHERE batch_id = ? AND status = 'interrupted'", rows
                )
                _check_room(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def set_done(self, batch_id: str, n_done: int) -> None:
        """Set the number of finished episodes of a batch."""
        self._write("UPDATE batches SET n_done = ? WHERE batch_id = ?", (n_done, batch_id))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> bool:
        with self._locked_connection() as connection:
            return connection.execute(statement, values).rowcount == 1

    def _select(self, condition: str, values: tuple[str | int, ...]) -> list[QueuedBatch]:
        with self._locked_connection() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM batches {condition}", values).fetchall()
        return [_decode_row(row) for row in rows]

    @contextmanager
    def _locked_connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as exc:
                raise StoreError(f"the batch queue cannot be used: {exc}; check for a full disk") from exc


def queued_ids(path: Path) -> set[str]:
    """Return the batch ids in a queue file without changing it; a running node may have the file open.

    Raises:
        StoreError: if the file exists and cannot be read.
    """
    if not path.exists():
        return set()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
            return {batch_id for (batch_id,) in connection.execute("SELECT batch_id FROM batches")}
    except sqlite3.Error as exc:
        raise StoreError(f"{path} cannot be read: {exc}; move the file away (no episode is lost)") from exc


def _check_room(connection: sqlite3.Connection) -> None:
    (n_queued,) = connection.execute("SELECT COUNT(*) FROM batches WHERE status = 'queued'").fetchone()
    if n_queued > MAX_QUEUED:
        raise QueueFull(f"the request makes {n_queued} batches wait; this node queues at most {MAX_QUEUED}")


def _decode_row(row: tuple[str, str | None, bytes, Status, int]) -> QueuedBatch:
    batch_id, battery_id, spec, status, n_done = row
    return QueuedBatch(
        batch_id=batch_id,
        battery_id=battery_id,
        spec=msgspec.json.decode(spec, type=BatchSpec),
        status=status,
        n_done=n_done,
    )
