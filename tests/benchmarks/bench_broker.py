"""Memory of the node's own broker during a flood of core messages that the stream of live items keeps."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

from runner.bus.address import BusAddress
from runner.bus.broker.broker import Broker
from runner.bus.connection import NatsConnection
from runner.bus.streams import ensure_live_stream
from tests.benchmarks.measure import Row
from tests.support.raw_nats import RawNatsClient, publish_frame

N_MESSAGES: Final = 1_000_000
PER_WRITE: Final = 1000
N_WRITES: Final = 4
"""Different writes, which are repeated."""

MIN_BYTES, MAX_BYTES = 200, 7000
"""Sizes of live items; small ones are the most frequent."""

MAX_MB: Final = 300
POLL_S: Final = 0.02


def run() -> list[Row]:
    """Measure the largest resident size, with a subscriber that reads nothing and is disconnected at some time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        broker = Broker(Path(folder), "bench")
        broker.start()
        stack.callback(broker.stop)
        asyncio.run(_create_live_stream(broker.address))
        stack.enter_context(RawNatsClient(broker.address)).subscribe(">")
        publisher = stack.enter_context(RawNatsClient(broker.address))
        writes = _writes()
        with _peak_of(psutil.Process(broker.pid)) as sizes:
            for frames in itertools.islice(itertools.cycle(writes), N_MESSAGES // PER_WRITE):
                publisher.send(frames)
            publisher.flush()
    peak_mb = max(sizes) / 1e6
    name = "memory of a node's broker, 1 M live messages and a stopped subscriber"
    return [Row(name, f"{peak_mb:.0f} MB", f"< {MAX_MB} MB", peak_mb < MAX_MB)]


async def _create_live_stream(address: BusAddress) -> None:
    async with await NatsConnection.open(address, name="bench") as connection:
        await ensure_live_stream(connection.client.jetstream())


def _writes() -> list[bytes]:
    chance = random.Random(1)
    sizes = [int(MIN_BYTES * (MAX_BYTES / MIN_BYTES) ** chance.random()) for _ in range(N_WRITES * PER_WRITE)]
    frames = [publish_frame(f"agentgym.live.step.v1.bench.{n % 400}", b"x" * size) for n, size in enumerate(sizes)]
    return [b"".join(frames[first : first + PER_WRITE]) for first in range(0, len(frames), PER_WRITE)]


@contextmanager
def _peak_of(process: psutil.Process) -> Iterator[list[int]]:
    sizes = [process.memory_info().rss]
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            sizes.append(process.memory_info().rss)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield sizes
    finally:
        ended.set()
        thread.join()
