"""What a viewer sees of a batch whose broker, and whose node, are killed while it is played."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from ulid import ULID

from runner.events.subjects import DURABLE
from runner.subscribe.subscription import Subscription
from tests.support.node_process import NodeProcess
from tests.support.subscriptions import SubscriptionRecorder

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
REPEAT, N_KILLS = (2000, 10) if FULL else (60, 2)
PATIENCE_S = 300.0 if FULL else 30.0

pytestmark = pytest.mark.timeout(600 if FULL else 120)


@pytest.mark.long
async def test_killed_brokers_lose_and_double_nothing(tmp_path: Path) -> None:
    batch_id = str(ULID())
    with NodeProcess(tmp_path / "data") as node:
        async with viewing(node) as viewer:
            await start(node, batch_id)
            killed: set[int] = set()
            for number in range(1, N_KILLS + 1):
                await until(lambda n=number: n_finished(node, batch_id) >= REPEAT * n // (N_KILLS + 1))  # type: ignore[misc]
                await kill_broker(node, killed)
                if number == 1:
                    assert n_finished(node, batch_id) < REPEAT, "it was killed too late to be mid-batch"
            assert len(killed) == N_KILLS
            await check(viewer, node, batch_id)
            assert "reconnected" in viewer.kinds


@pytest.mark.long
async def test_a_killed_node_that_resumes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    batch_id = str(ULID())
    with NodeProcess(tmp_path / "data") as node:
        await start(node, batch_id)
        await until(lambda: n_finished(node, batch_id) >= REPEAT // 6)
        node.kill()
        assert n_finished(node, batch_id) < REPEAT, "it was killed too late to be mid-batch"
        node.start()
        async with viewing(node) as viewer:
            await start(node, batch_id, resume=True)
            await check(viewer, node, batch_id)


@asynccontextmanager
async def viewing(node: NodeProcess) -> AsyncIterator[SubscriptionRecorder]:
    async with await node.connect() as connection, Subscription(connection, patterns=DURABLE, since="all") as follow:
        watcher = SubscriptionRecorder(follow)
        task = asyncio.create_task(watcher.run())
        try:
            yield watcher
        finally:
            task.cancel()
            await asyncio.wait([task])


async def start(node: NodeProcess, batch_id: str, *, resume: bool = False) -> None:
    async with await node.connect() as connection:
        await node.request(
            connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=REPEAT, resume=resume
        )


async def check(viewer: SubscriptionRecorder, node: NodeProcess, batch_id: str) -> None:
    """Every stored episode and the one end of the batch were shown, each once."""
    await viewer.wait_until(lambda: f"batch:{batch_id}" in shown(viewer), PATIENCE_S)
    stored = {f"episode:{path.stem}" for path in episodes(node, batch_id)}
    await viewer.wait_until(lambda: stored <= shown(viewer).keys(), PATIENCE_S)
    await asyncio.sleep(0.3)  # nothing comes twice
    counts = shown(viewer)
    assert len(stored) >= REPEAT
    assert {id_: n for id_, n in counts.items() if n != 1} == {}
    assert {id_ for id_ in counts if id_.startswith("episode:")} == stored
    assert [id_ for id_ in counts if id_.startswith("batch:")] == [f"batch:{batch_id}"]


def shown(viewer: SubscriptionRecorder) -> Counter[str]:
    ids = (message.headers.get("ce-id", "") for message in viewer.messages)
    return Counter(id_ for id_ in ids if id_.startswith(("episode:", "batch:")))


def episodes(node: NodeProcess, batch_id: str) -> list[Path]:
    return list((node.data_dir / "runs" / batch_id).glob("*.json"))


def n_finished(node: NodeProcess, batch_id: str) -> int:
    return len(episodes(node, batch_id))


async def kill_broker(node: NodeProcess, killed: set[int]) -> None:
    """Kills the broker that runs now, which is none of those killed before: a dead one may still be listed."""

    def living() -> list[psutil.Process]:
        children = psutil.Process(node.pid).children()
        return [child for child in children if child.pid not in killed and "nats-server" in child.name()]

    await until(lambda: bool(living()))
    (broker,) = living()
    broker.kill()
    killed.add(broker.pid)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the condition is in another process
            await asyncio.sleep(0.005)
