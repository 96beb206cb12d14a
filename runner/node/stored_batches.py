"""Batches as their episode files describe them: results, progress and cancellation without a running batch."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from itertools import groupby

import msgspec

from runner.batch.result import BatchResult, BatchStats, BatchStatus, one_per_plan, split_plan
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import ConfigError, StoreError
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status
from runner.store import EpisodeRecord
from runner.types import BatchProgress, Outcome
from runner.util.sqlite import DAMAGED_SUFFIX

logger = logging.getLogger(__name__)

MAX_CHOSEN = 3000
"""Maximum number of single episodes of a batch that are played again; one line of the journal names them all."""

_PLANNED = "SELECT batch_id, episode_id, task_index, attempt FROM episodes ORDER BY batch_id, task_index, attempt"


class StoredBatches:
    """Reads the stored episodes of batches."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def episodes(self, batch_id: str) -> list[EpisodeRecord]:
        """Raises ``StoreError`` if the index or a file cannot be read."""
        rows = self._workspace.index.select("SELECT episode_id FROM episodes WHERE batch_id = ?", (batch_id,))
        return [self._workspace.store.load(self._workspace.store.path(batch_id, row[0])) for row in rows]

    def spec_of_errors(self, batch: QueuedBatch) -> BatchSpec | None:
        """Return the spec that plays again what ended with an error at its latest start; None if nothing did.

        Raises:
            StoreError: the index cannot be read.
            ConfigError: more than ``MAX_CHOSEN`` episodes ended with an error.
        """
        statement = "SELECT task_index, attempt, outcome FROM episodes WHERE batch_id = ? ORDER BY episode_id"
        rows = self._workspace.index.select(statement, (batch.batch_id,))
        latest = {(task_index, attempt): outcome for task_index, attempt, outcome in rows}
        errors = sorted(episode for episode, outcome in latest.items() if outcome == Outcome.ERROR)
        if len(errors) > MAX_CHOSEN:
            raise ConfigError(
                f"{len(errors)} episodes of batch {batch.batch_id} ended with an error; at most {MAX_CHOSEN} can be "
                "chosen, so play all of its episodes again"
            )
        return msgspec.structs.replace(batch.spec, chosen=tuple(errors), adaptive=None) if errors else None

    def lacks_episodes(self, queued: QueuedBatch) -> bool:
        """Return whether episodes of an ended batch were deleted; then it has no other result than its earlier one."""
        if queued.status == "completed":
            return self._workspace.n_finished(queued.batch_id) < queued.spec.n_planned
        query = "SELECT 1 FROM episodes WHERE batch_id = ? LIMIT 1"
        return queued.n_done > 0 and not self._workspace.index.select(query, (queued.batch_id,))

    def placement_kind(self, queued: QueuedBatch) -> tuple[str, str, str] | None:
        """Return the ``Placement.kind`` of a batch and all parts of its adaptive repeats; None: nothing is stored."""
        battery_id = None if queued.spec.adaptive is None else queued.battery_id
        rows = self._workspace.index.select(
            "SELECT transport, mode, data_label FROM episodes "
            "WHERE batch_id = ? OR (battery_id = ? AND env = ? AND model IS ?) LIMIT 1",
            (queued.batch_id, battery_id, queued.spec.env, queued.spec.model),
        )
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    def progress(self, queued: QueuedBatch, *, interruption: str | None = None) -> BatchProgress:
        """Its ``seq`` is 0. ``interruption`` is why the batch is interrupted, None if it is not."""
        stats, stored = BatchStats(), self.episodes(queued.batch_id)
        stats.add_stored(stored, split_plan(queued.spec, stored)[0])
        now = self._workspace.clock.now()
        progress = stats.progress(queued.batch_id, queued.spec.n_planned, at=now, seq=0)
        return msgspec.structs.replace(progress, interrupted=interruption is not None, interruption=interruption)

    def result(self, queued: QueuedBatch, status: BatchStatus) -> BatchResult:
        """Has no duration."""
        stats, stored = BatchStats(), self.episodes(queued.batch_id)
        stats.add_stored(stored, one_per_plan(stored))
        batch_id, battery_id = queued.batch_id, queued.battery_id
        return stats.result(
            queued.spec, batch_id=batch_id, battery_id=battery_id, status=status, data_label="", duration_s=0.0
        )


def recover_queue(queue: BatchQueue, workspace: Workspace, ended_ids: Collection[str]) -> None:
    """List the batches of a lost queue again, count the episodes of interrupted ones, and end those that have ended.

    A process may have died before it saved a status, or the file may be an older copy. The index of ``workspace`` must
    have been updated from the files.
    """
    if queue.is_incomplete:
        _restore_from_episodes(queue, workspace)
        queue.set_complete()
    for batch in queue.with_status("interrupted"):
        n_done = workspace.n_finished(batch.batch_id)
        is_complete = n_done >= batch.spec.n_planned
        if is_complete or batch.batch_id in ended_ids:
            logger.warning("batch %s has ended according to its episodes and events", batch.batch_id)
            queue.set_status(batch.batch_id, "completed" if is_complete else "cancelled", n_done=n_done)
        elif n_done != batch.n_done:  # a killed node has not saved the count of its last episodes
            queue.set_status(batch.batch_id, "interrupted", n_done=n_done, interruption=batch.interruption)


def _restore_from_episodes(queue: BatchQueue, workspace: Workspace) -> None:
    known, batches = queue.ids(), list[QueuedBatch]()
    for batch_id, rows in groupby(workspace.index.select(_PLANNED), key=lambda row: str(row[0])):
        if batch_id not in known and (batch := _batch_of(workspace, batch_id, list(rows))) is not None:
            batches.append(batch)
    if not batches:
        return
    queue.add(*batches)
    queue.notice = (
        f"batches.jsonl was lost or damaged (a damaged file ends with {DAMAGED_SUFFIX}). Batches that it still had: "
        f"{len(known)}; batches that are listed again as far as their episodes describe them: {len(batches)}"
    )
    logger.warning("%s", queue.notice)


def _batch_of(workspace: Workspace, batch_id: str, rows: Sequence[tuple[str, str, int, int]]) -> QueuedBatch | None:
    """Return the batch of these episodes, which are ordered by task; None if they do not describe their batch."""
    try:
        first = workspace.store.load(workspace.store.path(batch_id, rows[0][1]))
    except StoreError:
        return None
    if first.n_planned is None:
        return None
    played = {(task_index, attempt) for _, _, task_index, attempt in rows}
    n_attempts = max(attempt for _, attempt in played) + 1
    n_attempts = n_attempts if first.n_planned % n_attempts == 0 else 1
    spec = BatchSpec(
        env=first.env,
        agent=first.agent,
        model=first.model,
        repeat=first.n_planned // n_attempts,
        attempts=n_attempts,
        task_index=first.task_index,
        seed=(first.seed or 0) - first.attempt,
        mode=first.mode,
    )
    if not played <= {(planned.task_index, planned.attempt) for planned in spec.plan()}:
        # single episodes were chosen: those that were not played are unknown, and no others may be played
        spec = msgspec.structs.replace(spec, chosen=tuple(sorted(played)))
    n_done = workspace.n_finished(batch_id)  # saved here and not one by one, because each save is synced
    status: Status = "completed" if n_done >= spec.n_planned else "interrupted"
    return QueuedBatch(batch_id=batch_id, battery_id=first.battery_id, spec=spec, status=status, n_done=n_done)
