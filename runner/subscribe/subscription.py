"""Subscription to a bus: one iterator over history and new messages, which survives outages and reports gaps.

A subject that a stream keeps is read from the stream. Other subjects, and streams without read permission, are read by
core subscriptions, which a notice reports. A subscription changes nothing on the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js.api import RetentionPolicy, StreamInfo
from nats.js.errors import APIError, NotFoundError

from runner.bus.connection import NatsConnection
from runner.bus.errors import BusError
from runner.bus.hardened_client import UNADVERTISED_TIMEOUT_S, advertises_jetstream
from runner.bus.streams import BUS_ERRORS, STREAM_NAMES_SUBJECT, stream_info
from runner.errors import RunnerError
from runner.events.subjects import DurableNames, covered_by_any, covers, intersection
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.messages import BusMessage, Notice, Since, SubscriptionItem
from runner.subscribe.stream_reader import API_TIMEOUT_S, POLL_S, Position, StreamReader
from runner.util.display_text import mask, one_line

__all__ = ["BusMessage", "DurableNames", "Notice", "RawMessage", "Since", "Subscription", "SubscriptionItem"]

LOOKUP_INTERVAL_S: Final = 1.0
"""Seconds between two lookups of streams while a subject has none; the second one that finds none reports it."""
REPORT_DELAY_S: Final = 0.4
"""Seconds from the loss of the connection to its notice; a loss that ends in the meantime is one notice."""
MAX_LOOKUP_FAILURES: Final = 2
"""Consecutive unanswered lookups after which the subscription continues without streams."""
FLUSH_TIMEOUT_S: Final = 2

_DELIVERED: Final = "$JS.ACK."
"""Reply subject prefix of a message that a stream delivers to another consumer: a copy, which is ignored."""

_INTERNAL: Final = ("$", "_INBOX.")


class CoreListener:
    """Core subscriptions of one client, without the messages that streams keep."""

    def __init__(self, client: Client, buffer: DedupBuffer) -> None:
        self.patterns: list[str] = []
        self._client = client
        self._buffer = buffer
        self._stream_subjects: list[str] = []
        self._subscriptions: dict[str, NatsSubscription] = {}

    async def listen(self, patterns: list[str], stream_subjects: list[str]) -> None:
        """Subscribe to ``patterns`` and end all other subscriptions; ignore messages on ``stream_subjects``.

        Raises:
            nats.errors.Error, OSError: the bus is not connected.
        """
        self._stream_subjects, self.patterns = stream_subjects, patterns
        for pattern in [known for known in self._subscriptions if known not in patterns]:
            await self._subscriptions.pop(pattern).unsubscribe()
        for pattern in patterns:
            if pattern not in self._subscriptions:
                handle = partial(self._on_message, pattern)
                self._subscriptions[pattern] = await self._client.subscribe(pattern, cb=handle)
        if patterns:  # after the answer, the subscription is active or its denial has arrived
            await self._client.flush(FLUSH_TIMEOUT_S)

    async def _on_message(self, pattern: str, message: Msg) -> None:
        subject = message.subject
        if not pattern.startswith(_INTERNAL) and (
            message.reply.startswith(_DELIVERED) or subject.startswith(_INTERNAL)
        ):
            return
        if covered_by_any(self._stream_subjects, subject):
            return
        if len(self.patterns) > 1 and next((p for p in self.patterns if covers(p, subject)), pattern) != pattern:
            return  # an overlapping pattern delivers it as well
        self._buffer.offer(RawMessage(subject, message.headers or {}, message.data))


class StreamsUnavailable(RunnerError):
    """The bus has no streams, or they cannot be looked up; ``forbidden``: a permission is missing."""

    published_error_type = "no_streams"

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


class _Error(msgspec.Struct):
    description: str = "an error without a description"


class _Names(msgspec.Struct):
    streams: list[str] | None = None
    error: _Error | None = None


async def find_streams(connection: NatsConnection, patterns: Iterable[str]) -> list[StreamInfo]:
    """Return the streams that keep any subject of the patterns.

    Raises:
        StreamsUnavailable: this bus has no streams, or they cannot be looked up.
        nats.errors.Error, OSError: the bus is not connected.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        names.update(dict.fromkeys(await _names(connection, pattern)))
    return [info for name in names if (info := await _info(connection, name)) is not None]


async def _names(connection: NatsConnection, pattern: str) -> list[str]:
    client = connection.client
    advertised = advertises_jetstream(client)
    timeout_s = API_TIMEOUT_S if advertised else UNADVERTISED_TIMEOUT_S
    try:
        request = msgspec.json.encode({"subject": pattern})
        answer = await client.request(STREAM_NAMES_SUBJECT, request, timeout=timeout_s)
        names = msgspec.json.decode(answer.data, type=_Names)
    except nats.errors.NoRespondersError:
        raise StreamsUnavailable("this bus has no streams") from None
    except (ValueError, RecursionError):  # also for invalid UTF-8 and for deep nesting
        raise StreamsUnavailable("this bus gave no valid list of its streams") from None
    except nats.errors.TimeoutError as exc:
        if (denial := _permission_denial(connection, STREAM_NAMES_SUBJECT)) is not None:
            raise denial from None
        if not advertised and connection.connected:  # only a subscriber to ">" got the request
            raise StreamsUnavailable("this bus has no streams") from None
        raise exc from None
    if names.error is not None:
        raise StreamsUnavailable(f"this bus has no streams ({_shown(names.error.description)})")
    return names.streams or []


async def _info(connection: NatsConnection, name: str) -> StreamInfo | None:
    try:
        return await stream_info(connection.client.jetstream(timeout=API_TIMEOUT_S), name)
    except NotFoundError:
        return None
    except APIError as exc:
        raise StreamsUnavailable(f"stream {_shown(name)} cannot be read ({_shown(str(exc.description))})") from None
    except nats.errors.TimeoutError as exc:
        raise _permission_denial(connection, f"$JS.API.STREAM.INFO.{name}") or exc from None


def _shown(text: str) -> str:
    return one_line(mask(text), 120)


def _permission_denial(connection: NatsConnection, subject: str) -> StreamsUnavailable | None:
    # A denied request looks like one without an answer.
    if (error := connection.permission_error(subject)) is not None:
        return StreamsUnavailable(str(error), forbidden=True)
    return None


class Subscription:
    """Messages of some subjects of a bus; use it with ``async with``, and inside that with ``async for``.

    Each event is returned once. A slow subscriber loses nothing that streams keep. Of other messages, at most
    ``capacity`` and ``max_bytes`` are buffered; a notice counts the rest.

    Args:
        connection: connection to the bus; it may be lost at times, and is not closed.
        since: start of the history in each stream.
        buffer: holds the unread messages and decides about their order.
    """

    def __init__(
        self,
        connection: NatsConnection,
        *,
        patterns: Sequence[str],
        since: Since,
        names: DurableNames | None = None,
        capacity: int = 10_000,
        max_bytes: int = 64 << 20,
        buffer: type[DedupBuffer] = DedupBuffer,
        lookup_interval_s: float = LOOKUP_INTERVAL_S,
    ) -> None:
        self._connection = connection
        self._patterns = [p for p in dict.fromkeys(patterns) if not covered_by_any(set(patterns) - {p}, p)]
        self._since = since
        self._lookup_interval_s = lookup_interval_s
        self._subscribed_at = datetime.now(UTC)
        self._buffer = buffer(names or DurableNames(), capacity=capacity, max_bytes=max_bytes)
        self._listener: CoreListener | None = None
        self._readers: dict[str, StreamReader] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._positions: dict[str, Position] = {}
        self._forbidden: set[str] = set()
        self._ended_streams: set[str] = set()
        self._n_lookup_failures = 0
        self._sent_notices: set[str] = set()
        self._uncovered: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch_connection())]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._buffer.end())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _cancel_all([*self._tasks, *self._reading.values()])
        if self._listener is not None:
            with contextlib.suppress(*BUS_ERRORS):
                await self._listener.listen([], [])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SubscriptionItem:
        return (await self.next_batch(1))[0]

    async def next_batch(self, limit: int = 500) -> list[SubscriptionItem]:
        """Wait for at least one item. Raises ``StopAsyncIteration`` when the subscription has ended."""
        items: list[SubscriptionItem] = []
        while not items:
            for each in await self.next_raw(limit):
                if (item := each if isinstance(each, Notice) else self.decode(each)) is not None:
                    items.append(item)
        return items

    async def next_raw(self, limit: int = 500, *, max_bytes: float = math.inf) -> list[RawMessage | Notice]:
        """Return items like ``next_batch``, but undecoded, with duplicates, and no further one after ``max_bytes``."""
        if not await self._buffer.wait_filled():
            for task in self._tasks:
                if task.done():
                    task.result()
            raise StopAsyncIteration
        items: list[RawMessage | Notice] = []
        while len(items) < limit and max_bytes > 0 and (item := self._buffer.pop()) is not None:
            items.append(item)
            max_bytes -= item.size if isinstance(item, RawMessage) else 0
        return items

    def decode(self, message: RawMessage) -> BusMessage | None:
        """Return None when the event id of a message of ``next_raw`` was decoded before."""
        return self._buffer.decode(message)

    async def count_waiting(self) -> int:
        """Return the number of unread messages: buffered ones, and those of all subjects left in the streams.

        Raises:
            nats.errors.Error, OSError: the bus is not connected.
        """
        js, n_left = self._connection.client.jetstream(timeout=API_TIMEOUT_S), 0
        for name, position in list(self._positions.items()):
            if name not in self._forbidden:
                with contextlib.suppress(NotFoundError):  # it was deleted
                    n_left += position.n_left(await stream_info(js, name))
        return n_left + self._buffer.n_waiting

    async def _run(self) -> None:
        """Read on each client of the connection, from the positions at which the one before has ended."""
        while True:
            await self._connection.wait_connected()
            client = self._connection.client
            self._forbidden.clear()
            self._listener = CoreListener(client, self._buffer)
            self._reading = {name: asyncio.create_task(reader.run()) for name, reader in self._readers.items()}
            try:
                while client.is_connected:
                    try:
                        await self._cover_patterns(self._listener)
                    except BUS_ERRORS:
                        await asyncio.sleep(POLL_S)
                    else:
                        await self._until_changed(client, self._listener)
            finally:
                await _cancel_all([*self._reading.values()])

    async def _cover_patterns(self, listener: CoreListener) -> None:
        """Start a reader for each stream that keeps some patterns, and core subscriptions for the rest."""
        streams, reason = await self._find_streams()
        # Reading a work queue would empty it.
        work_queues = [info for info in streams if info.config.retention == RetentionPolicy.WORK_QUEUE]
        self._start_readers([info for info in streams if info not in work_queues])
        kept = [subject for reader in self._readers.values() for subject in reader.subjects]
        uncovered = [pattern for pattern in self._patterns if not covered_by_any(kept, pattern)]
        await listener.listen(uncovered, kept)
        for info in work_queues:
            text = f"stream {info.config.name} is a work queue, and reading would empty it; showing only new messages"
            self._notify_once(Notice(kind="no_history", text=text))
        in_streams = [*kept, *(subject for info in work_queues for subject in info.config.subjects or [])]
        for pattern in uncovered:
            if reason or (pattern in self._uncovered and not covered_by_any(in_streams, pattern)):
                text = f"{pattern}: {reason or _no_history_reason(pattern, in_streams)}"
                self._notify_once(Notice(kind="no_history", text=text))
        self._uncovered = set(uncovered)
        for pattern in self._patterns:
            if (error := self._connection.permission_error(pattern)) is not None:
                self._notify_once(Notice(kind="permission", text=str(error)))

    async def _find_streams(self) -> tuple[list[StreamInfo], str | None]:
        """Return the streams, and why they are unavailable, None when they are available."""
        try:
            streams = await find_streams(self._connection, self._patterns)
        except StreamsUnavailable as exc:
            if exc.forbidden:
                self._notify_once(Notice(kind="permission", text=str(exc)))
            return [], f"{exc}; showing only new messages"
        except BUS_ERRORS:
            self._n_lookup_failures += 1
            if self._n_lookup_failures < MAX_LOOKUP_FAILURES or not self._connection.connected:
                raise
            return [], "this bus does not list its streams; showing only new messages"
        self._n_lookup_failures = 0
        self._report_removed(self._ended_streams - {info.config.name for info in streams})
        return streams, None

    def _start_readers(self, streams: list[StreamInfo]) -> None:
        if not self._positions:
            self._report_future_start([info.state.last_seq for info in streams])
        for info in streams:
            name = info.config.name or ""
            if name in self._readers or name in self._forbidden:
                continue
            self._buffer.add_stream(name, info.state.last_seq)
            position = self._positions.setdefault(name, Position.initial(self._since, info, self._subscribed_at))
            reader = StreamReader(self._connection, info, self._patterns, position, self._buffer)
            self._readers[name], self._reading[name] = reader, asyncio.create_task(reader.run())

    async def _until_changed(self, client: Client, listener: CoreListener) -> None:
        changed = asyncio.create_task(self._connection.wait_changed())
        try:
            if client.is_connected:
                tasks = [changed, *self._reading.values()]
                timeout_s = self._lookup_interval_s if listener.patterns else None
                await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        self._collect_ended_readers()

    def _collect_ended_readers(self) -> None:
        for name, task in [(name, task) for name, task in self._reading.items() if task.done()]:
            del self._readers[name], self._reading[name]
            self._buffer.update_pending(name, 0)
            try:
                task.result()
            except BusError as exc:
                self._forbidden.add(name)
                self._notify_once(Notice(kind="permission", text=f"stream {name} cannot be read: {exc}"))
            else:
                self._ended_streams.add(name)

    def _report_removed(self, names: set[str]) -> None:
        # A restarting server only hides its streams for a moment, so ``names`` has no streams that exist again.
        self._ended_streams.clear()
        for name in sorted(names):
            self._buffer.notify(Notice(kind="removed", text=f"stream {name} was deleted"), name)

    def _report_future_start(self, newest: list[int]) -> None:
        if isinstance(self._since, int) and newest and max(newest) + 1 < self._since:
            text = f"no stream has reached #{self._since}; the highest sequence is #{max(newest)}"
            self._notify_once(Notice(kind="no_history", text=f"{text}; showing new messages"))

    def _notify_once(self, notice: Notice) -> None:
        if notice.text not in self._sent_notices:
            self._sent_notices.add(notice.text)
            self._buffer.notify(notice)

    async def _watch_connection(self) -> None:
        reported, generation = "connected", self._connection.generation
        while True:
            state = self._connection.state
            if state.status == "connected" and (reported != "connected" or generation != self._connection.generation):
                text = self._reconnect_text(loss_reported=reported == "disconnected")
                self._buffer.notify(Notice(kind="reconnected", text=text))
                generation = self._connection.generation
            elif state.status == "stalled" and reported != "stalled":
                self._buffer.notify(Notice(kind="lost_server", text=state.reason or "the server does not answer"))
            elif state.status not in ("connected", "stalled") and reported in ("connected", "stalled"):
                self._buffer.notify(Notice(kind="disconnected", text=state.reason or "not connected"))
            reported = state.status
            await self._connection.wait_changed()
            if reported == "connected":
                await asyncio.sleep(REPORT_DELAY_S)

    def _reconnect_text(self, *, loss_reported: bool) -> str:
        reason = "" if loss_reported or not self._connection.last_loss else f" ({self._connection.last_loss})"
        gap = "; messages that no stream keeps may have been missed" if self._uncovered else ""
        return f"reconnected{reason}{gap}"


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks repeatedly until they end, because ``wait_for`` in nats-py may swallow a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=POLL_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved; it was raised elsewhere


def _no_history_reason(pattern: str, in_streams: list[str]) -> str:
    if any(intersection(pattern, subject) for subject in in_streams):
        return "some messages are in no stream; only new ones of those are shown"
    return "no stream keeps it; showing only new messages"
