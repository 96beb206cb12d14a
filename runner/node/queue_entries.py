"""The queue entries of a start request, with ids that are derived from it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from runner.batch.spec import BatchSpec
from runner.node.batch_queue import QueuedBatch
from runner.util.clock import derive_ulid


def derived_batch_id(battery_id: str, name: str) -> str:
    """Return the id of the batch with this name in a battery: a ULID derived only from the arguments."""
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
    """Return the entry of a batch in a battery, which ``by_env`` has no other batch of the same environment."""
    name = spec.env if by_env else f"{spec.env}/{spec.model or ''}/{spec.task_index}"
    return QueuedBatch(batch_id=derived_batch_id(battery_id, name), battery_id=battery_id, spec=spec)
