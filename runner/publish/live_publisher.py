"""Live items on their way to the bus: gathered for a moment, sent together, and left out when there are too many."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
from nats.aio.client import Client

from runner.bus.streams import ensure_live_stream
from runner.errors import catch_foreign, log_failure
from runner.events.live import LiveItem
from runner.events.subjects import LiveChannel, channel_of, live_subject
from runner.publish.delivery import TRANSPORT_ERRORS, is_cancelled, shown
from runner.publish.live_encoder import live_items
from runner.publish.sink import SinkConnection
from runner.types import Item

logger = logging.getLogger(__name__)

INTERVAL_S = 0.1
MAX_MESSAGE = 512 * 1024
MAX_QUEUED = 8 * 1024 * 1024
MAX_UNSENT = 2 * 1024 * 1024
"""Bytes that the client may hold back for a server that does not read, before items are left in the queue."""

PATIENCE_S = 2.0
"""Seconds for which items wait for the own broker to keep them; who listens right now hears them also without that."""

_ENVELOPE_SIZE = 512

Queued: TypeAlias = tuple[LiveChannel, msgspec.Raw]


class _Batch(msgspec.Struct):
    """A ``LiveBatch`` whose items are JSON already."""

    node: str
    boot: str
    dropped: int
    items: list[msgspec.Raw]


_ENCODER = msgspec.json.Encoder()


class _Queue:
    """Bounded in bytes; the oldest items make room for new ones."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._items: deque[Queued] = deque()
        self._size = 0
        self.dropped = 0

    def put(self, channel: LiveChannel, item: msgspec.Raw) -> None:
        with self._lock:
            self._items.append((channel, item))
            self._size += len(item)
            while self._size > self._capacity:
                self._size -= len(self._items.popleft()[1])
                self.dropped += 1

    def take(self) -> dict[LiveChannel, list[msgspec.Raw]]:
        with self._lock:
            items, self._items, self._size = self._items, deque(), 0
        taken: dict[LiveChannel, list[msgspec.Raw]] = {}
        for channel, item in items:
            taken.setdefault(channel, []).append(item)
        return taken

    def drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count


class _Feed:
    """One sink's queue, emptied while there is a connection; the client only takes it over, so nothing waits here."""

    def __init__(self, sink_connection: SinkConnection, node: str, boot: str, capacity: int) -> None:
        self.queue = _Queue(capacity)
        self._sink_connection = sink_connection
        self._node = node
        self._boot = boot
        self._kept_since = 0
        self._waits_until: float | None = None

    async def flush(self) -> None:
        client = self._sink_connection.client
        if client is None or client.pending_data_size > MAX_UNSENT or not await self._kept(client):
            return
        for channel, items in self.queue.take().items():
            for part in self._parts(items, min(MAX_MESSAGE, client.max_payload) - _ENVELOPE_SIZE):
                await self._publish(client, channel, part)

    async def _kept(self, client: Client) -> bool:
        """Whether items may go: the own broker, started again, has no stream of them, and they would reach nobody."""
        n_connects, now = self._sink_connection.n_connects, time.monotonic()
        if not self._sink_connection.sink.owned or self._kept_since == n_connects:
            return True
        self._waits_until = self._waits_until or now + PATIENCE_S
        try:
            await ensure_live_stream(client.jetstream(timeout=PATIENCE_S / 2), self._sink_connection.sink.streams)
        except TRANSPORT_ERRORS as exc:
            logger.debug("live items are not kept: %s", shown(exc))
            if now < self._waits_until:
                return False
        self._kept_since, self._waits_until = n_connects, None
        return self._sink_connection.client is client

    def _parts(self, items: list[msgspec.Raw], limit: int) -> Iterator[list[msgspec.Raw]]:
        part: list[msgspec.Raw] = []
        size = 0
        for item in items:
            if len(item) > limit:
                self.queue.drop(1)
                continue
            if part and size + len(item) >= limit:
                yield part
                part, size = [], 0
            part.append(item)
            size += len(item) + 1
        if part:
            yield part

    async def _publish(self, client: Client, channel: LiveChannel, items: list[msgspec.Raw]) -> None:
        batch = _Batch(self._node, self._boot, self.queue.dropped, items)
        try:
            await client.publish(live_subject(channel, self._node), _ENCODER.encode(batch))
        except TRANSPORT_ERRORS as exc:
            logger.debug("%d live items were not sent: %s", len(items), exc)
            self.queue.drop(len(items))


class LivePublisher:
    """An observer of episodes and batches that tells every connected sink what happens; never blocks, never raises.

    While a sink is away or too slow its oldest items are left out; each message says how many these were so far.

    Args:
        sink_connections: those of a ``Publisher``, whose connections are used.
        node: names the subjects.
        boot: this process.
        capacity: bytes kept per sink.
    """

    def __init__(
        self, sink_connections: Sequence[SinkConnection], *, node: str, boot: str, capacity: int = MAX_QUEUED
    ) -> None:
        """Prepare; items are kept, and nothing is sent before ``run``."""
        self._feeds = [_Feed(sink_connection, node, boot, capacity) for sink_connection in sink_connections]

    @property
    def dropped(self) -> list[int]:
        """Per sink, the items that were never sent."""
        return [feed.queue.dropped for feed in self._feeds]

    def __call__(self, item: Item) -> None:
        """Take what an episode or batch tells; from any thread."""
        with catch_foreign(self._lost):
            for told in live_items(item):
                self._put(item, told)

    def put(self, item: LiveItem) -> None:
        """Take a live item; from any thread."""
        with catch_foreign(self._lost):
            self._put(item, msgspec.Raw(_ENCODER.encode(item)))

    async def run(self) -> None:
        """Send until cancelled."""
        while not is_cancelled():
            await asyncio.sleep(INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Send what is there now."""
        for feed in self._feeds:
            await feed.flush()

    def _put(self, item: Item | LiveItem, encoded: msgspec.Raw) -> None:
        channel = channel_of(str(type(item).__struct_config__.tag))
        for feed in self._feeds:
            feed.queue.put(channel, encoded)

    def _lost(self, exc: BaseException) -> None:
        log_failure(logger, "telling a live item")(exc)
        for feed in self._feeds:
            feed.queue.drop(1)
