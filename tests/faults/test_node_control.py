"""Control requests during a start, a drain, a lock of the queue, a restart of the broker and failures of services."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from ulid import ULID

from runner.bus.address import BusAddress, address_from_environ
from runner.bus.connection import NatsConnection
from runner.config import Profile
from runner.events.subjects import BATCH_COMPLETED, EPISODE_COMPLETED
from runner.node.health import HealthMonitor
from runner.node.node import Node
from runner.publish.live_publisher import LivePublisher
from tests.support.nats_server import NatsAccount
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import add_external_stream, event_ids, stored_messages

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


async def test_a_cancel_right_after_the_start_always_takes_effect(node: NodeProcess) -> None:
    statuses: dict[str, list[str]] = {}

    async def on_message(message: Msg) -> None:
        event = json.loads(message.data)
        statuses.setdefault(event["batch_id"], []).append(event["status"])

    async with await node.connect() as connection:
        await connection.client.subscribe("agentgym.eval.batch.completed.v1", cb=on_message)
        batch_ids = [str(ULID()) for _ in range(8)]
        for batch_id in batch_ids:
            await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=2000)
            await node.request(connection, "cancel", batch_id=batch_id)
        for batch_id in batch_ids:
            batch = await node.wait_for_batch(connection, batch_id, "cancelled")
            assert batch["n_done"] < 2000
        async with asyncio.timeout(20):
            while not set(statuses) >= set(batch_ids):  # other tests use this node, too
                await connection.client.flush()
    assert [statuses[batch_id] for batch_id in batch_ids] == [["cancelled"]] * 8


async def test_a_second_request_to_stop_ends_a_drain(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        assert node.process is not None
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "BabyAI", repeat=100_000)
            await node.wait_for_batch(connection, batch_id, "running", n_done=1)
            await node.request(connection, "shutdown", drain=True)
            rejected = await node.request_reply(
                connection, "start", batch_id=str(ULID()), envs=["Maze"], agent="oracle"
            )
            assert rejected["error"]["code"] == "stopping"
            await node.wait_for_batch(connection, batch_id, "running", n_done=3)
        status, errors = await asyncio.to_thread(node.terminate)
    assert status == 0, errors


async def test_a_drained_node_has_played_all_episodes(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        assert node.process is not None
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "BabyAI", repeat=12)
            await node.request(connection, "shutdown", drain=True)
        assert await asyncio.to_thread(node.process.wait, 60) == 0
    assert len(list((tmp_path / "data" / "runs" / batch_id).glob("*.json"))) == 12


async def test_a_broker_that_restarts_on_another_port_is_found(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        node_file = tmp_path / "data" / "node.json"
        before = json.loads(node_file.read_bytes())["url"]
        port = int(before.rpartition(":")[2])
        broker = node.broker
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            broker.suspend()
            broker.kill()
            async with asyncio.timeout(30):
                while _is_taken(squatter, port) and json.loads(node_file.read_bytes())["url"] == before:
                    await asyncio.to_thread(time.sleep, 0.001)
                while json.loads(node_file.read_bytes())["url"] == before and not _accepts_connections(port):
                    await asyncio.to_thread(time.sleep, 0.02)
        async with await node.connect() as connection:
            assert (await node.request(connection, "health"))["node"] == node.name


async def test_a_new_external_broker_gets_what_ended_before_once_and_only_on_request(
    tmp_path: Path, bus: NatsAccount
) -> None:
    await add_external_stream(bus, subjects=[EPISODE_COMPLETED, BATCH_COMPLETED])
    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            batch_id = await node.start_batch(connection, "Maze", repeat=3)
            await node.wait_for_batch(connection, batch_id, "completed")
            rejected = await node.request_reply(connection, "send_history")
            assert rejected["error"]["code"] == "no_egress" and "NATS_URL" in rejected["error"]["hint"]
            assert (await node.request(connection, "health"))["n_held"] == 0
        await asyncio.to_thread(node.terminate)
    files = (tmp_path / "data" / "runs" / batch_id).glob("*.json")
    ended = Counter([f"batch:{batch_id}", *(f"episode:{file.stem}" for file in files)])

    async def stored(awaited: Counter[str]) -> Counter[str]:
        async with asyncio.timeout(30):
            while not awaited <= (ids := Counter(event_ids(await stored_messages(bus, "THEIRS")))):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return ids

    with NodeProcess(tmp_path / "data", env=clean_environ(NATS_URL=bus.url)) as node:
        async with await node.connect() as connection:
            health = await node.request(connection, "health")
            assert (health["egress"], health["n_held"]) == (bus.display_url, 4)
            later = await node.start_batch(connection, "Maze")
            assert not await stored(Counter([f"batch:{later}"])) & ended
            async with await NatsConnection.open(BusAddress(bus.url), name="test") as outside:
                assert (await node.request_reply(outside, "send_history"))["error"]["code"] == "no_control"
            assert [await node.request(connection, "send_history") for _ in range(2)] == [{"n": 4}, {"n": 0}]
            assert (await node.request(connection, "health"))["n_held"] == 0
            await stored(ended)
        await asyncio.to_thread(node.terminate)
    assert {*(await stored(ended)).values()} == {1}


async def test_a_node_restarts_failed_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures_left = iter(range(2))

    async def fail(self: HealthMonitor, live: LivePublisher) -> None:
        raise RuntimeError("no health")

    async def subscribe(self: Client, subject: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if subject.startswith("agentgym.control.") and next(failures_left, None) is not None:
            raise nats.errors.ConnectionClosedError
        return await subscribe_to_subject(self, subject, *args, **options)

    subscribe_to_subject = Client.subscribe
    monkeypatch.setattr(Client, "subscribe", subscribe)
    monkeypatch.setattr(HealthMonitor, "run", fail)
    node = Node(Profile(id="p"), tmp_path / "data", "n1", egress=lambda: None, retry_s=0.05)
    running = asyncio.create_task(node.run())
    async with asyncio.timeout(60):
        while not (tmp_path / "data" / "node.json").exists():
            assert not running.done(), running
            await asyncio.sleep(0.02)
        requester = NodeProcess(tmp_path / "data")
        async with await requester.connect() as connection:
            assert (await requester.request(connection, "health"))["items"] == []
        node.stop()
        await running
    assert "health monitor failed and restarts: RuntimeError: no health" in caplog.messages
    assert any(message.startswith("control server failed and restarts: Conn") for message in caplog.messages)


def _is_taken(squatter: socket.socket, port: int) -> bool:
    try:
        squatter.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False


def _accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_on_the_egress_broker_a_node_answers_health_but_rejects_commands(
    tmp_path: Path, bus: NatsAccount
) -> None:
    with NodeProcess(tmp_path / "data", env=clean_environ(NATS_URL=bus.url)) as node:
        async with await NatsConnection.open(address_from_environ(bus.url, {}), name="test") as connection:
            assert (await node.request(connection, "health"))["node"] == node.name
            rejected = await node.request_reply(
                connection, "start", batch_id=str(ULID()), envs=["Maze"], agent="oracle"
            )
            assert rejected["error"]["code"] == "no_control"


async def test_a_request_exceeds_the_profiles_limits_only_if_it_allows_that(node: NodeProcess) -> None:
    async with await node.connect() as connection:
        longer: dict[str, Any] = {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle", "max_rounds": 16}
        error = (await node.request_reply(connection, "start", **longer))["error"]
        assert "max_rounds is 16, above the limit 15 of the profile" in error["message"]
        assert "set max_rounds of episode or of the environment there, or give --allow-longer" in error["message"]
        await node.request(connection, "start", **longer, allow_longer=True)
        await node.wait_for_batch(connection, longer["batch_id"], "completed")


async def test_the_tasks_of_a_request_are_played_in_their_order(node: NodeProcess) -> None:
    async with await node.connect() as connection:
        chosen: dict[str, Any] = {
            "batch_id": str(ULID()),
            "envs": ["Maze"],
            "agent": "oracle",
            "tasks": {"maze": [7, 2, 20]},
        }
        await node.request(connection, "start", **chosen)
        await node.wait_for_batch(connection, chosen["batch_id"], "completed")
        files = sorted((node.data_dir / "runs" / chosen["batch_id"]).glob("*.json"))
        assert [json.loads(file.read_bytes())["task_index"] for file in files] == [7, 2, 20]
        await node.request(connection, "start", **chosen)  # once more, which has no effect
        error = (await node.request_reply(connection, "start", **chosen | {"tasks": {"maze": [7, 2]}}))["error"]
        assert "already exists and differs in tasks" in error["message"]
        missing = {**chosen, "batch_id": str(ULID()), "envs": ["Maze", "Wordle"]}
        error = (await node.request_reply(connection, "start", **missing))["error"]
        assert "tasks has no tasks of 'Wordle'" in error["message"]
