"""The memory of a node's own broker is bounded, whatever is published and however slowly others read."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from runner.bus.broker.broker import Broker
from runner.bus.connection import NatsConnection
from runner.bus.streams import ensure_live_stream
from tests.support.raw_nats import RawNatsClient, publish_frame

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MAX_BYTES = 200_000_000


@pytest.mark.parametrize(("payload_bytes", "n_messages"), [(100, 800_000), (1 << 20, 400)])
async def test_memory_stays_bounded_while_live_messages_flood_a_stopped_subscriber(
    tmp_path: Path, payload_bytes: int, n_messages: int
) -> None:
    broker = Broker(tmp_path, "n1")
    broker.start()
    try:
        async with await NatsConnection.open(broker.address, name="test") as connection:
            await ensure_live_stream(connection.client.jetstream())
        with RawNatsClient(broker.address) as stopped, RawNatsClient(broker.address) as publisher:
            stopped.subscribe(">")
            frame = publish_frame("agentgym.live.step.v1.n1", b"x" * payload_bytes)
            for _ in range(100):
                publisher.send(frame * (n_messages // 100))
            publisher.flush()
            assert psutil.Process(broker.pid).memory_info().rss < MAX_BYTES
    finally:
        broker.stop()
