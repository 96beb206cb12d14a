"""Answers of a node to one client while another one floods it with invalid requests."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection
from tests.benchmarks.measure import Row
from tests.support.node_process import NodeProcess
from tests.support.raw_nats import RawNatsClient, publish_frame

N_REQUESTS: Final = 20_000
MAX_S: Final = 1.0
PER_WRITE: Final = 100
PAYLOADS: Final = {"text": b"\xff garbage", "a key twice": b'{"id": "g", "op": "list", "op": "list"}'}
SENDERS: Final = {"one sender": 1, "50 senders": 50}


def run() -> list[Row]:
    """Measure the longest time in which another client's ``health`` is answered, during a flood and just after it."""
    with tempfile.TemporaryDirectory() as folder, NodeProcess(Path(folder) / "data", name="bench") as node:
        slowest = {
            f"{payload_name} from {sender_name}": asyncio.run(_slowest(node, payload, n_senders))
            for payload_name, payload in PAYLOADS.items()
            for sender_name, n_senders in SENDERS.items()
        }
    return [
        Row(f"control, slowest answer during {N_REQUESTS:,} x {name}", f"{s * 1e3:.0f} ms", f"< {MAX_S:g} s", s < MAX_S)
        for name, s in slowest.items()
    ]


async def _slowest(node: NodeProcess, payload: bytes, n_senders: int) -> float:
    async with await node.connect() as connection:
        await _answer_s(node, connection)
        flood = threading.Thread(target=_flood, args=(connection.address, payload, n_senders))
        flood.start()
        answers = [await _answer_s(node, connection)]
        while flood.is_alive():
            answers.append(await _answer_s(node, connection))
        answers.append(await _answer_s(node, connection))
        return max(answers)


async def _answer_s(node: NodeProcess, connection: NatsConnection) -> float:
    started = time.perf_counter()
    await node.request(connection, "health")
    return time.perf_counter() - started


def _flood(address: BusAddress, payload: bytes, n_senders: int) -> None:
    with RawNatsClient(address) as client:
        for number in range(N_REQUESTS // PER_WRITE):
            client.send(
                publish_frame("agentgym.control.bench", payload, f"_INBOX.{number % n_senders:012d}") * PER_WRITE
            )
        client.flush()
