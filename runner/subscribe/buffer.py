"""Between the bus and its follower: bounded, in order, decoded only when it is taken out, each id once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from datetime import datetime
from typing import Final

import msgspec

from runner.events.codec import decode, message_id
from runner.events.decoded import DurableRow, ForeignRow
from runner.events.subjects import DurableNames
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem

MAX_IDS_REMEMBERED = 100_000
"""Ids that are known to have been seen; a broker forgets them after minutes."""

MAX_PASSED_REMEMBERED = 1_000
"""Messages that passed while no stream was known to keep them, of which a stream found later may hand out again."""


class RawMessage(msgspec.Struct, gc=False):
    """A message as it came; ``pending``: how many its stream had behind it when it was sent here."""

    subject: str
    headers: dict[str, str]
    payload: bytes
    stream: str | None = None
    sequence: int | None = None
    time: datetime | None = None
    pending: int = 0

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        headers = sum(len(name) + len(value) for name, value in self.headers.items()) if self.headers else 0
        return len(self.payload) + headers + 200


class FetchLimit(msgspec.Struct, frozen=True):
    """How much is asked of a stream at once: messages, and their bytes."""

    count: int
    size: int


MAX_FETCH: Final = FetchLimit(500, 8 << 20)
MIN_FETCH: Final = FetchLimit(20, 64 << 10)
"""What all readers together ask for at once, and what each of them does however many there are.

Who listens to everything is sent all of it a second time, and a server cuts off whoever has 64 MiB on the way.
"""


class DedupBuffer:
    """What came and was not yet looked at.

    What a stream keeps is ``put``: its reader waits for ``room`` before it asks for more. What no stream keeps is
    ``offer``ed: it is left out while the buffer is full, and counted.
    """

    def __init__(self, names: DurableNames, *, capacity: int = 10_000, max_bytes: int = 64 << 20) -> None:
        """Start empty."""
        self._names = names
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._waiting: deque[RawMessage | Notice] = deque()
        self._bytes = 0
        self._skipped = 0
        self._ended = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._ids: OrderedDict[int, None] = OrderedDict()
        self._heard: OrderedDict[int, int] = OrderedDict()
        self._heard_until: dict[str, int] = {}

    @property
    def n_waiting(self) -> int:
        """Messages that wait here."""
        return sum(isinstance(item, RawMessage) for item in self._waiting)

    def notify(self, notice: Notice, stream: str | None = None) -> None:
        """Add a notice, which may be about a stream."""
        self._tell_skipped()
        self._append(notice)

    def add_stream(self, stream: str, last: int) -> None:
        """Messages of a stream may have been heard before it was found, up to this sequence."""
        self._heard_until[stream] = last

    def update_pending(self, stream: str, pending: int) -> None:
        """So many messages of a stream are still to come, whether or not the last one is wanted."""

    def remove_stream(self, stream: str) -> None:
        """Nothing more comes of a stream, unless it is found again."""

    def put(self, message: RawMessage) -> None:
        """Add a message, also beyond the bounds, unless it was heard before its stream was found."""
        if message.stream is not None and self._was_heard(message):
            return
        self._tell_skipped()
        self._bytes += message.size
        self._append(message)

    def offer(self, message: RawMessage) -> None:
        """Add a message if there is room."""
        if self._full(1.0):
            self._skipped += 1
        else:
            self._hear(_content(message))
            self.put(message)

    def fetch_limit(self, stream: str) -> FetchLimit:
        """What a stream's reader may ask for at once."""
        return FetchLimit(MAX_FETCH.count, max(MAX_FETCH.size // max(len(self._heard_until), 1), MIN_FETCH.size))

    async def wait_for_room(self, stream: str) -> None:
        """Wait until the buffer is at most half full, for a stream's reader."""
        while self._full(0.5):
            self._emptied.clear()
            await self._emptied.wait()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._filled.set()

    async def next_item(self) -> SubscriptionItem | None:
        """The next thing to see; None when there is nothing more and nothing will come."""
        while await self.wait_filled():
            if (seen := self.next_ready()) is not None:
                return seen
        return None

    def next_ready(self) -> SubscriptionItem | None:
        """The next thing to see if it is there already."""
        while (item := self.pop()) is not None:
            if (seen := self.decode(item) if isinstance(item, RawMessage) else item) is not None:
                return seen
        return None

    async def wait_filled(self) -> bool:
        """Wait until there is something; False when nothing will come any more."""
        while True:
            if not self._waiting:
                self._tell_skipped()
            if self._waiting or self._ended:
                return bool(self._waiting)
            self._filled.clear()
            await self._filled.wait()

    def pop(self) -> RawMessage | Notice | None:
        """What came next, not decoded, and also when it was seen before."""
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        if isinstance(item, RawMessage):
            self._bytes -= item.size
        if not self._emptied.is_set() and not self._full(0.5):
            self._emptied.set()
        return item

    def decode(self, message: RawMessage) -> BusMessage | None:
        """What a message that was taken out says; None when it was seen before."""
        source, event_id = message.headers.get("ce-source", ""), message_id(message.headers)
        if source and event_id and self._known(source, event_id):  # told before the payload is looked at
            return None
        decoded = decode(message.subject, message.headers, message.payload, self._names)
        match decoded:
            case DurableRow():
                source, event_id = source or decoded.event.node, decoded.id
            case ForeignRow():
                pass
            case _:
                event_id = ""  # what does not decode must not hide what does
        if event_id:
            if self._known(source, event_id):
                return None
            self._remember(source, event_id)
        return BusMessage(
            subject=message.subject,
            stream=message.stream,
            sequence=message.sequence,
            time=message.time,
            headers=message.headers,
            decoded=decoded,
        )

    def _append(self, item: RawMessage | Notice) -> None:
        self._waiting.append(item)
        self._filled.set()

    def _full(self, share: float) -> bool:
        return len(self._waiting) >= self._capacity * share or self._bytes >= self._max_bytes * share

    def _was_heard(self, message: RawMessage) -> bool:
        if not self._heard or (message.sequence or 0) > self._heard_until.get(message.stream or "", 0):
            return False
        content = _content(message)
        n_times = self._heard.get(content, 0)
        if n_times > 1:
            self._heard[content] = n_times - 1
        elif n_times:
            del self._heard[content]
        return n_times > 0

    def _hear(self, content: int) -> None:
        self._heard[content] = self._heard.get(content, 0) + 1
        if len(self._heard) > MAX_PASSED_REMEMBERED:
            self._heard.popitem(last=False)

    def _tell_skipped(self) -> None:
        """Where messages are missing, before what comes after them."""
        if self._skipped:
            count, self._skipped = self._skipped, 0
            self._append(Notice(kind="skipped", text=f"too slow: {count} messages were left out", count=count))

    def _known(self, source: str, event_id: str) -> bool:
        known = (key := _key(source, event_id)) in self._ids
        if known:
            self._ids.move_to_end(key)
        return known

    def _remember(self, source: str, event_id: str) -> None:
        self._ids[_key(source, event_id)] = None
        if len(self._ids) > MAX_IDS_REMEMBERED:
            self._ids.popitem(last=False)


def _content(message: RawMessage) -> int:
    return hash((message.subject, message.payload))


def _key(source: str, event_id: str) -> int:
    return hash((source, event_id))  # ids are of any length
