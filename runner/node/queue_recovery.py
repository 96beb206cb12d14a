"""Recovery of a node's queue from the stored episodes and the events, at the start of the node."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from itertools import groupby

import msgspec

from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import StoreError
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status
from runner.store import EpisodeRecord
from runner.util.sqlite import DAMAGED_SUFFIX

logger = logging.getLogger(__name__)

_PLANNED = "SELECT batch_id, episode_id, task_index, attempt FROM episodes ORDER BY batch_id, task_index, attempt"


def recover_queue(queue: BatchQueue, workspace: Workspace, ended_ids: Collection[str]) -> None:
    """List the batches of a lost queue again, and end the interrupted batches that have ended.

    A process may have died before it saved a status, or the queue file may be an older copy.

    Args:
        workspace: the workspace, whose index has been updated from the files.
    """
    if queue.is_incomplete:
        _restore_from_episodes(queue, workspace)
        queue.set_complete()
    for batch in queue.interrupted():
        n_done = workspace.n_finished(batch.batch_id)
        is_complete = n_done >= batch.spec.n_planned
        if is_complete or batch.batch_id in ended_ids:
            logger.warning("batch %s has ended according to its episodes and events", batch.batch_id)
            status: Status = "completed" if is_complete else "cancelled"
            queue.set_status(batch.batch_id, status, n_done=n_done, only=("interrupted",))


def _restore_from_episodes(queue: BatchQueue, workspace: Workspace) -> None:
    known = queue.ids()
    rows = groupby(workspace.index.select(_PLANNED), key=lambda row: str(row[0]))
    unknown = ((batch_id, episodes) for batch_id, episodes in rows if batch_id not in known)
    found = (_batch_of(workspace, batch_id, episodes) for batch_id, episodes in unknown)
    batches = [batch for batch in found if batch is not None]
    if not batches:
        return
    queue.add(*batches)
    queue.notice = (
        f"queue.sqlite and batches.jsonl were lost or damaged (damaged files end with {DAMAGED_SUFFIX}). Batches that "
        f"batches.jsonl still had: {len(known)}; batches that are listed again as far as their episodes describe them: "
        f"{len(batches)}"
    )
    logger.warning("%s", queue.notice)


def _batch_of(workspace: Workspace, batch_id: str, rows: Iterable[tuple[str, str, int, int]]) -> QueuedBatch | None:
    """Return the batch of these episodes, which are ordered by task; None if they do not describe their batch."""
    episodes = list(rows)
    try:
        first = workspace.store.load(workspace.store.path(batch_id, episodes[0][1]))
    except StoreError:
        return None
    if first.n_planned is None:
        return None
    n_attempts = max(attempt for *_, attempt in episodes) + 1
    spec = _spec_of(first, first.n_planned, n_attempts if first.n_planned % n_attempts == 0 else 1)
    played = {(task_index, attempt) for _, _, task_index, attempt in episodes}
    if not played <= {(planned.task_index, planned.attempt) for planned in spec.plan()}:
        # single episodes were chosen: those that were not played are unknown, and no others may be played
        spec = msgspec.structs.replace(spec, chosen=tuple(sorted(played)))
    n_done = workspace.n_finished(batch_id)  # saved here and not one by one, because each save is synced
    status: Status = "completed" if n_done >= spec.n_planned else "interrupted"
    return QueuedBatch(batch_id=batch_id, battery_id=first.battery_id, spec=spec, status=status, n_done=n_done)


def _spec_of(first: EpisodeRecord, n_planned: int, n_attempts: int) -> BatchSpec:
    return BatchSpec(
        env=first.env,
        agent=first.agent,
        model=first.model,
        repeat=n_planned // n_attempts,
        attempts=n_attempts,
        task_index=first.task_index,
        seed=(first.seed or 0) - first.attempt,
        mode=first.mode,
    )
