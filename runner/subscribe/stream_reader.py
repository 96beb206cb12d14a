"""Reader of one stream: history and new messages by the same pull mechanism, with a cursor of its own.

The cursor is the sequence in the stream. A consumer that fails is replaced by a new one that starts after the cursor.
The consumer's own numbering distinguishes lost deliveries from sequences that the stream no longer has.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import Final, Self

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamInfo
from nats.js.errors import NotFoundError

from runner.bus.connection import NatsConnection
from runner.bus.streams import BUS_ERRORS, checked_reply, has_leader, stream_info
from runner.events.subjects import are_disjoint, covered_by_any, intersections
from runner.subscribe.buffer import DedupBuffer, FetchLimit, RawMessage
from runner.subscribe.messages import Notice, Since
from runner.util.display_text import pluralize

API_TIMEOUT_S: Final = 1.5
POLL_S: Final = 0.1
RETRY_PAUSES_S: Final = (0.1, 0.3, 1.0)
"""Pauses in seconds after consecutive failures; the last pause is repeated."""
MAX_SHORTER: Final = 4
"""How often a stream of a cluster has to look shorter than before until that counts as a loss; a second apart."""
CONSUMER_IDLE_TIMEOUT_S: Final = 30.0
"""Seconds after which the server deletes a consumer without fetch requests."""
FETCH_EXPIRES_S: Final = 15.0
HEARTBEAT_S: Final = 1.0
SILENCE_TIMEOUT_S: Final = 2.05
"""Seconds without messages and heartbeats after which the consumer or its connection counts as failed.

One heartbeat may be lost. Heartbeats are most of what wakes an idle subscriber, so they are no more frequent than this.
"""

_FETCH_ENDED = ("404", "408")
_FETCH_COMPLETED = "batch completed"
_TOO_LARGE = "message size exceeds maxbytes"
_NS_PER_S = 1_000_000_000


class Position(msgspec.Struct):
    """Read position in a stream.

    Attributes:
        created: creation time of the stream, which identifies it.
        cursor: sequence of the last message read, None before the first one.
        start: time to start from while there is no cursor.
        time: when the stream stored the message at ``cursor``; None for a position that no message was read at.
    """

    created: datetime | None
    cursor: int | None = None
    start: datetime | None = None
    time: datetime | None = None

    def move(self, cursor: int) -> None:
        if cursor != self.cursor:
            self.cursor, self.time = cursor, None

    def go_back(self, last: int) -> None:
        """Leave a position that the stream has lost, for the messages stored since then; ``last`` is its end."""
        if self.time is None:
            self.move(last)
        else:
            self.cursor, self.start, self.time = None, self.time + timedelta(microseconds=1), None

    @classmethod
    def initial(cls, since: Since, info: StreamInfo, subscribed_at: datetime) -> Position:
        """The subscription started at ``subscribed_at``."""
        match since:
            case "now" if not has_leader(info):
                return cls(info.created, start=subscribed_at)
            case "now":
                return cls(info.created, info.state.last_seq)
            case "all":
                return cls(info.created, max(info.state.first_seq, 1) - 1)
            case timedelta():
                return cls(info.created, start=subscribed_at - since)
            case int():
                return cls(info.created, min(max(since, 1) - 1, info.state.last_seq))

    def n_left(self, info: StreamInfo) -> int:
        """Return the number of messages after this position; 0 until the server has resolved ``start``."""
        state = info.state
        if self.created != info.created:  # recreated: it is read from its beginning
            return state.messages
        if self.cursor is None:
            return 0
        return min(max(state.last_seq - self.cursor, 0), state.messages)  # purged messages do not count


class PullConsumer:
    """Fills a buffer from a consumer that starts at the cursor of ``position``, which it advances.

    It fetches messages in batches and detects a failed consumer. ``PullSubscription.fetch`` of nats-py reports a
    deleted consumer only after the fetch has expired, limits the number of messages but not their bytes, and takes
    2.8 times the CPU per message.

    Args:
        patterns: selects subjects; [] selects all.

    Attributes:
        gaps: sequences before and after each gap of a consumer with a filter; without a filter they are reported.
        is_lost: whether another message has the sequence of the last one that was read.
    """

    def __init__(
        self, client: Client, stream: str, consumer: str, position: Position, patterns: list[str], buffer: DedupBuffer
    ) -> None:
        self.gaps: list[tuple[int, int]] = []
        self.is_lost = False
        self._client = client
        self._stream = stream
        self._consumer = consumer
        self._position = position
        self._patterns = patterns
        self._buffer = buffer
        self._inbox = client.new_inbox()
        self._subscription: NatsSubscription | None = None
        self._delivered = 0
        self._n_fetches = 0
        self._reply = ""
        self._remaining = 0
        self._is_large = False
        self._has_failed = False
        self._fetch_ended = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._last_message_at = 0.0

    async def __aenter__(self) -> Self:
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_message)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Delete the consumer; without a connection, the server does so after the consumer's idle time-out."""
        self._has_failed = True  # the next consumer reads later messages again, after the cursor
        if self._client.is_connected:
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            await self._client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")

    @property
    def subjects(self) -> tuple[str, str]:
        """Return the subjects that need permissions: publishing to the first, subscribing to the second."""
        return (f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", f"{self._inbox}.*")

    async def fetch(self) -> bool:
        """Fetch one batch into the buffer; returns False when the consumer has failed.

        Raises:
            nats.errors.Error, OSError: the request cannot be sent.
        """
        self._fetch_ended.clear()
        limit = self._fetch_limit()
        self._remaining = limit.count
        self._n_fetches += 1
        self._reply = f"{self._inbox}.{self._n_fetches}"
        self._last_message_at = self._clock()
        request = {
            "batch": limit.count,
            "max_bytes": limit.size,
            "expires": int(FETCH_EXPIRES_S * _NS_PER_S),
            "idle_heartbeat": int(HEARTBEAT_S * _NS_PER_S),
        }
        await self._client.publish(self.subjects[0], msgspec.json.encode(request), reply=self._reply)
        while not self._fetch_ended.is_set():
            try:
                # wait_for may swallow a cancellation
                async with asyncio.timeout_at(self._last_message_at + SILENCE_TIMEOUT_S):
                    await self._fetch_ended.wait()
            except TimeoutError:
                if not self._client.is_connected or self._clock() - self._last_message_at >= SILENCE_TIMEOUT_S:
                    return False
        return not self._has_failed

    def _fetch_limit(self) -> FetchLimit:
        if self._is_large:  # a message that exceeded the last limit is fetched alone
            self._is_large = False
            return FetchLimit(1, 2 * self._client.max_payload)
        return self._buffer.fetch_limit(self._stream)

    async def _on_message(self, message: Msg) -> None:
        self._last_message_at = self._clock()
        if self._has_failed:
            return
        if message.reply.startswith("$JS.ACK."):
            self._store(message)
        elif message.headers and message.subject == self._reply:  # not of an earlier fetch
            self._handle_status(message.headers)

    def _store(self, message: Msg) -> None:
        metadata = message.metadata
        sequence = metadata.sequence.stream
        if metadata.sequence.consumer != self._delivered + 1:
            self._fail()
            return
        self._delivered += 1
        position = self._position
        if sequence == position.cursor:
            self.is_lost = metadata.timestamp != position.time
            self._buffer.update_pending(self._stream, metadata.num_pending)
            if self.is_lost:
                self._fail()
                return
        else:
            self._report_gap(position.cursor or 0, sequence)
            position.cursor, position.time = sequence, metadata.timestamp
            self._put(message, metadata)
        self._remaining -= 1
        if not self._remaining:
            self._fetch_ended.set()

    def _report_gap(self, before: int, sequence: int) -> None:
        if sequence > before + 1 and self._patterns:  # most of the missing ones do not match the filter
            self.gaps.append((before, sequence))
        elif sequence > before + 1:
            self._buffer.notify(removed_unread_notice(self._stream, sequence - before - 1), self._stream)

    def _put(self, message: Msg, metadata: Msg.Metadata) -> None:
        if self._patterns and not covered_by_any(self._patterns, message.subject):
            self._buffer.update_pending(self._stream, metadata.num_pending)
            return
        headers, sequence = message.headers or {}, metadata.sequence.stream
        raw = RawMessage(message.subject, headers, message.data, self._stream, sequence, metadata.timestamp)
        raw.pending = metadata.num_pending
        self._buffer.put(raw)

    def _handle_status(self, headers: dict[str, str]) -> None:
        status, description = headers.get("Status", ""), headers.get("Description", "").lower()
        if status == "100":
            if headers.get("Nats-Last-Consumer", str(self._delivered)) != str(self._delivered):
                self._fail()
        elif status in _FETCH_ENDED or description.startswith((_FETCH_COMPLETED, _TOO_LARGE)):
            self._is_large = description.startswith(_TOO_LARGE)
            self._fetch_ended.set()
        else:
            self._fail()

    def _fail(self) -> None:
        self._has_failed = True
        self._fetch_ended.set()


def removed_unread_notice(stream: str, count: int, *, at_most: bool = False) -> Notice:
    number = f"{'up to ' * at_most}{pluralize(count, 'message')}"
    text = f"{number} missed: the stream {stream} had dropped them, for its size or their age"
    return Notice(kind="gap", text=text, count=count)


class StreamReader:
    """Reads a stream, and advances ``position`` for a later reader of the same stream."""

    def __init__(
        self, connection: NatsConnection, info: StreamInfo, patterns: list[str], position: Position, buffer: DedupBuffer
    ) -> None:
        self._stream = info.config.name or ""
        self.subjects = list(info.config.subjects or [])
        self._connection = connection
        self._position = position
        self._buffer = buffer
        self._is_silent = False
        self._n_shorter = 0
        is_unfiltered = all(covered_by_any(patterns, subject) for subject in self.subjects)
        self._patterns = [] if is_unfiltered else intersections(patterns, self.subjects)

    async def run(self) -> None:
        """Read until the stream is deleted; raises ``BusError`` if the permission to read it is missing.

        Cancel it when the connection is lost; another reader goes on from ``position``.
        """
        failures = 0
        while True:
            try:
                progress = await self._read()
            except NotFoundError:
                return
            except BUS_ERRORS:
                progress = False
            self._check_allowed(f"$JS.API.STREAM.INFO.{self._stream}", f"$JS.API.CONSUMER.CREATE.{self._stream}")
            failures = 0 if progress else min(failures + 1, len(RETRY_PAUSES_S))
            self._report_silence(failures)
            await asyncio.sleep(RETRY_PAUSES_S[max(failures - 1, 0)])

    def _report_silence(self, failures: int) -> None:
        is_silent = failures == len(RETRY_PAUSES_S) and self._connection.connected
        if is_silent and not self._is_silent:
            self._notify(Notice(kind="lost_server", text=f"stream {self._stream} does not answer"))
        self._is_silent = is_silent

    async def _read(self) -> bool:
        """Return whether the consumer delivered messages."""
        client, position = self._connection.client, self._position
        js = client.jetstream(timeout=API_TIMEOUT_S)
        info = await stream_info(js, self._stream)
        if self._may_catch_up(info):
            return False
        self._compare(info)
        name, before, pending = await checked_reply(self._add_consumer(js))
        if self._patterns and not pending:  # no existing message matches the filter
            before = max(before, info.state.last_seq)
        position.move(before)
        self._buffer.update_pending(self._stream, pending)
        async with PullConsumer(client, self._stream, name, position, self._patterns, self._buffer) as consumer:
            while await consumer.fetch():
                await self._report_removed(js, consumer)
                await self._buffer.wait_for_space(self._stream)
            self._check_allowed(*consumer.subjects)
        if consumer.is_lost:
            text = f"stream {self._stream} lost messages, and others have their numbers; reading those"
            self._notify(Notice(kind="gap", text=text))
            position.go_back(before)
            return True
        return (position.cursor or 0) > before

    async def _add_consumer(self, js: JetStreamContext) -> tuple[str, int, int]:
        # Returns the name, the sequence it starts after, and the number of messages after it.
        info = await js.add_consumer(self._stream, self._consumer_config())
        start = info.delivered.stream_seq if info.delivered else 0
        cursor = start if self._position.cursor is None else self._position.cursor
        return msgspec.convert((info.name, cursor, info.num_pending or 0), tuple[str, int, int])

    def _consumer_config(self) -> ConsumerConfig:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=CONSUMER_IDLE_TIMEOUT_S,
            mem_storage=True,
            num_replicas=1,
        )
        if self._position.cursor is None:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = self._position.start
        else:
            # The last message that was read comes again, which shows whether the stream still has it.
            config.opt_start_seq = self._position.cursor + (self._position.time is None)
        if are_disjoint(self._patterns):  # the server rejects overlapping filters; then the client filters
            config.filter_subjects = self._patterns or None
        return config

    def _may_catch_up(self, info: StreamInfo) -> bool:
        """Return whether a stream that looks shorter is read again: a new leader of a cluster may still be loading."""
        if not has_leader(info):
            return True
        is_shorter = info.cluster is not None and (self._position.cursor or 0) > info.state.last_seq
        self._n_shorter = self._n_shorter + 1 if is_shorter and self._position.created == info.created else 0
        return 0 < self._n_shorter <= MAX_SHORTER

    def _compare(self, info: StreamInfo) -> None:
        position, state = self._position, info.state
        cursor, first = position.cursor, max(state.first_seq, 1)
        if position.created != info.created:
            text = f"the stream {self._stream} was deleted and made again; it is shown from its new beginning"
            if info.config.storage != StorageType.MEMORY:  # which each start of a broker makes again
                self._notify(Notice(kind="recreated", text=text))
            position.created = info.created
            position.move(first - 1)
        elif cursor is not None and cursor > state.last_seq:
            lost = cursor - state.last_seq
            self._notify(Notice(kind="gap", text=f"stream {self._stream} lost its newest {lost} messages"))
            position.go_back(state.last_seq)
        elif cursor is not None and first > cursor + 1:
            self._notify(removed_unread_notice(self._stream, first - cursor - 1, at_most=bool(self._patterns)))
            position.move(first - 1)

    async def _report_removed(self, js: JetStreamContext, consumer: PullConsumer) -> None:
        """Report missing sequences that the stream has removed; other missing sequences did not match the filter."""
        gaps = consumer.gaps[:]
        consumer.gaps.clear()
        if not gaps:
            return
        with contextlib.suppress(*BUS_ERRORS):
            first = (await stream_info(js, self._stream)).state.first_seq
            if count := sum(max(min(after, first) - before - 1, 0) for before, after in gaps):
                self._notify(removed_unread_notice(self._stream, count, at_most=True))

    def _notify(self, notice: Notice) -> None:
        self._buffer.notify(notice, self._stream)

    def _check_allowed(self, *subjects: str) -> None:
        for subject in subjects:
            if (error := self._connection.permission_error(subject)) is not None:
                raise error
