"""Adaptive repeats on a node: after each part, the next one is queued until the interval is narrow enough.

The id of a part is derived from its battery and its first task, so a part is queued once, also after a crash.
"""

from __future__ import annotations

import logging

import msgspec

from runner.batch.adaptive import budget_left, next_part
from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.errors import catch_foreign, log_failure
from runner.node.batch_queue import BatchQueue, QueuedBatch, Status
from runner.node.queue_entries import battery_entry
from runner.results.summary import Selection, summarize_results

logger = logging.getLogger(__name__)

_USED = "SELECT total(cost), total(tokens_prompt + tokens_completion) FROM episodes WHERE batch_id = ?"


class AdaptiveRuns:
    """Queues the next parts of adaptive repeats."""

    def __init__(self, workspace: Workspace, queue: BatchQueue) -> None:
        self._index = workspace.index
        self._queue = queue

    def on_end(self, result: BatchResult) -> None:
        """The part starts before all other batches that wait."""
        if result.status == "completed":
            with catch_foreign(log_failure(logger, "queueing the next part of adaptive repeats")):
                if (ended := self._queue.get(result.batch_id)) is not None:
                    self._add_next(ended, "queued")

    def restore(self) -> None:
        """Add the parts that a killed node did not queue; like all others, they wait to be resumed."""
        for ended in self._queue.finished():
            if ended.status == "completed":
                self._add_next(ended, "interrupted")

    def _add_next(self, ended: QueuedBatch, status: Status) -> None:
        spec, battery_id = ended.spec, ended.battery_id
        if spec.adaptive is None or battery_id is None:
            return
        parts = self._queue.in_battery(battery_id)
        played = [part for part in parts if (part.spec.env, part.spec.model) == (spec.env, spec.model)]
        if any(part.spec.task_index > spec.task_index for part in played):
            return
        selection = Selection(env=spec.env, agent=spec.agent, requested=spec.model, batch=battery_id)
        rows = summarize_results(self._index, selection)
        if sum(row.n for row in rows) < sum(part.n_done for part in played):
            return  # episodes were deleted since, so the interval is that of a few
        ((cost, n_tokens),) = self._index.select(_USED, (ended.batch_id,))
        budget = budget_left(spec.budget, cost, int(n_tokens))
        part = next_part(spec, sum(row.n_success for row in rows), sum(row.n_rated for row in rows), budget)
        if part is not None:
            entry = msgspec.structs.replace(battery_entry(battery_id, part), status=status)
            if self._queue.add(entry) and status == "queued":
                self._queue.move({entry.batch_id}, 0)
