"""Delivery of the events of runs and nodes to external subscribers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from runner.events.subjects import BATCH_COMPLETED, DURABLE, EPISODE_COMPLETED, EVENTS_STREAM, FIELD_STATUS
from tests.support.command import run_agentgym
from tests.support.nats_server import Bus, NatsAccount, NatsServer
from tests.support.node_process import NodeProcess, running_node
from tests.support.publishing import nats_client
from tests.support.schemas import validate
from tests.support.subscriptions import collect_messages, retry_until_success

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MAZE = ("--run", "Maze", "--agent", "oracle")
BATTERY = ("--battery", "lightweight", "--agent", "oracle", "--json")


def durable_events(messages: list[Msg], subject: str) -> list[dict[str, Any]]:
    return [json.loads(message.data) for message in messages if message.subject == subject]


async def run_with_nats_url(folder: Path, bus: Bus, *options: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run_agentgym, folder, *options, environ={"NATS_URL": bus.url})


@pytest.mark.parametrize("jetstream", [False, True])
async def test_a_core_subscriber_receives_all_three_subjects(
    tmp_path: Path, core_nats_server: NatsServer, bus: NatsAccount, jetstream: bool
) -> None:
    used = bus if jetstream else core_nats_server
    async with nats_client(used) as client:
        messages = await collect_messages(client)
        run = await run_with_nats_url(tmp_path, used, *BATTERY)
        await client.flush()
    assert run.returncode == 0, run.stderr
    batches = {batch["batch_id"]: batch for batch in json.loads(run.stdout)["batches"]}
    completed = {event["batch_id"]: event for event in durable_events(messages, BATCH_COMPLETED)}
    assert completed.keys() == batches.keys()
    for batch_id, event in completed.items():
        assert (event["env"], event["success_rate"]) == (batches[batch_id]["env"], batches[batch_id]["success_rate"])
    assert len(durable_events(messages, EPISODE_COMPLETED)) == 4
    assert [event["status"] for event in durable_events(messages, FIELD_STATUS)] == ["running", "stopped"]
    assert any(message.subject.startswith("agentgym.live.timestep.v1.") for message in messages)
    for message in messages:
        validate(message.subject, message.data)
        if message.subject in DURABLE:
            assert message.headers is not None
            assert message.headers["ce-id"] == message.headers["Nats-Msg-Id"]
            assert message.headers["ce-type"] == message.subject


async def test_events_wait_for_the_next_node(tmp_path: Path) -> None:
    run = await asyncio.to_thread(run_agentgym, tmp_path, *MAZE, "--repeat", "3", "--json")
    (batch,) = json.loads(run.stdout)["batches"]
    expected = {f"episode:{episode['episode_id']}" for episode in batch["episodes"]} | {f"batch:{batch['batch_id']}"}
    async with running_node(tmp_path / "data") as (_, connection):
        js = connection.client.jetstream()
        await retry_until_success(lambda: js.stream_info(EVENTS_STREAM))  # a node answers before its stream exists
        subscription = await js.pull_subscribe("agentgym.>", stream=EVENTS_STREAM)
        ids: set[str] = set()
        async with asyncio.timeout(30):
            while not expected <= ids:
                messages = await subscription.fetch(10, timeout=5)
                ids |= {str((message.headers or {})["ce-id"]) for message in messages}


async def test_a_foreground_run_publishes_on_the_broker_of_the_running_node(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as (_, connection):
        messages = await collect_messages(connection.client)
        run = await asyncio.to_thread(run_agentgym, tmp_path, *MAZE, "--json")
        assert run.returncode == 0, run.stderr
        (batch,) = json.loads(run.stdout)["batches"]
        async with asyncio.timeout(20):
            while not (durable_events(messages, BATCH_COMPLETED) and _has_timesteps(messages)):
                await connection.client.flush()
    assert [event["batch_id"] for event in durable_events(messages, BATCH_COMPLETED)] == [batch["batch_id"]]


def _has_timesteps(messages: list[Msg]) -> bool:
    return any(message.subject.startswith("agentgym.live.timestep.") for message in messages)


async def test_a_run_with_an_egress_publishes_there_although_its_node_has_none(
    tmp_path: Path, core_nats_server: NatsServer
) -> None:
    with NodeProcess(tmp_path / "data"):
        async with nats_client(core_nats_server) as client:
            messages = await collect_messages(client)
            run = await run_with_nats_url(tmp_path, core_nats_server, *MAZE, "--json")
            await client.flush()
    assert run.returncode == 0, run.stderr
    (batch,) = json.loads(run.stdout)["batches"]
    assert [event["batch_id"] for event in durable_events(messages, BATCH_COMPLETED)] == [batch["batch_id"]]
    assert len(durable_events(messages, EPISODE_COMPLETED)) == len(batch["episodes"])
    assert "running" in [event["status"] for event in durable_events(messages, FIELD_STATUS)]


async def test_a_run_names_the_refusal_of_its_events_and_the_next_one_sends_them(tmp_path: Path) -> None:
    denied = {"user": "u", "password": "canary", "permissions": {"publish": {"deny": ["agentgym.>"]}}}
    with NatsServer(tmp_path / "server", config={"authorization": {"users": [denied]}}) as server:
        login = {"NATS_URL": server.url, "NATS_USER": "u", "NATS_PASSWORD": "canary"}
        run = await asyncio.to_thread(run_agentgym, tmp_path, *MAZE, environ=login)
        lines = run.stderr.splitlines()
        assert run.returncode == 0
        assert any("but events wait: it refuses events: not allowed to publish to" in line for line in lines)
        assert lines[-1].startswith("4 events of this run became dead letters: not allowed to publish to agentgym.")
        assert lines[-1].endswith("agentgym-runner outbox --retry all")
        server.config = {"authorization": {"users": [{"user": "u", "password": "canary"}]}}
        await asyncio.to_thread(server.restart)
        run = await asyncio.to_thread(run_agentgym, tmp_path, *MAZE, environ=login)
        assert "dead letters" not in run.stderr
    outbox = json.loads((await asyncio.to_thread(run_agentgym, tmp_path, "outbox", "--json", environ=login)).stdout)
    assert outbox["sinks"][f"egress {server.display_url}"] == {
        "configured": True,
        "pending": 0,
        "acked": 8,
        "dead": 0,
        "held": 0,
    }


async def test_an_unreachable_egress_does_not_affect_a_run_and_receives_its_events_later(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    nats_server.kill()
    run = await run_with_nats_url(tmp_path, nats_server, *MAZE, "--repeat", "2", "--json")
    assert run.returncode == 0, run.stderr
    assert "5 events not delivered yet" in run.stderr  # running, two episodes, the batch, stopped
    nats_server.start()
    async with nats_client(nats_server) as client:
        messages = await collect_messages(client)
        await run_with_nats_url(tmp_path, nats_server, "--run", "Wordle", "--agent", "oracle")
        await client.flush()
    first = {episode["episode_id"] for batch in json.loads(run.stdout)["batches"] for episode in batch["episodes"]}
    assert first <= {event["episode_id"] for event in durable_events(messages, EPISODE_COMPLETED)}
