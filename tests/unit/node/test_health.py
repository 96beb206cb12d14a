from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import psutil
import pytest

from runner.config import EnvironmentEntry, Environments, Profile
from runner.config.profile import EndpointConfig
from runner.envs.http.probe import probe_servers
from runner.events.live import EnvHealth, Heartbeat, Host, LiveItem, ModelHealth
from runner.inference.models import Models
from runner.node import health
from runner.node.health import HealthMonitor
from runner.node.shutdown import run_with_restarts
from runner.publish.live_publisher import LivePublisher
from runner.serve.mock_llm import ModelServer
from runner.util.clock import Clock
from tests.support.inference import settings_of
from tests.support.serving import serving

PROFILE = Profile(
    id="p", environments=Environments(lightweight=(EnvironmentEntry(name="Maze"), EnvironmentEntry(name="Gone")))
)


class Told:
    """Takes the place of the live publisher."""

    def __init__(self) -> None:
        self.items: list[LiveItem] = []
        self._came = asyncio.Event()

    def put(self, item: LiveItem) -> None:
        self.items.append(item)
        self._came.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not seen():
                self._came.clear()
                await self._came.wait()

    def count(self, kind: type) -> int:
        return sum(isinstance(item, kind) for item in self.items)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "HEARTBEAT_INTERVAL_S", 0.001)
    monkeypatch.setattr("runner.node.shutdown.RETRY_S", 0.001)


@asynccontextmanager
async def telling(
    told: Told, profile: Profile = PROFILE, models: Models | None = None, awake: Callable[[], bool] = lambda: True
) -> AsyncIterator[HealthMonitor]:
    looked = HealthMonitor(profile, Clock(), None, models, awake)
    assert looked.latest == []
    task = asyncio.create_task(looked.run(cast(LivePublisher, told)))
    try:
        yield looked
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_everything_is_told_at_the_first_beat_and_remembered() -> None:
    told = Told()
    async with telling(told) as looked:
        await told.until(lambda: told.count(Host) == 1)
        await told.until(lambda: told.count(EnvHealth) >= 2)
        assert told.count(Heartbeat) >= 1
        envs = {item.env: item for item in looked.latest if isinstance(item, EnvHealth)}
        assert (envs["Maze"].status, envs["Gone"].status, envs["Gone"].cause) == ("embedded", "down", "not installed")
        await told.until(lambda: told.count(Host) >= 3)
        assert sum(isinstance(item, Host) for item in looked.latest) == 1


def _with_server(url: str) -> Profile:
    entry = EnvironmentEntry(name="Maze", base_url=url, transport="http")
    return Profile(id="p", environments=Environments(lightweight=(entry,)))


async def test_a_server_is_told_of_with_what_it_says() -> None:
    told = Told()
    with serving(["Maze"]) as urls:
        async with telling(told, _with_server(urls["Maze"])) as looked:
            await told.until(lambda: told.count(EnvHealth) >= 2)
            (env,) = (item for item in looked.latest if isinstance(item, EnvHealth))
    first = next(item for item in told.items if isinstance(item, EnvHealth))
    assert (first.status, first.transport, first.latency_s) == ("unknown", "http", None)
    assert (env.status, env.transport, env.open, env.cause) == ("up", "http", 0, None)
    assert env.latency_s is not None


async def test_a_server_that_hangs_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(health, "probe_servers", partial(probe_servers, within_s=0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with telling(told, _with_server(url)) as looked:
            await told.until(lambda: told.count(Heartbeat) >= 5)
            assert told.count(EnvHealth) == 1
            await told.until(lambda: told.count(EnvHealth) >= 2)
            (env,) = (item for item in looked.latest if isinstance(item, EnvHealth))
    assert (env.status, env.transport, bool(env.cause)) == ("down", "http", True)


def _models(url: str) -> Models:
    return Models.from_settings(settings_of(EndpointConfig(url=url, name="lab", kind="openai"), model="small"), {})


async def test_models_are_told_of_as_they_come_and_go() -> None:
    told = Told()

    def last() -> str | None:
        return next((item.status for item in reversed(told.items) if isinstance(item, ModelHealth)), None)

    with ModelServer(models=["small"]) as server:
        async with telling(told, models=_models(server.url)) as looked:
            await told.until(lambda: last() == "up")
            (item,) = (item for item in looked.latest if isinstance(item, ModelHealth))
            assert (item.endpoint, item.model, item.cause, item.hint) == ("lab", "small", None, None)
            await asyncio.to_thread(server.stop)
            await told.until(lambda: last() == "down")
            (item,) = (item for item in looked.latest if isinstance(item, ModelHealth))
            assert item.cause is not None
            assert "no connection" in item.cause
            assert item.hint == f"start the server at {server.url}, or change its URL in the profile"
    with ModelServer() as other:
        told.items.clear()
        async with telling(told, models=_models(other.url)):
            await told.until(lambda: last() is not None)
    assert last() == "wrong"


async def test_the_models_of_a_node_that_nobody_uses_are_seldom_looked_at() -> None:
    told = Told()
    with ModelServer(models=["small"]) as server:
        async with telling(told, models=_models(server.url), awake=lambda: False):
            await told.until(lambda: told.count(ModelHealth) >= 2)
    assert told.count(Heartbeat) >= health.MODELS_IDLE_BEATS // 2


async def test_a_look_that_fails_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("no such counter")

    told = Told()
    working = psutil.cpu_percent
    monkeypatch.setattr(psutil, "cpu_percent", fail)
    with caplog.at_level(logging.WARNING, "runner"):
        async with telling(told) as looked:
            await told.until(lambda: told.count(Heartbeat) >= 12 and told.count(EnvHealth) >= 4)
            assert told.count(Host) == 0
            assert [type(item) for item in looked.latest] == [EnvHealth, EnvHealth]
            monkeypatch.setattr(psutil, "cpu_percent", working)
            await told.until(lambda: told.count(Host) >= 1)
    assert caplog.messages == ["health check of the host failed: RuntimeError: no such counter"]


async def test_work_that_fails_begins_again_until_it_is_done(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[int] = []

    async def work() -> None:
        begun.append(1)
        if len(begun) < 3:
            async with asyncio.TaskGroup() as group:
                group.create_task(_fail())

    with caplog.at_level(logging.WARNING, "runner"):
        await run_with_restarts("the work", work)
    assert len(begun) == 3
    assert caplog.messages == ["the work failed and restarts: ValueError: nothing works"] * 2


async def _fail() -> None:
    raise ValueError("nothing works")


async def test_work_can_be_cancelled_even_where_it_makes_an_error_of_that() -> None:
    waiting = asyncio.Event()

    async def stubborn() -> None:
        waiting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("the connection was lost") from None

    task = asyncio.create_task(run_with_restarts("the work", stubborn))
    await waiting.wait()
    task.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait([task])
    assert task.done()
