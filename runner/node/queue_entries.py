"""The entries of a node's queue: which ones a start request needs, and how a row of the queue file holds one."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from runner.batch.spec import BatchSpec
from runner.node.batch_journal import QueuedBatch, Status, check_batch
from runner.util.clock import derive_ulid

COLUMNS = "batch_id, battery_id, spec, status, n_done"
"""The columns of the table ``batches`` that hold the fields of a ``QueuedBatch``, in their order."""


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
            _decode_row(row)
        except (ValueError, RecursionError):
            damaged.append((position,))
    connection.executemany("DELETE FROM batches WHERE position = ?", damaged)
    return len(damaged)


def select_batches(connection: sqlite3.Connection, condition: str, values: tuple[str | int, ...]) -> list[QueuedBatch]:
    """Raises a ``ValueError`` if a row is damaged."""
    return [_decode_row(row) for row in connection.execute(f"SELECT {COLUMNS} FROM batches {condition}", values)]


def encode_row(batch: QueuedBatch) -> tuple[str, str | None, bytes, Status, int]:
    return batch.batch_id, batch.battery_id, msgspec.json.encode(batch.spec), batch.status, batch.n_done


def _decode_row(row: Iterable[object]) -> QueuedBatch:
    fields = dict(zip(QueuedBatch.__struct_fields__, row, strict=True))
    if not isinstance(spec := fields["spec"], bytes):
        raise msgspec.ValidationError("a row of the batch queue is damaged")
    return check_batch(msgspec.convert(fields | {"spec": msgspec.json.decode(spec, type=BatchSpec)}, QueuedBatch))
