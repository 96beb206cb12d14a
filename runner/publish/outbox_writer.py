"""Writes outbox rows on a background thread, so a locked or full disk never blocks an episode."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice

from runner.errors import catch_foreign, log_failure
from runner.publish.event_factory import MAX_EVENTS_PER_TRANSACTION
from runner.publish.outbox import Outbox, OutboxEvent

logger = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 10_000
"""Maximum number of queued events; older ones are dropped, and the next start derives them from the episode files."""

MIN_INTERVAL_S = 0.25
"""Minimum seconds between two transactions, as each costs a commit and two thread switches."""

RETRY_S = 1.0
"""Seconds between two attempts after a failure."""

FLUSH_TIMEOUT_S = 15.0
"""Seconds that ``close`` waits while other processes lock the outbox."""


class OutboxWriter:
    """Queues events from any thread and adds them to the outbox in the order of arrival, with retries."""

    def __init__(self, outbox: Outbox) -> None:
        """Start the writer thread."""
        self._outbox = outbox
        self._queue: deque[OutboxEvent] = deque(maxlen=MAX_QUEUED_EVENTS)
        self._changed = threading.Condition()
        self._idle = False
        self._flushing = False
        self._closed = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="outbox writer", daemon=True)
        self._thread.start()

    def put(self, event: OutboxEvent) -> None:
        """Queue an event; returns immediately."""
        with self._changed:
            self._queue.append(event)
            if self._idle:
                self._changed.notify_all()

    def flush(self) -> bool:
        """Wait until all events are added; returns False when they cannot be added now."""
        with self._changed:
            max_failures = self._failures + 2  # the current attempt may have started long ago
            self._flushing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._queue or self._failures >= max_failures, FLUSH_TIMEOUT_S)
            self._flushing = False
            return not self._queue

    def close(self) -> None:
        """Add the queued events if possible, then stop the thread."""
        if not self.flush():
            logger.warning("%d events could not be added to %s", len(self._queue), self._outbox.path)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        failed = False
        while events := self._next_events(RETRY_S if failed else MIN_INTERVAL_S):
            errors: list[BaseException] = []
            with catch_foreign(errors.append):
                self._outbox.add(*events)
            if errors and not failed:
                log_failure(logger, "adding events to the outbox")(errors[0])
            failed = bool(errors)
            self._finish(events, failed=failed)

    def _next_events(self, pause_s: float) -> Sequence[OutboxEvent]:
        """Wait ``pause_s``, then for events; returns [] when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._flushing or self._closed, pause_s)
            self._idle = True
            self._changed.wait_for(lambda: self._queue or self._closed)
            self._idle = False
            return [] if self._closed else list(islice(self._queue, MAX_EVENTS_PER_TRANSACTION))

    def _finish(self, events: Sequence[OutboxEvent], *, failed: bool) -> None:
        with self._changed:
            self._failures += failed
            for event in () if failed else events:
                if self._queue and self._queue[0] is event:  # otherwise the full queue has dropped it
                    self._queue.popleft()
            self._changed.notify_all()
