"""Bounded buffer between the bus and a subscription, with the raw messages and fetch limits of its readers.

``DedupBuffer`` keeps the order, decodes messages only when they are read, and returns each event id once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

from runner.events.codec import Decoded, DurableRow, decode, derived_id, message_id
from runner.events.durable import EpisodeCompleted
from runner.events.subjects import DurableNames
from runner.subscribe.messages import BusMessage, Notice
from runner.util.clock import EPOCH, digest_ulid

MAX_IDS_REMEMBERED = 100_000
MAX_CORE_REMEMBERED = 1_000
"""Maximum number of messages of core subscriptions remembered, because a stream found later may repeat them."""


class RawMessage(msgspec.Struct, gc=False):
    """Received message before decoding; ``pending`` is the number of later messages in its stream at delivery."""

    subject: str
    headers: dict[str, str]
    payload: bytes
    stream: str | None = None
    sequence: int | None = None
    time: datetime | None = None
    pending: int = 0

    @property
    def size(self) -> int:
        """Approximate memory size in bytes."""
        headers = sum(len(name) + len(value) for name, value in self.headers.items()) if self.headers else 0
        return len(self.payload) + headers + 200


class FetchLimit(msgspec.Struct, frozen=True):
    """Limits of one fetch request to a stream: messages, and their total bytes."""

    count: int
    size: int


MAX_FETCH: Final = FetchLimit(500, 8 << 20)
MIN_FETCH: Final = FetchLimit(20, 64 << 10)
"""``MAX_FETCH``: limit of the fetches of all readers together. ``MIN_FETCH``: smallest limit of a single reader.

A subscriber to ``>`` receives every delivery a second time, and nats-server disconnects a client with 64 MiB pending.
"""


class DedupBuffer:
    """Unread messages and notices of a subscription: ``capacity`` messages of ``max_bytes`` in total.

    The reader of a stream adds messages with ``put``, and calls ``wait_for_space`` before it fetches more. Messages
    without a stream are added with ``offer``, which drops and counts them when the buffer is full.
    """

    def __init__(
        self,
        names: DurableNames,
        *,
        capacity: int = 10_000,
        max_bytes: int = 64 << 20,
        max_ids: int = MAX_IDS_REMEMBERED,
    ) -> None:
        self._names = names
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._max_ids = max_ids
        self._items: deque[RawMessage | Notice] = deque()
        self._bytes = 0
        self._skipped = 0
        self._ended = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._ids: OrderedDict[int, None] = OrderedDict()
        self._core_deliveries: OrderedDict[int, int] = OrderedDict()
        self._stream_ends: dict[str, int] = {}

    @property
    def n_waiting(self) -> int:
        return sum(isinstance(item, RawMessage) for item in self._items)

    def notify(self, notice: Notice, stream: str | None = None) -> None:
        self._report_skipped()
        self._append(notice)

    def add_stream(self, stream: str, last: int) -> None:
        """Register a stream, whose messages up to sequence ``last`` may have arrived by a core subscription."""
        self._stream_ends[stream] = last

    def update_pending(self, stream: str, pending: int) -> None:
        """Take notice of the number of messages that a stream has left, which matters only where streams are merged."""

    def put(self, message: RawMessage) -> None:
        """Add a message of a stream, even beyond the limits, unless a core subscription delivered it before."""
        if message.stream is not None and self._was_delivered_by_core(message):
            return
        self._report_skipped()
        self._bytes += message.size
        self._append(message)

    def offer(self, message: RawMessage) -> None:
        """Add a message without a stream, or count it as skipped when the buffer is full."""
        if self._is_full(1.0):
            self._skipped += 1
        else:
            content = _content(message)
            self._core_deliveries[content] = self._core_deliveries.get(content, 0) + 1
            if len(self._core_deliveries) > MAX_CORE_REMEMBERED:
                self._core_deliveries.popitem(last=False)
            self.put(message)

    def fetch_limit(self, stream: str) -> FetchLimit:
        """Return the limits of the next fetch of a stream's reader, which starts while the buffer is half full."""
        size = min(MAX_FETCH.size, self._max_bytes // 2) // max(len(self._stream_ends), 1)
        return FetchLimit(MAX_FETCH.count, max(size, MIN_FETCH.size))

    async def wait_for_space(self, stream: str) -> None:
        """Wait until a stream's reader may fetch more: until the buffer is at most half full."""
        while self._is_full(0.5):
            self._emptied.clear()
            await self._emptied.wait()

    def end(self) -> None:
        """No more messages will be added."""
        self._ended = True
        self._filled.set()

    async def wait_filled(self) -> bool:
        """Return False at the end."""
        while True:
            if not self._items:
                self._report_skipped()
            if self._items or self._ended:
                return bool(self._items)
            self._filled.clear()
            await self._filled.wait()

    def pop(self) -> RawMessage | Notice | None:
        """Return the next item, undecoded and possibly a duplicate; None when there is none."""
        if not self._items:
            return None
        item = self._items.popleft()
        if isinstance(item, RawMessage):
            self._bytes -= item.size
        if not self._emptied.is_set() and not self._is_full(0.5):
            self._emptied.set()
        return item

    def decode(self, message: RawMessage) -> BusMessage | None:
        """Return None when the event id of the message was decoded before."""
        source, event_id = message.headers.get("ce-source", ""), message_id(message.headers)
        if source and event_id and self._is_known(source, event_id):  # a known duplicate needs no decoding
            return None
        decoded = _identify(decode(message.subject, message.headers, message.payload, self._names), message)
        if isinstance(decoded, DurableRow):
            source, event_id = source or decoded.event.node or "", decoded.id
        else:
            event_id = ""  # an undecodable message must not hide a valid one
        if event_id:
            if self._is_known(source, event_id):
                return None
            self._ids[_key(source, event_id)] = None
            if len(self._ids) > self._max_ids:
                self._ids.popitem(last=False)
        return BusMessage(
            subject=message.subject,
            stream=message.stream,
            sequence=message.sequence,
            time=message.time,
            headers=message.headers,
            decoded=decoded,
        )

    def _append(self, item: RawMessage | Notice) -> None:
        self._items.append(item)
        self._filled.set()

    def _is_full(self, share: float) -> bool:
        return len(self._items) >= self._capacity * share or self._bytes >= self._max_bytes * share

    def _was_delivered_by_core(self, message: RawMessage) -> bool:
        if not self._core_deliveries or (message.sequence or 0) > self._stream_ends.get(message.stream or "", 0):
            return False
        content = _content(message)
        n_times = self._core_deliveries.get(content, 0)
        if n_times > 1:
            self._core_deliveries[content] = n_times - 1
        elif n_times:
            del self._core_deliveries[content]
        return n_times > 0

    def _report_skipped(self) -> None:
        if self._skipped:
            count, self._skipped = self._skipped, 0
            self._append(Notice(kind="skipped", text=f"too slow: {count} messages were skipped", count=count))

    def _is_known(self, source: str, event_id: str) -> bool:
        is_known = (key := _key(source, event_id)) in self._ids
        if is_known:
            self._ids.move_to_end(key)
        return is_known


def _identify(row: Decoded, message: RawMessage) -> Decoded:
    """Give an episode without an id one that is the same each time its message is read from a stream."""
    if not isinstance(row, DurableRow) or not isinstance(row.event, EpisodeCompleted) or row.event.episode_id:
        return row
    position = f"{message.stream}:{message.sequence}".encode()
    at = message.time or datetime.now(UTC)
    milliseconds = max((at - EPOCH) // timedelta(milliseconds=1), 0)
    digest = sha256(position if message.stream else message.payload + at.isoformat().encode()).digest()[:10]
    event = msgspec.structs.replace(row.event, episode_id=digest_ulid(milliseconds, digest))
    return msgspec.structs.replace(row, event=event, id=row.id or derived_id(event))


def _content(message: RawMessage) -> int:
    return hash((message.subject, message.payload))


def _key(source: str, event_id: str) -> int:
    return hash((source, event_id))  # a hash bounds the memory, as ids have any length
