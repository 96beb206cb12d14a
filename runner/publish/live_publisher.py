"""Publisher of live items: batches them for ``INTERVAL_S`` and drops the oldest when a sink is too slow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client

from runner.batch.observers import BatchItem, EpisodeStored, Kind, LiveItems, SelectiveObserver
from runner.bus.errors import error_text
from runner.bus.streams import BUS_ERRORS, ensure_live_stream, stream_info
from runner.config import LiveTokens
from runner.errors import catch_foreign, log_failure
from runner.events.codec import encode
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import LIVE_STREAM, LiveChannel, channel_of, live_subject
from runner.publish.delivery import is_cancelled
from runner.publish.outbox import LOCAL
from runner.publish.sink import SinkConnection

logger = logging.getLogger(__name__)

INTERVAL_S = 0.1
RETRY_S = 1.0
"""Seconds after which queued items are tried again although none was added, because a sink may be connected again."""
MAX_MESSAGE_BYTES = 512 * 1024
MAX_QUEUED_BYTES = 8 * 1024 * 1024
MAX_UNSENT_BYTES = 2 * 1024 * 1024
"""Maximum bytes in the client's send buffer; above this, items stay in the queue."""
UNREQUESTED_S = 60.0
"""Seconds after the last item with tokens, or question about them, after which it is not checked who watches tokens."""
STREAM_TIMEOUT_S = 2.0
"""Seconds to wait for the live stream of the own broker; then items are sent without it, to current subscribers."""
CHECK_INTERVAL_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 0.5
"""Seconds to wait for an answer of the broker; without one, tokens count as watched."""

Queued: TypeAlias = tuple[LiveChannel, list[msgspec.Raw], int]
"""The items of one event, and their size in bytes."""

_ENVELOPE_BYTES = 512
_ENCODER = msgspec.json.Encoder()


class TokenWatch:
    """Finds out whether anything receives the streamed tokens that are sent to one sink.

    ``is_watched`` is True until the broker has reported otherwise, and False without a connection.
    """

    def __init__(self, sink_connection: SinkConnection, node: str, boot: str) -> None:
        self.is_watched = True
        self._sink_connection = sink_connection
        self._subject = live_subject("token", node)
        self._probe = encode(LiveBatch(node=node, boot=boot, dropped=0, items=[]))

    async def check(self) -> None:
        if self._sink_connection.n_connects:
            self.is_watched = await self.is_received()

    async def is_received(self) -> bool:
        """Return whether anything receives live items of the sink now, by one request to its broker.

        A publisher cannot list the subscribers of a subject. The own broker keeps all live items in a stream, which
        each console and ``watch`` reads with a consumer of its own. Any other broker reports at once that nothing
        receives a request, here a message without items; a stream that keeps live items receives it.
        """
        if (client := self._sink_connection.client) is None:
            return False
        try:
            if self._sink_connection.sink.name == LOCAL:
                info = await stream_info(client.jetstream(timeout=ANSWER_TIMEOUT_S), LIVE_STREAM)
                return info.state.consumer_count != 0
            await client.request(self._subject, self._probe, timeout=ANSWER_TIMEOUT_S)
        except nats.errors.NoRespondersError:
            return False
        except BUS_ERRORS:  # subscribers do not answer
            return self._sink_connection.client is client
        return True


class _Batch(msgspec.Struct):
    """``LiveBatch`` whose items are already JSON."""

    node: str
    boot: str
    dropped: int
    items: list[msgspec.Raw]


class _Queue:
    """Queue of encoded items with a limit in bytes; drops the oldest items when it is full."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._items: deque[Queued] = deque()
        self._size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, queued: Queued) -> None:
        with self._lock:
            self._items.append(queued)
            self._size += queued[2]
            while self._size > self._capacity:
                _, items, size = self._items.popleft()
                self._size -= size
                self.dropped += len(items)

    def pop_all(self) -> dict[LiveChannel, list[msgspec.Raw]]:
        with self._lock:
            items, self._items, self._size = self._items, deque(), 0
        by_channel: dict[LiveChannel, list[msgspec.Raw]] = {}
        for channel, encoded, _ in items:
            by_channel.setdefault(channel, []).extend(encoded)
        return by_channel

    def drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count


class _SinkQueue:
    """Queue of one sink. Sending only fills the client's buffer, so it never waits for the server."""

    def __init__(self, sink_connection: SinkConnection, node: str, boot: str, capacity: int) -> None:
        self.queue = _Queue(capacity)
        self._sink_connection = sink_connection
        self._node = node
        self._boot = boot
        self.tokens = TokenWatch(sink_connection, node, boot)
        self._n_connects_checked = 0
        self._stream_deadline: float | None = None

    @property
    def is_present(self) -> bool:
        """Whether the sink has an address; without one, items are neither queued nor counted as dropped."""
        return self._sink_connection.state.status != "absent"

    async def flush(self) -> None:
        client = self._sink_connection.client
        if client is None or client.pending_data_size > MAX_UNSENT_BYTES or not await self._ensure_stream(client):
            return
        for channel, items in self.queue.pop_all().items():
            for part in self._parts(items, min(MAX_MESSAGE_BYTES, client.max_payload) - _ENVELOPE_BYTES):
                await self._publish(client, channel, part)

    async def _ensure_stream(self, client: Client) -> bool:
        """Create the own broker's live stream, which a restart loses; returns whether items may be sent."""
        n_connects, now = self._sink_connection.n_connects, time.monotonic()
        if not self._sink_connection.sink.owned or self._n_connects_checked == n_connects:
            return True
        self._stream_deadline = self._stream_deadline or now + STREAM_TIMEOUT_S
        try:
            await ensure_live_stream(client.jetstream(timeout=STREAM_TIMEOUT_S / 2), self._sink_connection.sink.streams)
        except BUS_ERRORS as exc:
            logger.debug("the live stream is missing: %s", error_text(exc))
            if now < self._stream_deadline:
                return False
        self._n_connects_checked, self._stream_deadline = n_connects, None
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
        except BUS_ERRORS as exc:
            logger.debug("%d live items were not sent: %s", len(items), exc)
            self.queue.drop(len(items))


class LivePublisher:
    """Observer of episodes and batches that sends live items to every connected sink; never blocks, never raises.

    Items are queued until ``run`` sends them. While a sink is away or too slow, its oldest items are dropped; each
    message has the total number of dropped items.

    Args:
        capacity: maximum bytes queued per sink.
    """

    def __init__(
        self,
        sink_connections: Sequence[SinkConnection],
        *,
        node: str,
        boot: str,
        capacity: int = MAX_QUEUED_BYTES,
        tokens: LiveTokens = "watched",
    ) -> None:
        self._tokens = tokens
        self._queues = [_SinkQueue(sink_connection, node, boot, capacity) for sink_connection in sink_connections]
        self._loop: asyncio.AbstractEventLoop | None = None  # of ``run``, while it may sleep
        self._added = asyncio.Event()
        self._tokens_requested_at = -math.inf

    @property
    def dropped(self) -> list[int]:
        return [sink.queue.dropped for sink in self._queues]

    @property
    def observer(self) -> SelectiveObserver:
        return SelectiveObserver(self, self.wants, is_inline=True)

    def wants(self, kind: Kind) -> bool:
        """Return whether items of this kind are published now: a sink has an address, and its texts are watched."""
        if kind == "token":
            self._tokens_requested_at = time.monotonic()
            if self._tokens == "watched":
                return any(sink.is_present and sink.tokens.is_watched for sink in self._queues)
        is_wanted = self._tokens != "never" or kind not in ("token", "request")
        return is_wanted and any(sink.is_present for sink in self._queues)

    async def is_received(self) -> bool:
        """Return whether anything receives live items of any sink now, by a request to their brokers."""
        for sink in self._queues:
            if sink.is_present and await sink.tokens.is_received():
                return True
        return False

    def __call__(self, item: BatchItem) -> None:
        """Queue the live items of what a batch reports; thread-safe."""
        if isinstance(item, LiveItems):
            self._put(item.channel, list(map(msgspec.Raw, item.items)))
        else:
            self.put(item.end if isinstance(item, EpisodeStored) else item)

    def put(self, item: LiveItem) -> None:
        """Queue a live item; thread-safe."""
        with catch_foreign(self._drop):
            self._put(_channel(type(item)), [msgspec.Raw(_ENCODER.encode(item))])

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_tokens())
            try:
                while not is_cancelled():
                    self._added.clear()
                    self._loop = asyncio.get_running_loop()
                    await self.flush()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_S if any(len(sink.queue) for sink in self._queues) else None):
                            await self._added.wait()
                    await asyncio.sleep(INTERVAL_S)
            finally:
                self._loop = None

    async def _watch_tokens(self) -> None:
        while not is_cancelled():
            if time.monotonic() - self._tokens_requested_at < UNREQUESTED_S:
                await asyncio.gather(*(sink.tokens.check() for sink in self._queues))
            else:
                for sink in self._queues:
                    sink.tokens.is_watched = True  # as before the first check
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def flush(self) -> None:
        for sink in self._queues:
            await sink.flush()

    def _put(self, channel: LiveChannel, items: list[msgspec.Raw]) -> None:
        queued = (channel, items, sum(map(len, items)))
        for sink in self._queues:
            if sink.is_present:
                sink.queue.put(queued)
        if (loop := self._loop) is not None:
            self._loop = None  # one call wakes it for all items until the next flush
            loop.call_soon_threadsafe(self._added.set)

    def _drop(self, exc: BaseException) -> None:
        log_failure(logger, "encoding a live item")(exc)
        for sink in self._queues:
            sink.queue.drop(1)


@cache
def _channel(kind: type[LiveItem]) -> LiveChannel:
    return channel_of(str(kind.__struct_config__.tag))
