"""The queue entries of a start request, with ids that are derived from it."""

from __future__ import annotations

import hashlib

from runner.batch.spec import BatchSpec
from runner.node.batch_queue import QueuedBatch
from runner.util.clock import derive_ulid


def derived_batch_id(battery_id: str, env: str) -> str:
    """Return the batch id for one environment of a battery: a ULID derived only from the arguments."""
    digest = hashlib.blake2b(f"{battery_id}/{env}".encode(), digest_size=10).digest()
    return derive_ulid(battery_id, digest)


def queue_entry(requested_id: str, spec: BatchSpec, *, alone: bool) -> QueuedBatch:
    """Return the entry of a batch: with the requested id if it is alone, else in a battery with that id."""
    if alone:
        return QueuedBatch(batch_id=requested_id, battery_id=None, spec=spec)
    return QueuedBatch(batch_id=derived_batch_id(requested_id, spec.env), battery_id=requested_id, spec=spec)
