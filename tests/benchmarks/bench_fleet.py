"""The CPU of a console that shows a fleet of nodes whose heartbeats and health items come at their real rate."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
from ulid import ULID

from runner.bus.streams import DEFAULT_STREAMS, ensure_live_stream
from runner.events.codec import encode
from runner.events.live import EnvHealth, Heartbeat, Host, LiveBatch, LiveItem, ModelHealth
from runner.events.subjects import live_subject
from runner.node.health import ENVS_BEATS, HEARTBEAT_INTERVAL_S, HOST_BEATS, MODELS_BEATS
from runner.types.machine import GpuState, Machine, Network
from tests.benchmarks.bus_load import N_NODES
from tests.benchmarks.measure import CONSOLE, PAIRS, Row, ratio_of, row
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client
from tests.support.terminal import Terminal

N_ENVS, N_MODELS, N_GPUS = 9, 2, 8
SETTLE_S, MEASURED_S = 1.0, 3.0
"""Seconds after a change of the screen that are ignored, and seconds of each of the measurements."""
MAX_RATIO, MAX_CPU = 1.0, 12.0
FLEET: Final = "8", "waits"
LIVE: Final = "1", "Environments"
"""Keys of screens, and a text that only the screen has."""


def run() -> list[Row]:
    """Compare the Fleet screen with Live, which shows one line of the same nodes, in interleaved pairs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        NatsServer(Path(folder)) as server,
        fleet(server),
        Terminal(CONSOLE, "watch", "--nats", server.url, columns=200, rows=60, cwd=Path(folder)) as terminal,
    ):
        terminal.wait_for(f"{N_NODES} nodes", 60)
        pairs = [(_cpu_share(terminal, *FLEET), _cpu_share(terminal, *LIVE)) for _ in range(PAIRS)]
    measured, name = ratio_of(*zip(*pairs, strict=True)), f"{N_NODES} nodes that send their health, CPU of"
    return [
        Row.of_ratio(f"{name} the fleet screen / of live ({measured.b_median:.1f}%)", measured, at_most=MAX_RATIO),
        row(f"{name} the fleet screen", measured.a_median, MAX_CPU, "{:.1f}%"),
    ]


def _cpu_share(terminal: Terminal, key: str, text: str) -> float:
    """Return the share of a CPU, in percent, that all processes of the console take on a screen."""
    process = psutil.Process(terminal.process.pid)
    terminal.send(key)
    terminal.wait_for(text, 60)
    time.sleep(SETTLE_S)
    before, started = _cpu_s(process), time.perf_counter()
    time.sleep(MEASURED_S)
    return 100 * (_cpu_s(process) - before) / (time.perf_counter() - started)


def _cpu_s(process: psutil.Process) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


@contextmanager
def fleet(server: NatsServer) -> Iterator[None]:
    """Publish the items of all nodes until the end of the block."""
    ended = threading.Event()
    publisher = threading.Thread(target=lambda: asyncio.run(_publish(server, ended)))
    publisher.start()
    try:
        yield
    finally:
        ended.set()
        publisher.join()


async def _publish(server: NatsServer, ended: threading.Event) -> None:
    """Send a message of each node every 2 s, each at a time of its own, as the publishers of real nodes do."""
    async with nats_client(server) as client:
        await ensure_live_stream(client.jetstream(), DEFAULT_STREAMS)
        boot = str(ULID())

        async def play(node: str) -> None:
            await asyncio.sleep(random.uniform(0, HEARTBEAT_INTERVAL_S))
            beat = 0
            while not ended.is_set():
                batch = LiveBatch(node=node, boot=boot, dropped=0, items=list(_items(beat)))
                await client.publish(live_subject("health", node), encode(batch))
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
                beat += 1

        await asyncio.gather(*(play(f"node{number:02}") for number in range(N_NODES)))


def _items(beat: int) -> Iterator[LiveItem]:
    """Yield what a node sends with a heartbeat: the loads of its machine always differ."""
    at = datetime.now(UTC)
    yield Heartbeat(at=at, status="idle", profile="field-runner-4090", version="0.1.0", n_waiting=3)
    gpus = [GpuState(index=n, name="H200", util=random.uniform(0, 100), mem_total=141 << 30) for n in range(N_GPUS)]
    net = Network(sent_per_s=random.uniform(0, 1e6), received_per_s=random.uniform(0, 1e6))
    yield Machine(at=at, gpu=gpus, cpu=random.uniform(0, 90), ram=random.uniform(0, 90), net=net)
    if beat % HOST_BEATS == 0:
        yield Host(at=at, cpu=50.0, ram=50.0, gpu=None)
    if beat % ENVS_BEATS == 0:
        for n in range(N_ENVS):
            yield EnvHealth(at=at, env=f"env{n}", status="up", latency_s=0.002, transport="http", open=1, cause=None)
    if beat % MODELS_BEATS == 0:
        for n in range(N_MODELS):
            yield ModelHealth(at=at, endpoint=f"model{n}", status="up", cause=None, latency_s=0.02)
