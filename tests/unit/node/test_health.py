"""Health monitoring of a node, restarts of its services, and the wait for its own broker."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import psutil
import pytest

from runner import __version__
from runner.bus.errors import BusError
from runner.config import EnvironmentEntry, Environments, Profile
from runner.config.profile import EndpointConfig
from runner.envs.http.server import PROBE_TIMEOUT_S
from runner.events.live import EnvHealth, Gpu, Heartbeat, Host, LiveItem, ModelHealth, ModelMetrics
from runner.inference.profile_models import Models
from runner.machine.sampler import MachineSampler
from runner.node import node
from runner.node.health import MODELS_IDLE_BEATS, HealthMonitor
from runner.node.node import run_with_restarts
from runner.publish.live_publisher import LivePublisher
from runner.types.machine import GpuState, Machine
from runner.util.clock import Clock
from tests.support.inference import agent_settings
from tests.support.metrics_texts import VLLM
from tests.support.model_server import ModelServer
from tests.support.rude_model import RudeModel, completion_response, http_response
from tests.support.serving import serve_environments

PROFILE = Profile(
    id="p", environments=Environments(lightweight=(EnvironmentEntry(name="Maze"), EnvironmentEntry(name="Gone")))
)


class PublisherStub:
    """Records the items put into a live publisher."""

    def __init__(self) -> None:
        self.items: list[LiveItem] = []
        self.received = False
        self._added = asyncio.Event()

    def put(self, item: LiveItem) -> None:
        self.items.append(item)
        self._added.set()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._added.clear()
                await self._added.wait()

    async def is_received(self) -> bool:
        return self.received

    def count(self, kind: type) -> int:
        return sum(isinstance(item, kind) for item in self.items)


@asynccontextmanager
async def run_monitor(
    live: PublisherStub,
    profile: Profile = PROFILE,
    models: Models | None = None,
    is_active: Callable[[], bool] = lambda: True,
    probe_timeout_s: float = PROBE_TIMEOUT_S,
    sampler: MachineSampler | None = None,
) -> AsyncIterator[HealthMonitor]:
    monitor = HealthMonitor(
        profile,
        Clock(),
        None,
        models,
        is_active,
        sampler=sampler,
        heartbeat_interval_s=0.001,
        probe_timeout_s=probe_timeout_s,
    )
    assert monitor.latest == []
    task = asyncio.create_task(monitor.run(cast(LivePublisher, live)))
    try:
        yield monitor
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_the_first_heartbeat_publishes_all_health_items_and_latest_keeps_them() -> None:
    live = PublisherStub()
    async with run_monitor(live) as monitor:
        await live.wait_until(lambda: live.count(Host) == 1)
        await live.wait_until(lambda: live.count(EnvHealth) >= 2)
        beat = next(item for item in live.items if isinstance(item, Heartbeat))
        assert (beat.profile, beat.version, beat.n_waiting) == (PROFILE.id, __version__, 0)
        envs = {item.env: item for item in monitor.latest if isinstance(item, EnvHealth)}
        assert (envs["Maze"].status, envs["Gone"].status, envs["Gone"].cause) == ("embedded", "down", "not installed")
        await live.wait_until(lambda: live.count(Host) >= 3)
        assert sum(isinstance(item, Host) for item in monitor.latest) == 1


def profile_with_server(url: str) -> Profile:
    entry = EnvironmentEntry(name="Maze", base_url=url, transport="http")
    return Profile(id="p", environments=Environments(lightweight=(entry,)))


async def test_the_health_of_an_environment_server_is_published() -> None:
    live = PublisherStub()
    with serve_environments(["Maze"]) as urls:
        async with run_monitor(live, profile_with_server(urls["Maze"])) as monitor:
            await live.wait_until(lambda: live.count(EnvHealth) >= 2)
            (env,) = (item for item in monitor.latest if isinstance(item, EnvHealth))
    first = next(item for item in live.items if isinstance(item, EnvHealth))
    assert (first.status, first.transport, first.latency_s) == ("unknown", "http", None)
    assert (env.status, env.transport, env.open, env.cause) == ("up", "http", 0, None)
    assert env.latency_s is not None


async def test_a_hanging_server_does_not_delay_heartbeats() -> None:
    live = PublisherStub()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with run_monitor(live, profile_with_server(url), probe_timeout_s=0.3) as monitor:
            await live.wait_until(lambda: live.count(Heartbeat) >= 5)
            assert live.count(EnvHealth) == 1
            await live.wait_until(lambda: live.count(EnvHealth) >= 2)
            (env,) = (item for item in monitor.latest if isinstance(item, EnvHealth))
    assert (env.status, env.transport, bool(env.cause)) == ("slow", "http", True)


def make_models(url: str) -> Models:
    return Models(agent_settings(EndpointConfig(url=url, name="lab", kind="openai"), model="small"), {})


async def test_changes_of_model_health_are_published() -> None:
    live = PublisherStub()

    def last() -> str | None:
        return next((item.status for item in reversed(live.items) if isinstance(item, ModelHealth)), None)

    with ModelServer(models=["small"]) as server:
        async with run_monitor(live, models=make_models(server.url)) as monitor:
            await live.wait_until(lambda: last() == "up")
            (item,) = (item for item in monitor.latest if isinstance(item, ModelHealth))
            assert (item.endpoint, item.model, item.cause, item.hint) == ("lab", "small", None, None)
            await asyncio.to_thread(server.stop)
            await live.wait_until(lambda: last() == "down")
            (item,) = (item for item in monitor.latest if isinstance(item, ModelHealth))
            assert item.cause is not None
            assert "no connection" in item.cause
            assert item.hint == f"start the server at {server.url}, or correct its URL"
    with ModelServer() as other:
        live.items.clear()
        async with run_monitor(live, models=make_models(other.url)):
            await live.wait_until(lambda: last() is not None)
    assert last() == "wrong"


async def test_the_load_of_a_model_server_is_published_while_the_node_is_active() -> None:
    def serve() -> RudeModel:
        return RudeModel(completion_response("up"), routes={"/metrics": http_response(200, VLLM, "text/plain")})

    live = PublisherStub()
    with serve() as server:
        async with run_monitor(live, models=make_models(server.origin)):
            await live.wait_until(lambda: live.count(ModelMetrics) >= 2)
    newest = [item for item in live.items if isinstance(item, ModelMetrics)][-1]
    assert (newest.endpoint, newest.server, newest.waiting, newest.kv_cache) == ("lab", "vllm", 12.0, 0.97)
    live = PublisherStub()
    with serve() as server:
        async with run_monitor(live, models=make_models(server.origin), is_active=lambda: False):
            await live.wait_until(lambda: live.count(ModelHealth) >= 2)
        assert live.count(Heartbeat) >= MODELS_IDLE_BEATS // 2, "models of an inactive node are checked rarely"
        assert not [request for request in server.requests if request.path == "/metrics"]
    assert live.count(ModelMetrics) == 0


async def test_a_failed_check_is_logged_once_and_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("no such counter")

    live = PublisherStub()
    cpu_percent = psutil.cpu_percent
    monkeypatch.setattr(psutil, "cpu_percent", fail)
    with caplog.at_level(logging.WARNING, "runner"):
        async with run_monitor(live) as monitor:
            await live.wait_until(lambda: live.count(Heartbeat) >= 12 and live.count(EnvHealth) >= 4)
            assert live.count(Host) == 0
            assert [type(item) for item in monitor.latest] == [EnvHealth, EnvHealth]
            monkeypatch.setattr(psutil, "cpu_percent", cpu_percent)
            await live.wait_until(lambda: live.count(Host) >= 1)
    assert caplog.messages == ["health check of the host failed: RuntimeError: no such counter"]


class OneGpu:
    """A reader of one GPU."""

    n_reads = 0

    def read(self) -> list[GpuState]:
        self.n_reads += 1
        return [GpuState(index=0, name="A", util=30.0, mem_used=1, mem_total=2), GpuState(index=1, lost="gone")]


async def test_an_active_node_publishes_its_machine_and_its_host_has_the_readable_gpus(tmp_path: Path) -> None:
    live, gpus = PublisherStub(), OneGpu()
    found: list[Machine] = []

    def hosts() -> list[list[Gpu]]:
        return [item.gpu for item in live.items if isinstance(item, Host) and item.gpu]

    def is_shown() -> bool:  # a busy machine samples late, and a late sample is not shown
        found[:] = [item for item in monitor.latest if isinstance(item, Machine)]
        return bool(found and hosts()) and live.count(Machine) >= 2

    async with run_monitor(live, sampler=machine_sampler(tmp_path, gpus)) as monitor:
        await live.wait_until(is_shown)
    assert [gpu.lost for gpu in found[0].gpu] == [None, "gone"]
    assert hosts()[-1] == [Gpu(name="A", util=30.0, mem_used=1, mem_total=2)]
    times = [item.at for item in live.items if isinstance(item, Machine)]
    assert len(set(times)) == len(times)


async def test_the_machine_of_an_idle_node_is_sampled_only_while_something_receives_it(tmp_path: Path) -> None:
    live, gpus = PublisherStub(), OneGpu()
    sampler = machine_sampler(tmp_path, gpus)
    async with run_monitor(live, is_active=lambda: False, sampler=sampler) as monitor:
        await live.wait_until(lambda: live.count(Heartbeat) >= 30)
        assert gpus.n_reads == 0
        live.received = True
        await live.wait_until(lambda: live.count(Machine) >= 2)
        live.received = False
        n_beats = live.count(Heartbeat)
        await live.wait_until(lambda: live.count(Heartbeat) >= n_beats + 30)
        n_items = live.count(Machine)
        await live.wait_until(lambda: live.count(Heartbeat) >= n_beats + 60)
        assert live.count(Machine) == n_items
        assert not any(isinstance(item, Machine) for item in monitor.latest)


def machine_sampler(data_dir: Path, gpus: OneGpu) -> MachineSampler:
    return MachineSampler(data_dir, Clock(), [lambda: gpus], interval_s=0.02)


async def test_a_failed_service_restarts_until_it_completes(caplog: pytest.LogCaptureFixture) -> None:
    starts: list[int] = []

    async def service() -> None:
        starts.append(1)
        if len(starts) < 3:
            async with asyncio.TaskGroup() as group:
                group.create_task(_fail())

    with caplog.at_level(logging.WARNING, "runner"):
        await run_with_restarts("the service", service, retry_s=0.001)
    assert len(starts) == 3
    assert caplog.messages == ["the service failed and restarts: ValueError: nothing works"] * 2


async def _fail() -> None:
    raise ValueError("nothing works")


async def test_a_service_that_replaces_its_cancellation_by_an_error_ends() -> None:
    waiting = asyncio.Event()

    async def stubborn() -> None:
        waiting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("the connection was lost") from None

    task = asyncio.create_task(run_with_restarts("the service", stubborn, retry_s=0.001))
    await waiting.wait()
    task.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait([task])
    assert task.done()


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "BROKER_START_TIMEOUT_S", 4)
    monkeypatch.setattr(node, "_WAIT_PERIOD_S", 0.05)


async def test_a_node_that_was_stopped_for_longer_than_the_limit_still_waits_for_its_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    waiting = asyncio.create_task(node._wait_for_broker(ready))
    await asyncio.sleep(0)
    # As if the whole process were stopped: its loop sees no event, but its clock goes on.
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 60)
    await asyncio.sleep(0)
    ready.set()
    await asyncio.wait_for(waiting, 5)
    assert waiting.exception() is None


async def test_a_silent_broker_is_an_error_that_names_its_log() -> None:
    with pytest.raises(BusError, match=r"own broker did not answer within 4 s; see logs/nats-server.log"):
        await asyncio.wait_for(node._wait_for_broker(asyncio.Event()), 5)
