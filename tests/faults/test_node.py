"""The node as a process: batches, kills, stops and restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.config import Profile
from runner.node.batch_player import BatchPlayer
from runner.node.batch_queue import derived_batch_id
from runner.node.node import Node, publish_remaining, stop_batches
from runner.publish.publisher import Publisher, Sink
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.node_events import collect_into, wait_until
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import nats_client, open_outbox, outbox_event

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

STOP_TIMEOUT_S = 14.0


async def test_a_requested_batch_is_played_and_published_once(node: NodeProcess) -> None:
    async with await node.connect() as connection:
        received: list[Msg] = []
        await connection.client.subscribe("agentgym.>", cb=collect_into(received))
        batch_id = str(ULID())
        for _ in range(2):  # idempotent by batch_id
            (started,) = await node.request(
                connection, "start", batch_id=batch_id, envs=["maze"], agent="oracle", repeat=3
            )
            assert started["batch_id"] == batch_id
        await node.wait_for_batch(connection, batch_id, "completed", n_done=3)
        await wait_until(lambda: len(event_ids(received, "agentgym.eval.batch.completed.v1")) == 1)
        assert len(event_ids(received, "agentgym.episode.completed.v1")) == 3
        assert event_ids(received, "agentgym.eval.batch.completed.v1") == [f"batch:{batch_id}"]
        await wait_until(lambda: {"episode", "timestep", "batch"} <= channels(received))


async def test_pause_resume_and_cancel_apply_to_the_running_batch(node: NodeProcess) -> None:
    async with await node.connect() as connection:
        batch_id = await node.start_batch(connection, "BabyAI", repeat=5000)
        await node.wait_for_batch(connection, batch_id, "running", n_done=1)
        await node.request(connection, "pause", batch_id=batch_id)
        await node.wait_for_batch(connection, batch_id, "paused")
        await node.request(connection, "resume", batch_id=batch_id)
        before = await node.wait_for_batch(connection, batch_id, "running")
        await node.wait_for_batch(connection, batch_id, "running", n_done=before["n_done"] + 1)
        await node.request(connection, "cancel", batch_id=batch_id)
        await node.wait_for_batch(connection, batch_id, "cancelled")


async def test_a_battery_is_one_batch_per_environment(node: NodeProcess) -> None:
    async with await node.connect() as connection:
        battery_id = str(ULID())
        received: list[Msg] = []
        await connection.client.subscribe("agentgym.eval.battery.completed.v1", cb=collect_into(received))
        started = await node.request(connection, "start", batch_id=battery_id, envs=["Maze", "Wordle"], agent="oracle")
        assert [batch["battery_id"] for batch in started] == [battery_id] * 2
        assert [batch["batch_id"] for batch in started] == [
            derived_batch_id(battery_id, "Maze"),
            derived_batch_id(battery_id, "Wordle"),
        ]
        for batch in started:
            await node.wait_for_batch(connection, batch["batch_id"], "completed")
        await wait_until(lambda: bool(received))
        other_id = str(ULID())
        plan = {"envs": ["BabyAI", "Maze"], "agent": "oracle", "repeat": 2000}
        running, waiting = await node.request(connection, "start", batch_id=other_id, **plan)
        await node.request(connection, "cancel", batch_id=running["batch_id"])
        await node.wait_for_batch(connection, running["batch_id"], "cancelled")
        await node.request(connection, "cancel", batch_id=waiting["batch_id"])
        await wait_until(lambda: len(received) == 2)
        ends: list[Msg] = []
        await connection.client.subscribe("agentgym.eval.*.completed.v1", cb=collect_into(ends))
        last_id, plan = str(ULID()), {"envs": ["BabyAI", "Maze"], "agent": "oracle", "repeat": 2000, "concurrency": 8}
        running, _ = await node.request(connection, "start", batch_id=last_id, **plan)
        await node.wait_for_batch(connection, running["batch_id"], "running", n_done=1)
        await node.request(connection, "cancel", batch_id=last_id)
        await wait_until(lambda: len(ends) == len(received) == 3)
    assert ends[-1].subject == "agentgym.eval.battery.completed.v1"
    *batches, battery = (json.loads(message.data) for message in ends)
    assert battery["n_episodes"] == sum(batch["n_episodes"] for batch in batches)
    completed, cancelled, _ = (json.loads(message.data) for message in received)
    assert completed == {
        "battery_id": battery_id,
        "batches": [batch["batch_id"] for batch in started],
        "environments": ["Maze", "Wordle"],
        "n_cancelled": 0,
        "n_episodes": 2,
        "mean_reward": 1.0,
        "models": [],
        "node": node.name,
    }
    assert cancelled["battery_id"] == other_id


async def test_sigterm_interrupts_the_batch_publishes_stopped_and_exits_0(tmp_path: Path, bus: NatsAccount) -> None:
    data_dir, batch_id = tmp_path / "data", str(ULID())
    received: list[Msg] = []
    async with nats_client(bus) as client:
        await client.subscribe("agentgym.field.status.v1", cb=collect_into(received))
        with NodeProcess(data_dir, env=clean_environ(NATS_URL=bus.url)) as node:
            async with await node.connect() as connection:
                await node.request(connection, "start", batch_id=batch_id, envs=["BabyAI"], agent="oracle", repeat=5000)
                await node.wait_for_batch(connection, batch_id, "running", n_done=1)
            url = json.loads((data_dir / "node.json").read_text())["url"]
            status, errors = await asyncio.to_thread(node.terminate)
        await wait_until(lambda: any(json.loads(message.data)["status"] == "stopped" for message in received))
    assert status == 0, errors
    assert f"node: n1, pid {node.pid}, serves {data_dir} at {url}\n" in errors
    assert list((data_dir / "runs" / batch_id).glob("*.journal.jsonl")) == []


async def test_a_stopping_node_does_not_wait_for_a_paused_broker(tmp_path: Path, nats_server: NatsServer) -> None:
    with NodeProcess(tmp_path / "data", env=clean_environ(NATS_URL=nats_server.url)) as node:
        async with await node.connect() as connection:
            nats_server.pause()
            batch_id = await node.start_batch(connection, "Maze")
            await node.wait_for_batch(connection, batch_id, "completed")
        async with asyncio.timeout(STOP_TIMEOUT_S):  # less than the node waits for a broker that accepts events
            status, errors = await asyncio.to_thread(node.terminate)
    assert status == 0, errors


@pytest.mark.parametrize(
    ("interrupted", "timeouts"),
    [(True, {}), (False, {"timeout_s": 600.0, "stall_timeout_s": 0.1})],
    ids=["interrupted", "stalled"],
)
async def test_publishing_the_remaining_events_ends_when_interrupted_or_stalled(
    tmp_path: Path, interrupted: bool, timeouts: dict[str, float]
) -> None:
    immediate = asyncio.Event()
    if interrupted:
        immediate.set()
    with open_outbox(tmp_path) as outbox:
        outbox.add(outbox_event(1))
        publisher = Publisher(outbox, [Sink("local", lambda: None)])  # it does not run, so nothing is delivered
        async with asyncio.timeout(30):
            await publish_remaining(publisher, immediate, **timeouts)
        assert outbox.n_pending(["local"])


async def test_a_second_signal_abandons_the_running_batch(tmp_path: Path) -> None:
    class EndlessBatchRunner:
        stopping = False

        def stop(self) -> None:
            self.stopping = True
            node.interrupt()

        def join(self, timeout_s: float | None) -> bool:
            return False

    node = Node(Profile(id="p"), tmp_path / "data", "n1", egress=lambda: None)
    node.interrupt()
    immediate = node._immediate
    assert not immediate.is_set()
    async with asyncio.timeout(10):
        await stop_batches(cast("BatchPlayer", EndlessBatchRunner()), lambda: False, immediate)


def channels(messages: list[Msg]) -> set[str]:
    return {message.subject.split(".")[2] for message in messages if message.subject.startswith("agentgym.live.")}


def event_ids(messages: list[Msg], subject: str) -> list[str]:
    return [str((message.headers or {}).get("ce-id")) for message in messages if message.subject == subject]
