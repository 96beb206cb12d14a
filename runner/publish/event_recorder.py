"""Records episodes, batches and status changes as durable events in the outbox."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Literal

from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.config import NatsSettings
from runner.errors import catch_foreign, log_failure
from runner.events.subjects import DurableNames
from runner.publish.event_factory import batch_event, enqueue_missing, episode_event, status_event
from runner.publish.outbox import Outbox, OutboxEvent
from runner.publish.outbox_writer import OutboxWriter
from runner.store import EpisodeRecord
from runner.types.fields import NodeStatus

logger = logging.getLogger(__name__)


class EventRecorder:
    """Queues durable events for the outbox.

    The ``record_…`` methods are thread-safe, return immediately and never raise. An event that cannot be added is
    retried until ``close``; after that, the next start creates it from the files.
    """

    def __init__(self, workspace: Workspace, names: DurableNames, *, role: Literal["node", "run"]) -> None:
        """Open the outbox and add the missing events of earlier processes.

        Raises:
            StoreError: the outbox cannot be used.
        """
        self.outbox = Outbox(workspace.data_dir / "outbox.sqlite", workspace.clock)
        self._workspace = workspace
        self.names = names
        self._role: Literal["node", "run"] = role
        self._n_status = itertools.count()
        self._status: NodeStatus | None = None
        self._lock = threading.Lock()
        enqueue_missing(workspace.index, self.outbox, names)
        self._writer = OutboxWriter(self.outbox)

    def record_episode(self, record: EpisodeRecord) -> None:
        """Record that an episode ended."""
        self._add(lambda: episode_event(record, self.names))

    def record_batch(self, result: BatchResult) -> None:
        """Record that a batch ended and will not be resumed."""
        now = self._workspace.clock.now()
        self._add(lambda: batch_event(result, self.names, node=self._workspace.node, time=now))

    def record_status(self, status: NodeStatus) -> None:
        """Record the status of this process; ignores an unchanged status."""
        with self._lock:
            if status == self._status:
                return
            self._status = status
            n = next(self._n_status)
        self._add(
            lambda: status_event(
                status,
                self.names,
                n=n,
                role=self._role,
                node=self._workspace.node,
                profile=self._workspace.profile,
                boot=self._workspace.boot,
                pid=os.getpid(),
                time=self._workspace.clock.now(),
            )
        )

    def ended_batches(self) -> set[str]:
        """Return the ids of the batches whose end was recorded, by this process or an earlier one."""
        ids = (event_id.partition(":") for event_id in self.outbox.known_ids())
        return {batch_id for kind, _, batch_id in ids if kind == "batch"}

    def flush(self) -> None:
        """Wait until all events are in the outbox, at most ``outbox_writer.FLUSH_TIMEOUT_S`` seconds."""
        self._writer.flush()

    def close(self) -> None:
        """Add the remaining events and close the outbox."""
        self._writer.close()
        self.outbox.close()

    def _add(self, create: Callable[[], OutboxEvent]) -> None:
        with catch_foreign(log_failure(logger, "recording an event")):
            self._writer.put(create())


def durable_names(nats: NatsSettings) -> DurableNames:
    """Return the durable subjects of a profile."""
    return DurableNames(
        episode_completed=nats.episode_completed, eval_batch=nats.eval_batch, field_status=nats.field_status
    )
