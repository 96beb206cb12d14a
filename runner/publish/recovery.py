"""Publishes completion events that a crashed process never wrote.

The events are derived from the stored episodes; both the node and a foreground run do this at their start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from runner.batch.result import FINISHED, BatchStats
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import StoreError
from runner.publish.event_recorder import EventRecorder
from runner.store import EpisodeRecord

logger = logging.getLogger(__name__)

_FINISHED = f"SELECT batch_id, count(*) FROM episodes WHERE {FINISHED} GROUP BY batch_id"
_EPISODES = f"SELECT episode_id FROM episodes WHERE batch_id = ? AND {FINISHED} ORDER BY episode_id"


def record_missed_batches(workspace: Workspace, recorder: EventRecorder, owned: Callable[[], Collection[str]]) -> None:
    """Record the completion of each batch whose episodes are all stored and whose event was never added.

    Another process may record the same batch at the same time: both events have the same id and count once. An
    unusable store is logged.

    Args:
        workspace: the workspace, whose index has been updated from the files.
        recorder: event recorder of the same workspace.
        owned: returns the ids of the batches that a node is responsible for; these are skipped.
    """
    try:
        known, skipped = recorder.outbox.known_ids(), owned()
        for batch_id, n_finished in workspace.index.select(_FINISHED):
            if f"batch:{batch_id}" not in known and batch_id not in skipped:
                _record(workspace, recorder, batch_id, n_finished)
    except StoreError as exc:
        logger.warning("completion events of earlier batches cannot be recorded now: %s", exc)


def _record(workspace: Workspace, recorder: EventRecorder, batch_id: str, n_finished: int) -> None:
    ids = [row[0] for row in workspace.index.select(_EPISODES, (batch_id,))]
    first = _load(workspace, batch_id, ids[0])
    if first.n_planned != n_finished:
        return
    stats = BatchStats()
    for episode_id in ids:
        stats.add(_load(workspace, batch_id, episode_id))
    spec = BatchSpec(env=first.env, agent=first.agent, model=first.model, repeat=n_finished, mode=first.mode)
    recorder.record_batch(
        stats.result(
            spec,
            batch_id=batch_id,
            battery_id=first.battery_id,
            status="completed",
            data_label=first.data_label,
            duration_s=0.0,
        )
    )


def _load(workspace: Workspace, batch_id: str, episode_id: str) -> EpisodeRecord:
    return workspace.store.load(workspace.store.path(batch_id, episode_id))
