"""Raw messages of a bus for the event screens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Notice, Since
    from runner.subscribe.subscription import Subscription

FeedItem: TypeAlias = "RawMessage | Notice"

MAX_WAITING: Final = 10_000
"""Messages that wait here unread; ``MAX_WAITING_BYTES`` bounds their size. Stored messages wait in their stream."""

MAX_WAITING_BYTES: Final = 16 << 20


class EventFeed(Protocol):
    """Messages of some subjects; unread ones wait."""

    async def read(self, limit: int) -> Sequence[FeedItem]:
        """Return up to ``limit`` messages; waits for at least one."""
        ...

    async def n_pending(self) -> int | None:
        """Return the number of messages still to come, counted per stream; None where not known."""
        ...


class EventSource(Protocol):
    """A bus whose messages can be read."""

    def open(self, patterns: Sequence[str], since: Since) -> AbstractAsyncContextManager[EventFeed]:
        """Subscribe to some subjects, their history first; waits for the connection."""
        ...


class BusEventSource:
    """The bus of a session, which may still be connecting; see ``EventSource``."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._connection: NatsConnection | None = None
        self._has_connection = asyncio.Event()

    def set_connection(self, connection: NatsConnection) -> None:
        """Set the connection to subscribe with."""
        self._connection = connection
        self._has_connection.set()

    @asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[EventFeed]:
        """Subscribe; see ``EventSource``."""
        await self._has_connection.wait()
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
            in_time_order=True,
        )
        async with subscribing as subscription:
            yield _SubscriptionFeed(subscription)


class _SubscriptionFeed:
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def read(self, limit: int) -> Sequence[FeedItem]:
        return await self._subscription.next_raw(limit)

    async def n_pending(self) -> int | None:
        from runner.bus.streams import BUS_ERRORS

        try:
            return await self._subscription.count_waiting()
        except BUS_ERRORS:
            return None
