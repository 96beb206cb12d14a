"""Adds events to the outbox on a thread of its own: neither a lock nor a full disk there holds up who plays."""

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

KEPT = 10_000
"""Events that wait here; beyond that the oldest are left to the next start, which derives them from the files."""

GATHER_S = 0.1
"""Seconds from one transaction to the next at least: each costs two switches between threads, whatever it adds."""

RETRY_S = 1.0
"""Seconds after which what could not be added is tried again."""

FLUSH_S = 15.0
"""Seconds that a clean end waits for others who have the outbox locked."""


class OutboxWriter:
    """Takes events from any thread and adds them in this order, again and again until it works."""

    def __init__(self, outbox: Outbox) -> None:
        """Begin to wait for events."""
        self._outbox = outbox
        self._waiting: deque[OutboxEvent] = deque(maxlen=KEPT)
        self._changed = threading.Condition()
        self._idle = False
        self._hurry = False
        self._closed = False
        self._failures = 0
        self._thread = threading.Thread(target=self._serve, name="adder", daemon=True)
        self._thread.start()

    def put(self, event: OutboxEvent) -> None:
        """Have an event added soon; returns at once."""
        with self._changed:
            self._waiting.append(event)
            if self._idle:
                self._changed.notify_all()

    def flush(self) -> bool:
        """Wait until everything is added; False when it cannot be for now."""
        with self._changed:
            patience = self._failures + 2  # an attempt that is being made may have begun long ago
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting or self._failures >= patience, FLUSH_S)
            self._hurry = False
            return not self._waiting

    def close(self) -> None:
        """Add what can be added, then end."""
        if not self.flush():
            logger.warning("%d events could not be added to %s", len(self._waiting), self._outbox.path)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(FLUSH_S)

    def _serve(self) -> None:
        failed = False
        while events := self._next(RETRY_S if failed else GATHER_S):
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                self._outbox.add(*events)
            if problems and not failed:
                log_failure(logger, "announcing")(problems[0])
            failed = bool(problems)
            self._settle(events, failed=failed)

    def _next(self, pause_s: float) -> Sequence[OutboxEvent]:
        """What waits, after a pause; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._hurry or self._closed, pause_s)
            self._idle = True
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._idle = False
            return [] if self._closed else list(islice(self._waiting, MAX_EVENTS_PER_TRANSACTION))

    def _settle(self, events: Sequence[OutboxEvent], *, failed: bool) -> None:
        with self._changed:
            self._failures += failed
            for event in () if failed else events:
                if self._waiting and self._waiting[0] is event:  # else it was pushed out meanwhile
                    self._waiting.popleft()
            self._changed.notify_all()
