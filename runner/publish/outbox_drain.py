"""Takes what waits in the outbox for one sink there, batch by batch, until nothing waits any more."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nats.aio.client import Client

from runner.bus.backoff import Backoff, SubjectBackoff
from runner.errors import StoreError
from runner.publish.delivery import (
    TRANSPORT_ERRORS,
    DeliveryResult,
    PermanentFailure,
    TransientFailure,
    deliver,
    is_cancelled,
    shown,
)
from runner.publish.outbox import Ack, Outbox, OutboxEvent
from runner.publish.sink import SinkConnection, sink_key, sink_lock_path
from runner.publish.stream_routes import StreamRoutes

BATCH = 1000
"""Events read, sent and marked at once."""

IN_FLIGHT = 256
"""Events sent and not yet acknowledged."""

N_TRIED = 16
"""Events of a subject that are tried at once after it did not work: where it still does not, others wait for that."""

POLL_S = 0.5
"""Seconds between two looks into the outbox: other processes add to it, too."""

REFRESH_S = 60.0
"""Seconds after which the streams are looked up again even if all goes well."""

LOST = "the connection was lost"
STAND_BY_S = 1.0
LONGEST_PAUSE_S = 10.0
GATHER_S = 0.25
"""Seconds from one look into the outbox to the next at least: events that come one by one share it, and its marks."""


class OutboxDrain:
    """Empties the outbox into one sink; of several processes one at a time, the others stand by.

    Attributes:
        added: set it when there may be something new.
    """

    def __init__(self, sink_connection: SinkConnection, outbox: Outbox, subjects: Sequence[str]) -> None:
        """Not at work before ``run``; ``subjects`` are looked up even while nothing waits for them."""
        self.added = asyncio.Event()
        self._sink_connection = sink_connection
        self._outbox = outbox
        self._subjects = subjects

    async def run(self) -> None:
        """Empty the outbox again and again until cancelled; the lock is held only while there is a connection."""
        while True:
            await self._sink_connection.up.wait()
            place, client = sink_key(self._sink_connection.sink), self._sink_connection.client
            if place is not None and client is not None:
                with _locked(sink_lock_path(self._outbox.path, place)) as ours:
                    if ours:
                        routes = StreamRoutes(self._sink_connection, self._outbox, self._subjects, place)
                        await self._work(_OutboxSender(self._sink_connection, client, self._outbox, routes, place))
                        continue
            await asyncio.sleep(STAND_BY_S)  # another process is at it

    async def _work(self, courier: _OutboxSender) -> None:
        """Empty the outbox until the connection is lost: another process may have one, or the sink be elsewhere."""
        pauses, failed = Backoff(LONGEST_PAUSE_S), False
        loop = asyncio.get_running_loop()
        looked_up = loop.time()
        while courier.connected:
            if self._sink_connection.reconnected.is_set():
                self._sink_connection.reconnected.clear()
                courier.held.clear()
                failed = True
            if failed or loop.time() - looked_up > REFRESH_S:
                courier.routes.forget()
                looked_up = loop.time()
            cause = await courier.empty()
            if is_cancelled():  # the client swallows that when its answer comes at the same time
                raise asyncio.CancelledError
            failed = cause is not None
            self._tell(cause or courier.held.cause)
            if cause is None:
                pauses.reset()
                emptied = loop.time()
                await _wait(self.added, POLL_S)
                await asyncio.sleep(emptied + GATHER_S - loop.time())
                self.added.clear()
            else:
                await _wait(self._sink_connection.reconnected, pauses.next())

    def _tell(self, cause: str | None) -> None:
        if self._sink_connection.up.is_set():
            self._sink_connection.report("up" if cause is None else "stalled", cause)


class _OutboxSender:
    """Brings what waits for one place there, by one client: that never goes to another address."""

    def __init__(
        self, sink_connection: SinkConnection, client: Client, outbox: Outbox, routes: StreamRoutes, place: str
    ) -> None:
        self.routes = routes
        self.held = SubjectBackoff(LONGEST_PAUSE_S)
        self._sink_connection = sink_connection
        self._client = client
        self._outbox = outbox
        self._place = place
        self._registered = False

    @property
    def connected(self) -> bool:
        return self._sink_connection.client is self._client

    async def empty(self) -> str | None:
        """Send what waits; returns why it had to stop, None when nothing is left but what comes in or is held."""
        try:
            if not self._registered:
                await asyncio.to_thread(self._outbox.register_sinks, self._place)
                self._registered = True
            while True:
                if self.held.release():
                    self.routes.forget()
                without = self.held.subjects
                events = await asyncio.to_thread(self._outbox.pending, self._place, BATCH, without=without)
                if not self.connected:
                    return LOST
                await self.routes.learn(self._client, {event.subject for event in events})
                if events and not await self._send(events):
                    return LOST
                if len(events) < IN_FLIGHT:
                    return None
        except TRANSPORT_ERRORS as exc:
            return shown(exc)
        except StoreError as exc:
            return str(exc)

    async def _send(self, events: Sequence[OutboxEvent]) -> bool:
        """Deliver one batch, but for subjects where that fails: they are held; returns False without a connection."""
        waiting = iter(events)
        verdicts: dict[str, DeliveryResult] = {}
        causes: dict[str, str] = {}
        tried: Counter[str] = Counter()

        async def one_after_the_other() -> None:
            for event in waiting:
                subject = event.subject
                tried[subject] += 1
                if subject in causes or (tried[subject] > N_TRIED and self.held.doubted(subject)):
                    continue
                verdicts[event.id] = verdict = await self._deliver(event)
                if isinstance(verdict, TransientFailure):
                    causes[subject] = verdict.cause
                elif subject not in causes:
                    self.held.settle(subject)

        whole = asyncio.gather(*(one_after_the_other() for _ in range(min(IN_FLIGHT, len(events)))))
        lost = asyncio.create_task(self._sink_connection.down.wait())
        lost.add_done_callback(lambda task: None if task.cancelled() else whole.cancel())
        connected = True
        try:
            await whole
        except asyncio.CancelledError:
            if is_cancelled():
                with contextlib.suppress(StoreError):
                    self._note(verdicts)
                raise
            connected = False
        finally:
            lost.cancel()
        for subject, cause in causes.items():
            self.held.hold(subject, cause)
        await asyncio.to_thread(self._note, verdicts)
        return connected

    async def _deliver(self, event: OutboxEvent) -> DeliveryResult:
        if (refusal := self._sink_connection.publish_refusal(event.subject)) is not None:
            return PermanentFailure(refusal)
        verdict = await deliver(self._client, event, self.routes.of(event.subject))
        # A refusal comes beside the answer: what is refused looks like a time-out, or like a success where nothing
        # acknowledges.
        if (refusal := self._sink_connection.publish_refusal(event.subject)) is not None and getattr(
            verdict, "seq", None
        ) is None:
            return PermanentFailure(refusal)
        return verdict

    def _note(self, verdicts: dict[str, DeliveryResult]) -> None:
        acks = [verdict for verdict in verdicts.values() if isinstance(verdict, Ack)]
        if acks:
            self._outbox.ack(self._place, acks)
        for event_id, verdict in verdicts.items():
            if isinstance(verdict, PermanentFailure):
                self._outbox.mark_dead(self._place, event_id, verdict.reason)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the lock is ours; if so until the end of the block."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        yield _taken(descriptor)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
