"""Time of a decoded and deduplicated subscription, compared with a bare pull loop of nats-py."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from runner.bus.connection import BusAddress, NatsConnection
from runner.subscribe.subscription import BusMessage, Subscription
from tests.benchmarks.measure import Row, ratio
from tests.support.nats_server import NatsServer
from tests.support.subscriptions import SUBJECT, add_stream, status_event, status_headers

N_MESSAGES = 5_000
CHUNK_SIZE = 500
MIN_SHARE = 0.7


def run() -> list[Row]:
    """Read a history of small durable events at full speed."""
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server, asyncio.Runner() as loop:
        connection = loop.run(NatsConnection.open(BusAddress(server.url), name="bench"))
        loop.run(store_events(connection, N_MESSAGES))
        measured = ratio(
            _sync(loop, lambda: read_subscription(connection)),
            _sync(loop, lambda: read_pull_loop(connection)),
            clock=time.perf_counter,
        )
        loop.run(connection.close())
    return [
        Row.of_ratio("subscription / bare pull loop, wall", measured, at_most=1 / MIN_SHARE),
        Row("subscription", f"{N_MESSAGES / measured.a_median:,.0f} events/s"),
        Row("bare pull loop", f"{N_MESSAGES / measured.b_median:,.0f} messages/s"),
    ]


def _sync(loop: asyncio.Runner, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def awaited() -> None:
        async with asyncio.timeout(60):
            await work()

    return lambda: loop.run(awaited())


async def store_events(connection: NatsConnection, n_events: int) -> None:
    """Store events in a new stream."""
    await add_stream(connection.client)
    js = connection.client.jetstream()
    for first in range(0, n_events, CHUNK_SIZE):
        numbers = range(first, first + CHUNK_SIZE)
        await asyncio.gather(*(js.publish(SUBJECT, status_event(n), headers=status_headers(n)) for n in numbers))


async def read_subscription(connection: NatsConnection) -> None:
    """Receive every event once, decoded."""
    async with Subscription(connection, patterns=[SUBJECT], since="all") as subscription:
        count = 0
        while count < N_MESSAGES:
            count += sum(isinstance(item, BusMessage) for item in await subscription.next_batch())


async def read_pull_loop(connection: NatsConnection) -> None:
    """Receive every message undecoded."""
    async for _ in read_batches(connection, N_MESSAGES):
        pass


async def read_batches(connection: NatsConnection, n_messages: int) -> AsyncIterator[list[Msg]]:
    """Yield the stored messages with a bare pull loop."""
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30, mem_storage=True)
    subscription = await connection.client.jetstream().pull_subscribe(SUBJECT, stream="S", config=config)
    count = 0
    while count < n_messages:
        messages = await subscription.fetch(CHUNK_SIZE, timeout=1, heartbeat=0.4)
        count += len(messages)
        yield messages
    await subscription.unsubscribe()
