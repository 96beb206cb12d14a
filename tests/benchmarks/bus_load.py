"""Publishes the live items of many nodes on a bus, from a separate process.

python -m tests.benchmarks.bus_load URL RATE SECONDS

Starts when it reads a line, and prints a ``LoadReport`` as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import nats
from ulid import ULID

from runner.batch.observers import BatchItem, EpisodeStored, LiveItems
from runner.events.subjects import LiveChannel, channel_of, live_subject
from runner.publish.live_publisher import INTERVAL_S as FLUSH_INTERVAL_S
from tests.benchmarks.synthetic_episodes import synthetic_items

READY: Final = "ready"
INTERVAL_S: Final = 0.01
WAIT_S: Final = 30
N_NODES, N_EPISODES = 50, 8
"""Nodes of a fleet, and running episodes of each."""


class LoadReport(msgspec.Struct):
    """Result of a load.

    Attributes:
        n: number of items that the server received.
        seconds: time from the first message until the server received the last one.
        tenths: number of items in each tenth of a second.
        started_s: time of the first message by the system's monotonic clock.
    """

    n: int
    seconds: float
    tenths: list[int]
    started_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.n / self.seconds


class FleetMessage(NamedTuple):
    """A live message of a node and its number of items."""

    subject: str
    payload: bytes
    n_items: int


def fleet_messages(rate: float, seconds: float) -> Iterator[FleetMessage]:
    """Yield the messages that the nodes of a fleet together send in ``seconds``, with ``rate`` items per second."""
    nodes = [f"node{number:02}" for number in range(N_NODES)]
    sources = [synthetic_items(str(ULID()), node, N_EPISODES) for node in nodes]
    n_each = round(rate * FLUSH_INTERVAL_S / N_NODES)
    boot = str(ULID())
    for _ in range(round(seconds / FLUSH_INTERVAL_S)):
        for node, source in zip(nodes, sources, strict=True):
            channels: dict[LiveChannel, list[msgspec.Raw]] = {}
            n_taken = 0
            while n_taken < n_each:
                channel, encoded = _encoded(next(source))
                channels.setdefault(channel, []).extend(encoded)
                n_taken += len(encoded)
            for channel, items in channels.items():
                batch = {"node": node, "boot": boot, "dropped": 0, "items": items}
                yield FleetMessage(live_subject(channel, node), msgspec.json.encode(batch), len(items))


def _encoded(item: BatchItem) -> tuple[LiveChannel, list[msgspec.Raw]]:
    if isinstance(item, LiveItems):
        return item.channel, list(map(msgspec.Raw, item.items))
    event = item.end if isinstance(item, EpisodeStored) else item
    return channel_of(str(event.__struct_config__.tag)), [msgspec.Raw(msgspec.json.encode(event))]


async def fleet(url: str, rate: float, seconds: float) -> LoadReport:
    """Publish live items of the episodes of many nodes, encoded before the start."""
    client = await nats.connect(url, pending_size=-1)
    messages = iter(list(fleet_messages(rate, seconds + 1)))

    async def send(n: int) -> int:
        n_sent = 0
        while n_sent < n:
            message = next(messages)
            await client.publish(message.subject, message.payload)
            n_sent += message.n_items
        return n_sent

    await _wait_for_start()
    started, tenths = await _send_at_rate(rate, seconds, send)
    await client.flush(WAIT_S)
    passed = time.perf_counter() - started
    await client.close()
    return LoadReport(sum(tenths), passed, tenths, started)


async def _send_at_rate(rate: float, seconds: float, send: Callable[[int], Awaitable[int]]) -> tuple[float, list[int]]:
    """Return the start time and the number of messages sent in each tenth of a second."""
    started = time.perf_counter()
    tenths: list[int] = []
    n = 0
    while (passed := time.perf_counter() - started) < seconds:
        due = round(rate * passed) - n
        sent = await send(due) if due > 0 else 0
        tenths += [0] * (int(passed * 10) + 1 - len(tenths))
        tenths[-1] += sent
        n += sent
        await asyncio.sleep(INTERVAL_S)
    return started, tenths


async def _wait_for_start() -> None:
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


def main(url: str, rate: str, seconds: str) -> None:
    gc.disable()  # the process is short-lived and creates no reference cycles
    sent = asyncio.run(fleet(url, float(rate), float(seconds)))
    sys.stdout.write(msgspec.json.encode(sent).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
