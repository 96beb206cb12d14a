"""A helper process of a node that is stopped, as by SIGSTOP: what does not need it goes on, and the node answers.

The helper stays stopped until all of that has happened, and with ``AGENTGYM_FAULTS=full`` for at least 30 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ulid import ULID

from runner.bus.connection import NatsConnection
from tests.support import scripted_are_process
from tests.support.command import ENVIRON
from tests.support.env_server_process import free_port
from tests.support.held_steps import HeldStep, StepGate
from tests.support.node_events import count_event_ids, episode_event_ids, stored_episodes, subscribe_to_node, wait_until
from tests.support.node_process import NodeProcess, running_node
from tests.support.scripted_are_process import write_program
from tests.support.worker_runs import worker_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

STOP_S = 30.0 if os.environ.get("AGENTGYM_FAULTS") == "full" else 0.0
N_EPISODES = 6


@asynccontextmanager
async def stopped(process: psutil.Process) -> AsyncIterator[None]:
    """Stop a process until the end of the block, and for at least ``STOP_S`` seconds."""
    process.suspend()
    since = time.monotonic()
    try:
        yield
        await asyncio.sleep(max(0.0, since + STOP_S - time.monotonic()))
    finally:
        with suppress(psutil.NoSuchProcess):  # it was replaced
            process.resume()


class NodeUser:
    """Starts batches at a node and waits for them; each wait is also one for the node's answers."""

    def __init__(self, node: NodeProcess, connection: NatsConnection) -> None:
        self.node = node
        self._connection = connection

    async def start(self, env: str, agent: str = "up", **fields: Any) -> str:  # noqa: ANN401 - of the request
        batch_id = str(ULID())
        await self.request("start", batch_id=batch_id, envs=[env], agent=agent, **fields)
        return batch_id

    async def play(self, env: str, agent: str = "up", **fields: Any) -> None:  # noqa: ANN401 - of the request
        await self.wait(await self.start(env, agent, **fields), "completed")

    async def wait(self, batch_id: str, status: str, n_done: int = 0) -> None:
        await self.node.wait_for_batch(self._connection, batch_id, status, n_done=n_done)

    async def cancel(self, batch_id: str) -> None:
        """Pause and cancel a batch, and wait for its end."""
        await self.request("pause", batch_id=batch_id)
        await self.request("cancel", batch_id=batch_id)
        await self.wait(batch_id, "cancelled")

    async def request(self, name: str, **fields: Any) -> Any:  # noqa: ANN401 - of any request
        return await self.node.request(self._connection, name, **fields)


@pytest.fixture
def gate() -> Iterator[StepGate]:
    with StepGate() as gate:
        yield gate


@pytest.fixture
async def user(tmp_path: Path, gate: StepGate) -> AsyncIterator[NodeUser]:
    """A node whose profile names a server of Maze and a stand-in for ARE."""
    port = free_port()
    server = f"agentgym-runner serve Maze --port {port}"
    maze = {"name": "Maze", "port": port, "transport": "http", "autostart": True, "server_cmd": server}
    envs = [maze, {"name": "HeldSteps"}, {"name": "EndlessSteps"}, {"name": "are:fine"}]
    are = {"python": str(write_program(tmp_path))}
    path = tmp_path / "profile.yaml"
    path.write_text(json.dumps({"id": "p", "are": are, "environments": {"lightweight": envs}}))
    environ = ENVIRON | worker_environ(tmp_path) | gate.environ
    async with running_node(tmp_path / "data", "--config", str(path), env=environ) as (node, connection):
        yield NodeUser(node, connection)


async def start_held(user: NodeUser, gate: StepGate) -> tuple[str, list[HeldStep]]:
    """Start a batch over two workers; return its id and the first step of each worker."""
    batch_id = await user.start("HeldSteps", repeat=N_EPISODES, workers=2, concurrency=2)
    steps = [await asyncio.to_thread(gate.next) for _ in range(2)]
    assert len({step.pid for step in steps}) == 2
    return batch_id, steps


async def test_a_stopped_broker_keeps_no_episode_and_no_event(user: NodeUser, gate: StepGate) -> None:
    batch_id, steps = await start_held(user, gate)
    data_dir = user.node.data_dir
    async with stopped(user.node.broker):
        gate.open()
        for step in steps:
            step.release()
        await wait_until(lambda: len(stored_episodes(data_dir, batch_id)) == N_EPISODES)
    events = episode_event_ids(data_dir, batch_id)
    async with subscribe_to_node(user.node) as recorder:  # over a new connection: the user's may have been given up
        await wait_until(lambda: events <= set(count_event_ids(recorder)))
        assert {count_event_ids(recorder)[event] for event in events} == {1}


async def test_a_stopped_worker_keeps_only_its_episode(user: NodeUser, gate: StepGate) -> None:
    batch_id, (held, other) = await start_held(user, gate)
    async with stopped(psutil.Process(held.pid)):
        gate.open()
        other.release()
        await user.wait(batch_id, "running", n_done=N_EPISODES - 1)
        await user.cancel(batch_id)
        await user.play("HeldSteps", repeat=2, workers=2, concurrency=2)


async def test_a_stopped_parent_of_workers_keeps_no_episode(user: NodeUser, gate: StepGate) -> None:
    batch_id, steps = await start_held(user, gate)
    server = psutil.Process(steps[0].pid).parent()
    assert server is not None
    async with stopped(server):
        gate.open()
        for step in steps:
            step.release()
        await user.wait(batch_id, "completed")
        await user.play("HeldSteps", repeat=2, workers=2, concurrency=2)
        await user.cancel(await user.start("EndlessSteps", workers=1))
        await wait_until(lambda: not server.is_running())  # it was replaced, and has no workers left


async def find_child(parent: int, word: str) -> psutil.Process:
    """Wait until a descendant has this word in its command; return the oldest one."""
    found: list[psutil.Process] = []

    def find() -> bool:
        with suppress(psutil.Error):
            found[:] = [each for each in psutil.Process(parent).children(recursive=True) if word in each.cmdline()]
        return bool(found)

    await wait_until(find)
    return found[0]


async def test_a_stopped_process_of_are_keeps_only_its_episodes(user: NodeUser, gate: StepGate) -> None:
    await user.play("are:fine", "oracle", workers=0)
    async with stopped(await find_child(user.node.pid, scripted_are_process.__file__)):
        held = await user.start("are:fine", "oracle", repeat=4, workers=0, concurrency=4)
        await user.wait(held, "running")
        await user.cancel(held)
        gate.open()
        await user.play("HeldSteps", repeat=2, workers=0, concurrency=2)
    await user.play("are:fine", "oracle", workers=0)


async def test_a_stopped_environment_server_keeps_only_its_episodes(user: NodeUser, gate: StepGate) -> None:
    await user.play("Maze", "oracle")
    held = await user.start("Maze", "oracle", repeat=1000)
    await user.wait(held, "running", n_done=1)
    async with stopped(await find_child(user.node.pid, "serve")):
        await user.cancel(held)
        gate.open()
        await user.play("HeldSteps", repeat=2, workers=2, concurrency=2)
    await user.play("Maze", "oracle")
