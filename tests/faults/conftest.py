from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from runner.bus.broker.broker import Broker
from runner.bus.connection import BusAddress, NatsConnection
from runner.publish.outbox import Outbox
from tests.support.nats_server import Bus, NatsAccount, NatsServer, SharedNatsServer
from tests.support.node_process import NodeProcess
from tests.support.publishing import open_outbox


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, "node-1")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with open_outbox(tmp_path) as outbox:
        yield outbox


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node process for tests that neither stop nor configure it."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


@pytest.fixture
def second_bus(shared_nats_server: SharedNatsServer) -> NatsAccount:
    """An account that shares nothing with ``bus`` but the URL without user information."""
    return shared_nats_server.new_account()


@pytest.fixture(scope="session")
def core_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server without JetStream that all tests of a worker share."""
    with NatsServer(tmp_path_factory.mktemp("core_nats"), jetstream=False) as server:
        yield server


@pytest.fixture
async def bus_client(bus: NatsAccount) -> AsyncIterator[Client]:
    async with await _connect(bus) as connection:
        yield connection.client


@pytest.fixture
async def nats_server_client(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with await _connect(nats_server) as connection:
        yield connection.client


async def _connect(bus: Bus) -> NatsConnection:
    return await NatsConnection.open(BusAddress(bus.url), name="publisher")
