"""Source of raw, not decoded messages of a bus for the event screens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Notice, Since

FeedItem: TypeAlias = "RawMessage | Notice"

MAX_WAITING: Final = 10_000
"""Largest number of unread messages buffered in this process. Messages that a stream stores wait in the stream."""

MAX_WAITING_BYTES: Final = 16 << 20


class EventFeed(Protocol):
    """What is used of a ``Subscription``; unread messages wait until they are read."""

    async def next_raw(self, limit: int) -> Sequence[FeedItem]:
        """Wait until at least one message is available, and return up to ``limit`` messages."""
        ...

    async def count_waiting(self) -> int:
        """Return the number of unread messages in the buffer and in the streams; raises one of ``BUS_ERRORS``."""
        ...


class EventSource:
    """Raw messages of the bus of a session; it can be opened before the session is connected."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._connection: NatsConnection | None = None
        self._has_connection = asyncio.Event()

    def set_connection(self, connection: NatsConnection) -> None:
        """Set the connection for subscriptions, for which ``open`` waits."""
        self._connection = connection
        self._has_connection.set()

    @asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[EventFeed]:
        """Wait for the connection to the bus and subscribe to subjects.

        Args:
            patterns: patterns of the subjects.
            since: where reading starts; stored messages are delivered before new messages.
        """
        await self._has_connection.wait()
        from agentgym_tui.sessions.time_ordered_buffer import TimeOrderedBuffer
        from runner.subscribe.subscription import Subscription

        connection = self._connection
        if connection is None:
            raise RuntimeError("no connection is set")
        subscribing = Subscription(
            connection,
            patterns=patterns,
            since=since,
            capacity=self._max_waiting,
            max_bytes=MAX_WAITING_BYTES,
            buffer=TimeOrderedBuffer,
        )
        async with subscribing as subscription:
            yield subscription
