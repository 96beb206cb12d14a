"""Records the ends of batches and status changes as durable events in the outbox; the index has those of episodes.

Event ids are derived from the content, so that an event recorded twice counts once.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Literal

from runner.batch.result import FINISHED, BatchResult, BatchStats
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import StoreError, catch_foreign, log_failure
from runner.events import subjects
from runner.events.durable import BatchCompleted, BatteryCompleted, FieldStatus
from runner.events.subjects import DurableNames
from runner.publish.outbox import Outbox, OutboxEvent, durable_event
from runner.results.summary import IS_RATED
from runner.store import EpisodeRecord
from runner.store.episode_file import shared_fields
from runner.types import split_models
from runner.types.fields import NodeStatus

logger = logging.getLogger(__name__)

_FINISHED = f"SELECT batch_id, count(*) FROM episodes WHERE {FINISHED} GROUP BY batch_id"
_EPISODES = f"SELECT episode_id FROM episodes WHERE batch_id = ? AND {FINISHED} ORDER BY episode_id"
_BATTERY = f"""
SELECT batch_id, env, count(*), sum(outcome = 'cancelled' OR ({FINISHED})), total(CASE WHEN {IS_RATED} THEN reward END),
sum({IS_RATED}) FROM episodes WHERE battery_id = ? GROUP BY batch_id, env ORDER BY min(started_at)
"""
_ANSWERED = "SELECT DISTINCT models FROM episodes WHERE battery_id = ? AND models IS NOT NULL"


class EventRecorder:
    """Adds the events of batches and of this process to the outbox; its methods are thread-safe and never raise.

    An event that cannot be added now is added with the next use of the index. If the process dies before, the next
    start derives it from the episode files and the queue. The episodes of the index are published on the subject in
    ``names``.
    """

    def __init__(self, workspace: Workspace, names: DurableNames, *, role: Literal["node", "run"]) -> None:
        self.outbox = Outbox(workspace.index, names, workspace.clock)
        self.names = names
        workspace.index.episode_subject = None if names == DurableNames() else names.episode_completed
        self._workspace = workspace
        self._role: Literal["node", "run"] = role
        self._n_status = itertools.count()
        self._status: NodeStatus | None = None
        self._lock = threading.Lock()

    def record_batch(self, result: BatchResult) -> None:
        now = self._workspace.clock.now()
        self._add(lambda: batch_event(result, self.names, node=self._workspace.node, time=now), self.outbox.add)

    def record_batteries(self, ended: Mapping[str, int]) -> None:
        """Record the batteries whose last batch ended, by id with their number of finished episodes.

        A battery with deleted episodes is left out, because its mean is unknown.
        """
        with catch_foreign(log_failure(logger, "recording the ends of batteries")):
            for battery_id in ended.keys() - {event.partition(":")[2] for event in self.outbox.known_ids("battery")}:
                self._record_battery(battery_id, ended[battery_id])

    def _record_battery(self, battery_id: str, n_ended: int) -> None:
        rows = self._workspace.index.select(_BATTERY, (battery_id,))
        answered = self._workspace.index.select(_ANSWERED, (battery_id,))
        batches, environments, n_stored, n_finished, rewards, n_rated = zip(*rows, strict=True) if rows else ((),) * 6
        if sum(n_stored) < n_ended:
            return
        event = BatteryCompleted(
            battery_id=battery_id,
            batches=[*dict.fromkeys(batches)],
            environments=[*dict.fromkeys(environments)],
            n_episodes=sum(n_finished),
            models=sorted({name for (models,) in answered for name in split_models(models)}),
            mean_reward=sum(rewards) / sum(n_rated) if sum(n_rated) else None,
            node=self._workspace.node,
        )
        now = self._workspace.clock.now()
        kind = subjects.BATTERY_COMPLETED
        self.outbox.add(durable_event(f"battery:{battery_id}", kind, event, self.names, now))

    def record_status(self, status: NodeStatus) -> None:
        """Does not wait for the disk; ignores an unchanged status."""
        with self._lock:
            if status == self._status:
                return
            self._status = status
            n = next(self._n_status)
        workspace = self._workspace
        event = FieldStatus(
            node=workspace.node,
            config=workspace.profile,
            status=status,
            role=self._role,
            boot=workspace.boot,
            pid=os.getpid(),
        )
        self._add(
            lambda: durable_event(
                f"status:{workspace.boot}:{n}", subjects.FIELD_STATUS, event, self.names, workspace.clock.now()
            ),
            self.outbox.add_later,
        )

    def ended_batches(self) -> set[str]:
        """Recorded by this process or an earlier one."""
        return {event_id.partition(":")[2] for event_id in self.outbox.known_ids("batch")}

    def record_missed_batches(self, owned: Callable[[], Collection[str]]) -> None:
        """Record the completion of each batch whose episodes are all stored and whose end was never recorded.

        A process may have been killed in between. Another process may record the same batch at the same time: both
        events have the same id and count once. An unusable store is logged. Batches in ``owned``, for which a node is
        responsible, are skipped.
        """
        try:
            known = self.ended_batches() | {*owned()}
            for batch_id, n_finished in self._workspace.index.select(_FINISHED):
                if batch_id not in known:
                    self._record_missed(batch_id, n_finished)
        except StoreError as exc:
            logger.warning("completion events of earlier batches cannot be recorded now: %s", exc)

    def _record_missed(self, batch_id: str, n_finished: int) -> None:
        ids = [row[0] for row in self._workspace.index.select(_EPISODES, (batch_id,))]
        first = self._load(batch_id, ids[0])
        if first.n_planned != n_finished:
            return
        stats = BatchStats()
        for episode_id in ids:
            stats.add(self._load(batch_id, episode_id))
        spec = BatchSpec(env=first.env, agent=first.agent, model=first.model, repeat=n_finished, mode=first.mode)
        self.record_batch(
            stats.result(
                spec,
                batch_id=batch_id,
                battery_id=first.battery_id,
                status="completed",
                data_label=first.data_label,
                duration_s=0.0,
            )
        )

    def _load(self, batch_id: str, episode_id: str) -> EpisodeRecord:
        return self._workspace.store.load(self._workspace.store.path(batch_id, episode_id))

    def _add(self, create: Callable[[], OutboxEvent], add: Callable[[OutboxEvent], object]) -> None:
        with catch_foreign(log_failure(logger, "adding an event to the outbox")):
            add(create())


def batch_event(result: BatchResult, names: DurableNames, *, node: str, time: datetime) -> OutboxEvent:
    """Call it only for a batch that will not be resumed."""
    event = BatchCompleted(node=node, **shared_fields(result, BatchCompleted))
    return durable_event(f"batch:{result.batch_id}", subjects.BATCH_COMPLETED, event, names, time)
