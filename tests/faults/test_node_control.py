"""Requests at awkward moments: while a batch is about to start, while the node drains, while its queue is locked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import nats.errors
import psutil
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from ulid import ULID

from runner.bus.address import address_from_environ
from runner.bus.connection import NatsConnection
from runner.config import Profile
from runner.node.health import HealthMonitor
from runner.node.node import Node
from runner.publish.live_publisher import LivePublisher
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ

pytestmark = pytest.mark.timeout(120)


async def test_a_cancel_right_after_the_start_always_counts(tmp_path: Path) -> None:
    heard: dict[str, list[str]] = {}

    async def take(message: Msg) -> None:
        event = json.loads(message.data)
        heard.setdefault(event["batch_id"], []).append(event["status"])

    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            await connection.client.subscribe("agentgym.eval.batch.completed.v1", cb=take)
            asked = [str(ULID()) for _ in range(8)]
            for batch_id in asked:
                await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=2000)
                await node.request(connection, "cancel", batch_id=batch_id)
            for batch_id in asked:
                batch = await node.wait_for_batch(connection, batch_id, "cancelled")
                assert batch["n_done"] < 2000
            async with asyncio.timeout(20):
                while set(heard) != set(asked):
                    await connection.client.flush()
    assert set(map(tuple, heard.values())) == {("cancelled",)}


@pytest.mark.long
async def test_a_second_request_to_stop_ends_a_drain(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        assert node.process is not None
        async with await node.connect() as connection:
            batch_id = str(ULID())
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=100_000)
            await node.wait_for_batch(connection, batch_id, "running", n_done=1)
            await node.request(connection, "shutdown", drain=True)
            refused = await node.request_reply(connection, "start", batch_id=str(ULID()), envs=["Maze"], agent="oracle")
            assert refused["error"]["code"] == "stopping"
            await node.wait_for_batch(connection, batch_id, "running", n_done=3)
        status, said = await asyncio.to_thread(node.terminate)
    assert status == 0, said


async def test_a_drained_node_has_played_everything(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        assert node.process is not None
        batch_id = str(ULID())
        async with await node.connect() as connection:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=12)
            await node.request(connection, "shutdown", drain=True)
        assert await asyncio.to_thread(node.process.wait, 60) == 0
    assert len(list((tmp_path / "data" / "runs" / batch_id).glob("*.json"))) == 12


@pytest.mark.long
async def test_a_locked_queue_is_waited_out(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            first, second = str(ULID()), str(ULID())
            await node.request(connection, "start", batch_id=first, envs=["BabyAI"], agent="oracle", repeat=300)
            await node.wait_for_batch(connection, first, "running", n_done=1)
            lock = sqlite3.connect(tmp_path / "data" / "queue.sqlite", isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            await node.request(connection, "cancel", batch_id=first)
            refused = await node.request_reply(connection, "start", batch_id=second, envs=["Maze"], agent="oracle")
            assert not refused["ok"]
            assert "batch queue cannot be used" in refused["error"]["message"]
            lock.rollback()
            lock.close()
            await node.wait_for_batch(connection, first, "cancelled", "interrupted")
            await node.request(connection, "start", batch_id=second, envs=["Maze"], agent="oracle")
            await node.wait_for_batch(connection, second, "completed")


async def test_a_broker_that_had_to_move_is_found_again(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        node_file = tmp_path / "data" / "node.json"
        before = json.loads(node_file.read_bytes())["url"]
        port = int(before.rpartition(":")[2])
        (broker,) = (child for child in psutil.Process(node.pid).children() if "nats-server" in child.name())
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            os.kill(broker.pid, signal.SIGSTOP)
            os.kill(broker.pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                while _taken(squatter, port) and json.loads(node_file.read_bytes())["url"] == before:
                    await asyncio.to_thread(time.sleep, 0.001)
                while json.loads(node_file.read_bytes())["url"] == before and not _answers(port):
                    await asyncio.to_thread(time.sleep, 0.02)
        async with await node.connect() as connection:
            assert (await node.request(connection, "health"))["node"] == node.name


async def test_who_comes_late_learns_at_once_how_the_node_is(tmp_path: Path) -> None:
    heard: list[str] = []

    async def take(message: Msg) -> None:
        heard.extend(item["kind"] for item in json.loads(message.data)["items"])

    profile = tmp_path / "odd.yaml"
    profile.write_text(json.dumps({"id": "odd", "environments": {"moderate": [{"name": "Maze"}, {"name": "Nowhere"}]}}))
    with NodeProcess(tmp_path / "data", "--config", str(profile)) as node:
        async with await node.connect() as connection:
            await connection.client.subscribe("agentgym.live.health.v1.n1", cb=take)
            items = (await node.request(connection, "health"))["items"]
            envs = {item["env"]: item["status"] for item in items if item["kind"] == "env.health"}
            assert envs["Maze"] == "embedded"
            assert envs["Nowhere"] == "down"
            (host,) = (item for item in items if item["kind"] == "host")
            assert 0 < host["ram"] <= 100
            async with asyncio.timeout(20):
                while "heartbeat" not in heard:  # noqa: ASYNC110 - from another process
                    await asyncio.sleep(0.05)


async def test_a_node_outlives_failures_beside_what_it_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In this process, so that its parts can be broken."""
    closed = iter(range(2))

    async def fail(self: HealthMonitor, live: LivePublisher) -> None:
        raise RuntimeError("no health")

    async def subscribe(self: Client, subject: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if subject.startswith("agentgym.control.") and next(closed, None) is not None:
            raise nats.errors.ConnectionClosedError
        return await working(self, subject, *args, **options)

    working = Client.subscribe
    monkeypatch.setattr("runner.node.shutdown.RETRY_S", 0.05)
    monkeypatch.setattr(Client, "subscribe", subscribe)
    monkeypatch.setattr(HealthMonitor, "run", fail)
    node = Node(Profile(id="p"), tmp_path / "data", "n1", egress=lambda: None)
    running = asyncio.create_task(node.run())
    async with asyncio.timeout(60):
        while not (tmp_path / "data" / "node.json").exists():
            assert not running.done(), running
            await asyncio.sleep(0.02)
        asked = NodeProcess(tmp_path / "data")
        async with await asked.connect() as connection:
            assert (await asked.request(connection, "health"))["items"] == []
        node.stop()
        await running
    assert "health monitor failed and restarts: RuntimeError: no health" in caplog.messages
    assert any(message.startswith("control requests failed and restarts: Conn") for message in caplog.messages)


def _taken(squatter: socket.socket, port: int) -> bool:
    try:
        squatter.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_elsewhere_a_node_says_that_it_lives_and_obeys_nobody(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "other") as other:
        env = clean_environ(NATS_URL=other.url)
        with NodeProcess(tmp_path / "data", env=env) as node:
            async with await NatsConnection.open(address_from_environ(other.url, {}), name="test") as connection:
                assert (await node.request(connection, "health"))["node"] == node.name
                refused = await node.request_reply(connection, "start", batch_id=str(ULID()), envs=["Maze"], agent="oracle")
                assert refused["error"]["code"] == "no_control"


async def test_commands_to_a_batch_that_is_not_played_are_refused(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            batch_id = str(ULID())
            await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle")
            await node.wait_for_batch(connection, batch_id, "completed")
            for op in ("pause", "resume", "step"):
                reply = await node.request_reply(connection, op, batch_id=batch_id)
                assert reply["error"]["code"] == "not_running", op
            twice = await node.request_reply(connection, "start", batch_id=str(ULID()), envs=["Maze", "maze"], agent="oracle")
            assert twice["error"]["code"] == "bad_request"
