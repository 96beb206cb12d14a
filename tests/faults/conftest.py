from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from runner.batch.workspace import Workspace
from runner.bus.broker.broker import Broker
from runner.publish.outbox import Outbox
from runner.util.clock import Clock
from tests.conftest import Install
from tests.support.env_server_process import EnvServerProcess, free_port, run_proxy_in_thread
from tests.support.hooked_agent import HookedAgent
from tests.support.manual_clock import ManualClock
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.node_process import NodeProcess
from tests.support.publishing import nats_client, open_outbox


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


@pytest.fixture(scope="session")
def core_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server without JetStream that all tests of a worker share."""
    with NatsServer(tmp_path_factory.mktemp("core_nats"), jetstream=False) as server:
        yield server


@pytest.fixture
async def bus_client(bus: NatsAccount) -> AsyncIterator[Client]:
    async with nats_client(bus) as client:
        yield client


@pytest.fixture
async def nats_server_client(nats_server: NatsServer) -> AsyncIterator[Client]:
    """A client that reconnects by itself, unlike those of the product."""
    async with nats_client(nats_server, max_reconnect_attempts=-1, reconnect_time_wait=0.1) as client:
        yield client


@pytest.fixture(params=["at the port", "behind a proxy"])
def served_maze(request: pytest.FixtureRequest) -> Iterator[tuple[EnvServerProcess, int]]:
    """Yield a Maze server, and the port at which a batch reaches it."""
    with EnvServerProcess("Maze") as server:
        if request.param == "at the port":
            yield server, server.port
        else:
            with run_proxy_in_thread(server.port) as port:
                yield server, port


@pytest.fixture
def maze_server() -> Iterator[EnvServerProcess]:
    with EnvServerProcess("Maze") as server:
        yield server


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def hooked_agent(install: Install) -> None:
    install(agents={"hooked": "tests.support.hooked_agent:HookedAgent"})


@pytest.fixture
def clock() -> ManualClock:
    """The time of the batches: the seconds of a wait pass only when a test sets ``now``."""
    return ManualClock()


@pytest.fixture
def workspace(tmp_path: Path, clock: ManualClock) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "data", node="test", profile="p1", clock=Clock(monotonic=clock))
    yield workspace
    workspace.close()


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., threading.Event]:
    """Return a function that has a server killed before one step; its event is set when the server is dead."""

    def plan(server: EnvServerProcess, task: int, step: int) -> threading.Event:
        killed, lock = threading.Event(), threading.Lock()

        def before_act(task_index: int, step_index: int) -> None:
            with lock:
                if (task_index, step_index) == (task, step) and not killed.is_set():
                    server.kill()
                    killed.set()

        monkeypatch.setattr(HookedAgent, "before_act", staticmethod(before_act))
        return killed

    return plan
