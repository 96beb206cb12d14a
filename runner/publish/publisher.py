"""Publisher: delivers every durable event of a state directory to every sink, across all outages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from nats.aio.client import Client

from runner.bus.backoff import Backoff, SubjectBackoff
from runner.bus.errors import error_text
from runner.bus.streams import BUS_ERRORS
from runner.errors import StoreError
from runner.events.subjects import DURABLE
from runner.publish.delivery import (
    DEFAULT_DELIVERY,
    DeliveryOptions,
    DeliveryResult,
    PermanentFailure,
    StreamRoutes,
    TransientFailure,
    deliver,
    is_cancelled,
)
from runner.publish.outbox import LOCAL, Ack, DeadLetter, Outbox, OutboxEvent
from runner.publish.sink import OnState, Sink, SinkConnection, SinkState, sink_key, sink_lock_path
from runner.util.files import file_lock
from runner.util.sqlite import FileState

__all__ = ["Publisher", "Sink", "SinkState"]

logger = logging.getLogger(__name__)

MAINTENANCE_INTERVAL_S = 60.0
DRAINED_POLL_S = 0.02
MAX_TRIED_AFTER_FAILURE = 16
"""Number of events of a subject that are sent after a failure; its other events wait until one of them succeeds."""
REFRESH_S = 60.0
"""Seconds after which the streams are looked up again even without failures."""
CONNECTION_LOST = "the connection was lost"
LOCK_POLL_S = 1.0
"""Seconds between two attempts to get the lock of a sink that another process holds."""
MAX_BACKOFF_S = 10.0
MIN_INTERVAL_S = 0.1
"""Minimum seconds between two reads of the outbox, so that single events share a transaction."""


class OutboxDrain:
    """Sends the outbox to one sink. Only one process at a time drains a sink; others wait for the lock.

    ``added`` must be set when the outbox may have new events. The streams of ``subjects`` are looked up even without
    pending events.
    """

    def __init__(
        self,
        sink_connection: SinkConnection,
        outbox: Outbox,
        subjects: Sequence[str],
        options: DeliveryOptions = DEFAULT_DELIVERY,
    ) -> None:
        self.added = asyncio.Event()
        self._sink_connection = sink_connection
        self._outbox = outbox
        self._subjects = subjects
        self._options = options
        self._unmarked: defaultdict[str, dict[str, DeliveryResult]] = defaultdict(dict)
        """By sink, results that could not be written yet; their events are pending and must not be sent again."""

    async def run(self) -> None:
        """Drain until cancelled; holds the lock only while connected."""
        while True:
            if (client := self._sink_connection.client) is None:
                await self._sink_connection.wait_changed()
                continue
            if (key := sink_key(self._sink_connection.sink)) is not None:
                with file_lock(sink_lock_path(self._outbox.data_dir, key), create=True) as has_lock:
                    if has_lock:
                        await self._drain(self._new_sender(client, key))
                        continue
            await asyncio.sleep(LOCK_POLL_S)  # another process drains this sink

    def _new_sender(self, client: Client, key: str) -> _OutboxSender:
        routes = StreamRoutes(self._sink_connection, self._outbox, self._subjects, key, self._options)
        unmarked = self._unmarked[key]
        return _OutboxSender(self._sink_connection, client, self._outbox, routes, key, self._options, unmarked)

    async def _drain(self, sender: _OutboxSender) -> None:
        """Drain until the connection is lost; then the sink may have moved, or another process may take over."""
        backoff, failed = Backoff(MAX_BACKOFF_S), False
        loop = asyncio.get_running_loop()
        looked_up_at, n_connects = loop.time(), self._sink_connection.n_connects
        while sender.connected:
            if n_connects != self._sink_connection.n_connects:
                n_connects = self._sink_connection.n_connects
                sender.backoff.clear()
                sender.is_prepared, sender.refusal = False, None
                failed = True
            if failed or loop.time() - looked_up_at > REFRESH_S:
                sender.routes.forget()
                looked_up_at = loop.time()
            state = self._outbox.file_state()
            cause = await sender.send_pending()
            if is_cancelled():  # nats-py swallows a cancellation that coincides with an answer
                raise asyncio.CancelledError
            failed = cause is not None
            self._report(cause or sender.backoff.cause or sender.refusal)
            if cause is None:
                backoff.reset()
                drained_at = loop.time()
                await _wait(self.added.wait(), self._options.poll_s)
                while (
                    not self.added.is_set()
                    and n_connects == self._sink_connection.n_connects
                    and loop.time() - looked_up_at < REFRESH_S
                    and sender.is_up_to_date(state)
                ):
                    await _wait(self.added.wait(), self._options.poll_s)
                await asyncio.sleep(drained_at + MIN_INTERVAL_S - loop.time())
                self.added.clear()
            elif n_connects == self._sink_connection.n_connects:
                await _wait(self._sink_connection.wait_changed(), backoff.next())

    def _report(self, cause: str | None) -> None:
        if self._sink_connection.client is not None:
            self._sink_connection.report("up" if cause is None else "stalled", cause)


class _OutboxSender(msgspec.Struct):
    """Sends the pending events of one sink through one client, whose address never changes.

    ``key`` is that of the sink in the outbox, see ``sink_key``.
    ``refusal`` is the first reason why the sink has refused every event since it accepted one, or None.
    """

    sink_connection: SinkConnection
    client: Client
    outbox: Outbox
    routes: StreamRoutes
    key: str
    options: DeliveryOptions
    unmarked: dict[str, DeliveryResult]
    backoff: SubjectBackoff = msgspec.field(default_factory=partial(SubjectBackoff, MAX_BACKOFF_S))
    is_prepared: bool = False
    refusal: str | None = None

    @property
    def connected(self) -> bool:
        return self.sink_connection.client is self.client

    def is_up_to_date(self, state: FileState) -> bool:
        """Whether everything was sent that the index had with these files, and nothing waits in this process."""
        waits = self.unmarked or self.backoff.cause is not None or self.outbox.n_unwritten
        return self.connected and not waits and self.outbox.file_state() == state

    async def send_pending(self) -> str | None:
        """Send pending events; return why sending stopped, None when only events on paused subjects are left."""
        try:
            if not self.is_prepared:
                await asyncio.to_thread(self.outbox.register_sinks, self.key)
                await asyncio.to_thread(self.outbox.retry_refused, self.key)
                self.is_prepared = True
            while True:
                if self.unmarked:
                    await asyncio.to_thread(self._mark)
                if self.backoff.resume_due():
                    self.routes.forget()
                without = self.backoff.subjects
                events = await asyncio.to_thread(
                    self.outbox.pending, self.key, self.options.batch_size, without=without
                )
                if not self.connected:
                    return CONNECTION_LOST
                await self.routes.learn(self.client, {event.subject for event in events})
                if events and not await self._send(events):
                    return CONNECTION_LOST
                if len(events) < self.options.max_in_flight:
                    return None
        except BUS_ERRORS as exc:
            return error_text(exc)
        except StoreError as exc:
            return str(exc)

    async def _send(self, events: Sequence[OutboxEvent]) -> bool:
        """Deliver one batch and pause the subjects that fail; returns False when the connection was lost."""
        remaining = iter(events)
        results: dict[str, DeliveryResult] = {}
        causes: dict[str, str] = {}
        tried: Counter[str] = Counter()

        async def deliver_remaining() -> None:
            for event in remaining:
                subject = event.subject
                tried[subject] += 1
                if subject in causes or (tried[subject] > MAX_TRIED_AFTER_FAILURE and self.backoff.has_failed(subject)):
                    continue
                results[event.id] = result = await self._deliver(event)
                if isinstance(result, TransientFailure):
                    causes[subject] = result.cause
                elif subject not in causes:
                    self.backoff.record_success(subject)

        deliveries = asyncio.gather(*(deliver_remaining() for _ in range(min(self.options.max_in_flight, len(events)))))
        lost = asyncio.create_task(self._wait_lost())
        lost.add_done_callback(lambda task: None if task.cancelled() else deliveries.cancel())
        connected = True
        try:
            await deliveries
        except asyncio.CancelledError:
            if is_cancelled():
                self.unmarked.update(results)
                with contextlib.suppress(StoreError):
                    self._mark()
                raise
            connected = False
        finally:
            lost.cancel()
        for subject, cause in causes.items():
            self.backoff.pause(subject, cause)
        if results:
            refusals = [result.reason for result in results.values() if isinstance(result, PermanentFailure)]
            first = self.refusal or f"it refuses events: {refusals[0]}" if refusals else None
            self.refusal = first if len(refusals) == len(results) else None
        self.unmarked.update(results)
        await asyncio.to_thread(self._mark)
        return connected

    async def _wait_lost(self) -> None:
        while self.connected:
            await self.sink_connection.wait_changed()

    async def _deliver(self, event: OutboxEvent) -> DeliveryResult:
        if (denial := self.sink_connection.publish_denial(event.subject)) is not None:
            return PermanentFailure(denial)
        answer = await deliver(self.client, event, self.routes.route_of(event.subject), self.options)
        result = self.routes.checked(event.subject, answer)
        # The server reports a denied subject separately: the delivery itself looks like a time-out, or like a success
        # when no stream acknowledges it.
        if (denial := self.sink_connection.publish_denial(event.subject)) is not None and getattr(
            result, "seq", None
        ) is None:
            return PermanentFailure(denial)
        return result

    def _mark(self) -> None:
        acks = [result for result in self.unmarked.values() if isinstance(result, Ack)]
        if acks:
            self.outbox.ack(self.key, acks)
        for event_id, result in self.unmarked.items():
            if isinstance(result, PermanentFailure):
                self.outbox.mark_dead(self.key, event_id, result.reason)
        self.unmarked.clear()


async def _wait(change: Coroutine[Any, Any, object], timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await change


class Publisher:
    """Delivers events to all sinks, whose names differ, concurrently; an outage of one does not affect the others.

    An event is delivered when the stream that keeps its subject has acknowledged it. When no stream keeps the subject
    (the broker has no JetStream, or its streams have other subjects), it is delivered when the server has processed it;
    then only current subscribers get it.

    Attributes:
        n_held: number of events that are earlier than their sink, as of the last ``register_sinks``.
    """

    def __init__(
        self,
        outbox: Outbox,
        sinks: Sequence[Sink],
        on_state: OnState | None = None,
        *,
        subjects: Iterable[str] = DURABLE,
        name: str = "agentgym-runner",
        options: DeliveryOptions = DEFAULT_DELIVERY,
    ) -> None:
        self._outbox = outbox
        self._on_state = on_state
        self.n_held = 0
        self.sink_connections = [SinkConnection(sink, client_name=name, on_state=self._on_sink_state) for sink in sinks]
        durable = tuple(subjects)
        self._drains = [OutboxDrain(each, outbox, durable, options) for each in self.sink_connections]

    @property
    def states(self) -> list[SinkState]:
        return [sink_connection.state for sink_connection in self.sink_connections]

    def register_sinks(self) -> None:
        """Note the addresses of the sinks: a new one gets what ends from now on."""
        try:
            self._outbox.register_sinks(*(keys := self._sink_keys()))
            self.n_held = self._outbox.n_held(*keys)
        except StoreError as exc:
            logger.warning("the brokers cannot be noted in the outbox now, but later: %s", exc)

    def send_earlier(self) -> int | None:
        """Send what is earlier than its sink and return the number of events; None if no sink is external.

        Raises ``StoreError`` if the outbox cannot be used.
        """
        if not (keys := [key for key in self._sink_keys() if key != LOCAL]):
            return None
        self._outbox.register_sinks(*self._sink_keys())
        n, self.n_held = self._outbox.send_earlier(*keys), 0
        return n  # the drains see it within ``poll_s``

    async def run(self) -> None:
        self._outbox.on_add(partial(self._on_add, asyncio.get_running_loop()))
        try:
            async with asyncio.TaskGroup() as tasks:
                for sink_connection, drain in zip(self.sink_connections, self._drains, strict=True):
                    tasks.create_task(sink_connection.run())
                    tasks.create_task(drain.run())
                tasks.create_task(self._maintain_outbox())
        finally:
            self._outbox.on_add(None)

    async def wait_until_drained(self, timeout_s: float, *, stall_timeout_s: float = math.inf) -> bool:
        """Wait until no event is pending for a reachable sink; returns whether that happened.

        Ignored are sinks without an address, and sinks to which every attempt to connect has failed; their events stay
        in the outbox. Waiting also stops after ``stall_timeout_s`` seconds without any delivery.
        """
        clock = asyncio.get_running_loop().time
        fewest, progress_at = math.inf, clock()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._outbox.register_sinks, *self._sink_keys())
                while n := await asyncio.to_thread(
                    self._outbox.n_pending, _keys(each for each in self.sink_connections if not each.is_unreachable)
                ):
                    if n < fewest:
                        fewest, progress_at = n, clock()
                    elif clock() - progress_at > stall_timeout_s:
                        return False
                    await asyncio.sleep(DRAINED_POLL_S)  # another process may be draining
        except TimeoutError:
            return False
        except StoreError as exc:
            logger.warning("the outbox cannot be used; its events wait for the next start: %s", exc)
            return False
        return True

    async def refused_since(self, start: datetime) -> list[DeadLetter]:
        """Return the events that a sink has refused for good since then."""
        letters = await asyncio.to_thread(self._outbox.dead_letters)
        return [letter for letter in letters if letter.at >= start and letter.sink in self._sink_keys()]

    async def n_undelivered(self) -> int:
        """Return the largest number of pending events of a sink, without the own broker while it is unreachable."""
        counted = [each for each in self.sink_connections if each.sink.name != LOCAL or not each.is_unreachable]
        return max([await asyncio.to_thread(self._outbox.n_pending, [key]) for key in _keys(counted)], default=0)

    def _sink_keys(self) -> list[str]:
        return _keys(self.sink_connections)

    def _on_add(self, loop: asyncio.AbstractEventLoop) -> None:
        if not all(drain.added.is_set() for drain in self._drains):  # otherwise they are about to read it
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for drain in self._drains:
            drain.added.set()

    def _on_sink_state(self, state: SinkState) -> None:
        level = logging.INFO if state.cause is None else logging.WARNING
        logger.log(level, "%s", state.text)
        if self._on_state is not None:
            self._on_state(state)

    async def _maintain_outbox(self) -> None:
        while True:
            await asyncio.to_thread(self.register_sinks)
            try:
                await asyncio.to_thread(self._outbox.prune)
            except StoreError as exc:
                logger.warning("the maintenance of the outbox failed: %s", exc)
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)


def _keys(connections: Iterable[SinkConnection]) -> list[str]:
    return [key for each in connections if (key := sink_key(each.sink)) is not None]
