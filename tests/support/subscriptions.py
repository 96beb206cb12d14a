"""Recorded subscriptions, and messages for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from runner.bus.connection import BusAddress, NatsConnection
from runner.events import subjects
from runner.events.codec import DurableRow, encode, headers_for
from runner.events.durable import FieldStatus
from runner.subscribe.messages import BusMessage, Notice, Since, SubscriptionItem
from runner.subscribe.subscription import Subscription
from tests.support.nats_server import Bus

SUBJECT = subjects.FIELD_STATUS


class SubscriptionRecorder:
    """Records the items of a subscription; the ``wait_`` methods wait for items."""

    def __init__(self, subscription: Subscription) -> None:
        self.items: list[SubscriptionItem] = []
        self._subscription = subscription
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        async for item in self._subscription:
            self.items.append(item)
            async with self._changed:
                self._changed.notify_all()

    @property
    def messages(self) -> list[BusMessage]:
        return [item for item in self.items if isinstance(item, BusMessage)]

    @property
    def notices(self) -> list[Notice]:
        return [item for item in self.items if isinstance(item, Notice)]

    @property
    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]

    @property
    def numbers(self) -> list[int]:
        return [event_number(message) for message in self.messages]

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"received {len(self.messages)} messages and {self.notices}") from None

    async def wait_for_notice(self, kind: str, timeout_s: float = 15.0) -> Notice:
        await self.wait_until(lambda: kind in self.kinds, timeout_s)
        return next(notice for notice in self.notices if notice.kind == kind)

    async def wait_for_messages(self, count: int, timeout_s: float = 15.0) -> None:
        await self.wait_until(lambda: len(self.messages) >= count, timeout_s)


@asynccontextmanager
async def subscribe_to(
    bus: Bus,
    *,
    patterns: Sequence[str] = (SUBJECT,),
    since: Since = "all",
    address: BusAddress | None = None,
    required: bool = True,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[SubscriptionRecorder]:
    async with (
        await NatsConnection.open(address or BusAddress(bus.url), name="watcher", required=required) as connection,
        Subscription(connection, patterns=patterns, since=since, **options) as subscription,
    ):
        recorder = SubscriptionRecorder(subscription)
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
        finally:
            task.cancel()
            await asyncio.wait([task])


def event_number(message: BusMessage) -> int:
    assert isinstance(message.decoded, DurableRow), message
    assert isinstance(message.decoded.event, FieldStatus) and message.decoded.event.pid is not None
    return message.decoded.event.pid


def status_event(number: int) -> bytes:
    return encode(FieldStatus(node="n", config="p", status="idle", role="node", boot="b", pid=number))


def status_headers(number: int, time: datetime | None = None) -> dict[str, str]:
    return headers_for(SUBJECT, f"status:b:{number}", "n", time or datetime.now(UTC))


async def publish_events(client: Client, *numbers: int, subject: str = SUBJECT) -> None:
    """Publish durable events with ids; each is acknowledged."""
    js = client.jetstream(timeout=5)
    for number in numbers:
        await js.publish(subject, status_event(number), headers=status_headers(number))


async def collect_messages(client: Client, subject: str = "agentgym.>") -> list[Msg]:
    """Subscribe without a stream; return a list to which received messages are appended."""
    messages: list[Msg] = []

    async def append(message: Msg) -> None:
        messages.append(message)

    await client.subscribe(subject, cb=append)
    await client.flush()
    return messages


async def retry_until_success(work: Callable[[], Awaitable[object]], timeout_s: float = 20.0) -> None:
    """Repeat ``work`` until it succeeds, for at most ``timeout_s`` seconds."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                await work()
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.02)
            else:
                return


async def publish_with_retries(client: Client, numbers: Iterable[int]) -> None:
    """Publish durable events with ids; repeat each until it is acknowledged."""
    js = client.jetstream(timeout=0.3)
    for number in numbers:
        await retry_until_success(lambda n=number: js.publish(SUBJECT, status_event(n), headers=status_headers(n)))  # type: ignore[misc]


async def add_stream(client: Client, name: str = "S", **config: Any) -> None:  # noqa: ANN401
    await client.jetstream(timeout=1).add_stream(StreamConfig(name=name, **{"subjects": [SUBJECT], **config}))
