"""All that is said on a bus, as it came, for those who look at the bus itself."""

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
MAX_WAITING_BYTES: Final = 16 << 20
"""What waits here while nobody reads; of what streams keep more waits there."""


class EventFeed(Protocol):
    """What is said on some subjects; what is not read waits."""

    async def read(self, limit: int) -> Sequence[FeedItem]:
        """What came, at least one; waits for it."""
        ...

    async def n_pending(self) -> int | None:
        """Messages that will come, of streams also those not wanted; None where nobody says."""
        ...


class EventSource(Protocol):
    """A bus that can be listened to."""

    def open(self, patterns: Sequence[str], since: Since) -> AbstractAsyncContextManager[EventFeed]:
        """Follow some subjects, their history first; waits until there is a way to the bus."""
        ...


class BusEventSource:
    """The bus of a session, which may not be there yet; see ``EventSource``."""

    def __init__(self) -> None:
        """Nobody has a connection."""
        self._connection: NatsConnection | None = None
        self._has_connection = asyncio.Event()

    def set_connection(self, connection: NatsConnection) -> None:
        """This is the way to the bus, for as long as it is open."""
        self._connection = connection
        self._has_connection.set()

    @asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[EventFeed]:
        """See ``EventSource``."""
        await self._has_connection.wait()
        from runner.subscribe.subscription import Subscription

        connection = self._connection
        if connection is None:
            raise RuntimeError("no connection was offered")
        following = Subscription(
            connection,
            patterns=patterns,
            since=since,
            capacity=MAX_WAITING,
            max_bytes=MAX_WAITING_BYTES,
            in_time_order=True,
        )
        async with following as follow:
            yield _SubscriptionFeed(follow)


class _SubscriptionFeed:
    def __init__(self, follow: Subscription) -> None:
        self._follow = follow

    async def read(self, limit: int) -> Sequence[FeedItem]:
        return await self._follow.next_raw(limit)

    async def n_pending(self) -> int | None:
        from runner.subscribe.stream_reader import BUS_ERRORS

        try:
            return await self._follow.count_waiting()
        except BUS_ERRORS:
            return None
