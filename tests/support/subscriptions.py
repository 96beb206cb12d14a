from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.api import StreamConfig

from runner.bus.connection import BusAddress, NatsConnection
from runner.events import subjects
from runner.events.codec import encode, headers_for
from runner.events.decoded import DurableRow
from runner.events.durable import FieldStatus
from runner.subscribe.messages import BusMessage, Notice, Since, SubscriptionItem
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import NatsServer

SUBJECT = subjects.FIELD_STATUS


class Watcher:
    """Takes in what a follower sees; ``until`` waits for something to have been seen."""

    def __init__(self, follow: Subscription) -> None:
        self.seen: list[SubscriptionItem] = []
        self._follow = follow
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        async for seen in self._follow:
            self.seen.append(seen)
            async with self._changed:
                self._changed.notify_all()

    @property
    def messages(self) -> list[BusMessage]:
        return [seen for seen in self.seen if isinstance(seen, BusMessage)]

    @property
    def notices(self) -> list[Notice]:
        return [seen for seen in self.seen if isinstance(seen, Notice)]

    @property
    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]

    @property
    def numbers(self) -> list[int]:
        return [number_of(message) for message in self.messages]

    async def until(self, what: Callable[[], bool], timeout_s: float = 15.0) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(what)
        except TimeoutError:
            raise AssertionError(f"seen so far: {len(self.messages)} messages, {self.notices}") from None

    async def until_notice(self, kind: str, timeout_s: float = 15.0) -> Notice:
        await self.until(lambda: kind in self.kinds, timeout_s)
        return next(notice for notice in self.notices if notice.kind == kind)

    async def until_count(self, count: int, timeout_s: float = 15.0) -> None:
        await self.until(lambda: len(self.messages) >= count, timeout_s)


@asynccontextmanager
async def watching(
    server: NatsServer,
    *,
    patterns: Sequence[str] = (SUBJECT,),
    since: Since = "all",
    address: BusAddress | None = None,
    required: bool = True,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[Watcher]:
    async with (
        await NatsConnection.open(address or BusAddress(server.url), name="watcher", required=required) as connection,
        Subscription(connection, patterns=patterns, since=since, **options) as follow,
    ):
        watcher = Watcher(follow)
        task = asyncio.create_task(watcher.run())
        try:
            yield watcher
        finally:
            task.cancel()
            await asyncio.wait([task])


def number_of(message: BusMessage) -> int:
    assert isinstance(message.decoded, DurableRow), message
    assert isinstance(message.decoded.event, FieldStatus)
    return message.decoded.event.pid


def status(number: int) -> bytes:
    return encode(FieldStatus(node="n", config="p", status="idle", role="node", boot="b", pid=number))


def headers(number: int, time: datetime | None = None) -> dict[str, str]:
    return headers_for(SUBJECT, f"status:b:{number}", "n", time or datetime.now(UTC))


async def publish(client: Client, *numbers: int, subject: str = SUBJECT) -> None:
    """Durable events with ids, acknowledged."""
    js = client.jetstream(timeout=5)
    for number in numbers:
        await js.publish(subject, status(number), headers=headers(number))


async def surely(work: Callable[[], Awaitable[object]]) -> None:
    """Through outages: again and again until it succeeds."""
    async with asyncio.timeout(20):
        while True:
            try:
                await work()
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.02)
            else:
                return


async def publish_surely(client: Client, numbers: Iterable[int]) -> None:
    """Durable events with ids, through outages."""
    js = client.jetstream(timeout=0.3)
    for number in numbers:
        await surely(lambda n=number: js.publish(SUBJECT, status(n), headers=headers(n)))  # type: ignore[misc]


async def add_stream(client: Client, name: str = "S", **config: Any) -> None:  # noqa: ANN401
    await client.jetstream(timeout=1).add_stream(StreamConfig(name=name, **{"subjects": [SUBJECT], **config}))
