from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from runner.bus.broker.broker import Broker
from runner.bus.connection import BusAddress, NatsConnection
from tests.support.nats_server import NatsServer


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path, "node-1")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as started:
        yield started


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    async with await NatsConnection.open(BusAddress(server.url), name="publisher") as connection:
        yield connection.client
