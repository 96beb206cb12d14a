"""All that is said on a bus, as it came, for those who look at the bus itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from runner.bus.connection import Connection
    from runner.subscribe.buffer import Incoming
    from runner.subscribe.messages import Notice, Since
    from runner.subscribe.subscription import Follow

Came: TypeAlias = "Incoming | Notice"

CAPACITY: Final = 10_000
MAX_BYTES: Final = 16 << 20
"""What waits here while nobody reads; of what streams keep more waits there."""


class EventFeed(Protocol):
    """What is said on some subjects; what is not read waits."""

    async def some(self, limit: int) -> Sequence[Came]:
        """What came, at least one; waits for it."""
        ...

    async def behind(self) -> int | None:
        """Messages that will come, of streams also those not wanted; None where nobody says."""
        ...


class EventSource(Protocol):
    """A bus that can be listened to."""

    def open(self, patterns: Sequence[str], since: Since) -> AbstractAsyncContextManager[EventFeed]:
        """Follow some subjects, their history first; waits until there is a way to the bus."""
        ...


class BusEvents:
    """The bus of a session, which may not be there yet; see ``EventSource``."""

    def __init__(self) -> None:
        """Nobody has a connection."""
        self._connection: Connection | None = None
        self._there = asyncio.Event()

    def offer(self, connection: Connection) -> None:
        """This is the way to the bus, for as long as it is open."""
        self._connection = connection
        self._there.set()

    @asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[EventFeed]:
        """See ``EventSource``."""
        await self._there.wait()
        from runner.subscribe.subscription import Follow

        connection = self._connection
        if connection is None:
            raise RuntimeError("no connection was offered")
        following = Follow(
            connection, patterns=patterns, since=since, capacity=CAPACITY, max_bytes=MAX_BYTES, in_time_order=True
        )
        async with following as follow:
            yield _Feed(follow)


class _Feed:
    def __init__(self, follow: Follow) -> None:
        self._follow = follow

    async def some(self, limit: int) -> Sequence[Came]:
        return await self._follow.raw(limit)

    async def behind(self) -> int | None:
        from runner.subscribe.stream_reader import BUS_ERRORS

        try:
            return await self._follow.behind()
        except BUS_ERRORS:
            return None
