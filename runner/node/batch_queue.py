"""The batches of a node, kept in SQLite so that they outlive it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from runner.batch.spec import BatchSpec
from runner.errors import StoreError

Status: TypeAlias = Literal["queued", "running", "completed", "cancelled", "interrupted"]

BUSY_TIMEOUT_S = 1.0
"""Seconds to wait for others that have the file locked; who asked the node waits, too."""

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


class QueuedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was asked for, and what became of it so far."""

    batch_id: str
    battery_id: str | None
    spec: BatchSpec
    status: Status = "queued"
    n_done: int = 0


class BatchQueue:
    """First come, first played; usable from several threads of the node that owns it."""

    def __init__(self, path: Path) -> None:
        """Open or create the queue; what a killed node left unfinished is ``interrupted`` from now on.

        Raises:
            StoreError: when the file cannot be used.
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
            raise StoreError(f"{path} cannot be used: {exc}; move it away, no episode is lost by that") from exc

    def add(self, *batches: QueuedBatch) -> bool:
        """Append batches, all of them or none: False when an id is known already."""
        rows = [
            (batch.batch_id, batch.battery_id, msgspec.json.encode(batch.spec), batch.status, batch.n_done)
            for batch in batches
        ]
        with self._connect() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(f"INSERT INTO batches ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)", rows)
                connection.execute("COMMIT")
            except sqlite3.IntegrityError:
                return False
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return True

    def get(self, batch_id: str) -> QueuedBatch | None:
        """A batch by its id."""
        rows = self._select("WHERE batch_id = ?", (batch_id,))
        return rows[0] if rows else None

    def in_battery(self, battery_id: str) -> list[QueuedBatch]:
        """The batches of a battery, in order."""
        return self._select("WHERE battery_id = ? ORDER BY position", (battery_id,))

    def waiting(self) -> list[QueuedBatch]:
        """What is to be played, the next one first."""
        return self._select("WHERE status = 'queued' ORDER BY position", ())

    def ended(self) -> list[QueuedBatch]:
        """What is over for good."""
        return self._select("WHERE status IN ('completed', 'cancelled') ORDER BY position", ())

    def newest(self, limit: int) -> list[QueuedBatch]:
        """The batches asked for last."""
        return self._select("ORDER BY position DESC LIMIT ?", (limit,))

    def set_status(self, batch_id: str, status: Status, *, only: tuple[Status, ...] = ()) -> bool:
        """Say what became of a batch; with ``only``, if it is in one of these states, and returns whether it was."""
        condition = f" AND status IN ({', '.join('?' * len(only))})" if only else ""
        return self._write(f"UPDATE batches SET status = ? WHERE batch_id = ?{condition}", (status, batch_id, *only))

    def set_done(self, batch_id: str, n_done: int) -> None:
        """Say how many episodes of a batch are over."""
        self._write("UPDATE batches SET n_done = ? WHERE batch_id = ?", (n_done, batch_id))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> bool:
        with self._connect() as connection:
            return connection.execute(statement, values).rowcount == 1

    def _select(self, condition: str, values: tuple[str | int, ...]) -> list[QueuedBatch]:
        with self._connect() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM batches {condition}", values).fetchall()
        return [_decode_row(row) for row in rows]

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as exc:
                raise StoreError(f"the queue of batches cannot be used: {exc}; is the disk full?") from exc


def queued_ids(path: Path) -> set[str]:
    """The batches of a queue, which a node may have open; nothing is changed.

    Raises:
        StoreError: when the file is there and cannot be read.
    """
    if not path.exists():
        return set()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
            return {batch_id for (batch_id,) in connection.execute("SELECT batch_id FROM batches")}
    except sqlite3.Error as exc:
        raise StoreError(f"{path} cannot be read: {exc}; move it away, no episode is lost by that") from exc


def _decode_row(row: tuple[str, str | None, bytes, Status, int]) -> QueuedBatch:
    batch_id, battery_id, spec, status, n_done = row
    return QueuedBatch(
        batch_id=batch_id,
        battery_id=battery_id,
        spec=msgspec.json.decode(spec, type=BatchSpec),
        status=status,
        n_done=n_done,
    )
