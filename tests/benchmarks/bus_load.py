"""Puts a load on a bus: what a node says while it plays, or messages of somebody else; a process of its own.

python -m tests.benchmarks.bus_load live|foreign URL RATE SECONDS

Begins when a line comes in, and prints what it got done as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import nats
from ulid import ULID

from runner.bus.address import BusAddress
from runner.publish.live_publisher import LivePublisher
from runner.publish.sink import Sink, SinkConnection
from tests.benchmarks.synthetic_episodes import n_items, played

NODE: Final = "load"
READY: Final = "ready"
TURN_S: Final = 0.01
WAIT_S: Final = 30
FOREIGN: Final = [
    (f"plant.line{line}.{what}", payload)
    for line in range(8)
    for what, payload in (
        ("temperature", b'{"celsius": 71.25, "sensor": "t-%d"}' % line),
        ("log", b"2026-05-01 14:30:00 WARN bearing 7 \x1b[31mhot\x1b[0m " * 4),
        ("frame", bytes(range(256)) * 2),
        ("order", b'{"order": {"lines": [%s]}}' % b", ".join([b'{"sku": "A-1", "n": 3}'] * 20)),
        ("empty", b""),
    )
]


class Sent(msgspec.Struct):
    """What a load came to.

    Attributes:
        n: items or messages that the server has taken; ``dropped`` ones were left out by the publisher.
        seconds: from the first to the moment the server had the last one.
        tenths: how many in each tenth of a second.
    """

    n: int
    seconds: float
    dropped: int
    tenths: list[int]

    @property
    def rate(self) -> float:
        return self.n / self.seconds


async def live(url: str, rate: float, seconds: float) -> Sent:
    """What a node tells of the episodes it plays, by the publisher that a node has."""
    sink_connection = SinkConnection(
        Sink("local", lambda: BusAddress(url), owned=True), client_name="load", on_state=lambda _: None
    )
    publisher = LivePublisher([sink_connection], node=NODE, boot=str(ULID()))
    items = played(str(ULID()), NODE)

    async def send(n: int) -> int:
        told = 0
        while told < n:
            publisher(item := next(items))
            told += n_items(item)
        return told

    async with _running(sink_connection.run()):
        await asyncio.wait_for(sink_connection.up.wait(), WAIT_S)
        await _told_to()
        async with _running(publisher.run()):
            started, tenths = await _paced(rate, seconds, send)
        await publisher.flush()
        assert sink_connection.client is not None, "the server has gone"
        await sink_connection.client.flush(WAIT_S)
        (dropped,) = publisher.dropped
        return Sent(sum(tenths) - dropped, time.perf_counter() - started, dropped, tenths)


async def foreign(url: str, rate: float, seconds: float) -> Sent:
    """Messages one by one, of somebody who has never heard of us."""
    client = await nats.connect(url)
    messages = itertools.cycle(FOREIGN)

    async def send(n: int) -> int:
        for subject, payload in itertools.islice(messages, n):
            await client.publish(subject, payload)
        return n

    await _told_to()
    started, tenths = await _paced(rate, seconds, send)
    await client.flush(WAIT_S)
    sent = Sent(sum(tenths), time.perf_counter() - started, 0, tenths)
    await client.close()
    return sent


async def _paced(rate: float, seconds: float, send: Callable[[int], Awaitable[int]]) -> tuple[float, list[int]]:
    """When it began, and how many were sent in each tenth of a second."""
    started = time.perf_counter()
    tenths: list[int] = []
    n = 0
    while (passed := time.perf_counter() - started) < seconds:
        due = round(rate * passed) - n
        sent = await send(due) if due > 0 else 0
        tenths += [0] * (int(passed * 10) + 1 - len(tenths))
        tenths[-1] += sent
        n += sent
        await asyncio.sleep(TURN_S)
    return started, tenths


async def _told_to() -> None:
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


@asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def main(kind: str, url: str, rate: str, seconds: str) -> None:
    gc.disable()  # it does not last long, and what it makes does not refer to itself
    sent = asyncio.run({"live": live, "foreign": foreign}[kind](url, float(rate), float(seconds)))
    sys.stdout.write(msgspec.json.encode(sent).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
