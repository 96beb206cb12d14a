"""What a run or a node says reaches other people's tools, sooner or later."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.events.subjects import BATCH_COMPLETED, DURABLE, EPISODE_COMPLETED, FIELD_STATUS
from tests.support.nats_server import NatsServer
from tests.support.node_process import COMMAND, NodeProcess, clean_environ
from tests.support.schemas import validate
from tests.support.subscriptions import retry_until_success

pytestmark = pytest.mark.timeout(120)

BATTERY = ("--battery", "lightweight", "--agent", "oracle", "--json")


async def command(*options: str, env: Mapping[str, str], cwd: Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        COMMAND, *options, env=dict(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def subscriber(url: str, heard: list[Msg]) -> Client:
    """Somebody else's plain listener."""

    async def take(message: Msg) -> None:
        heard.append(message)

    client = Client()
    await client.connect(url)
    await client.subscribe("agentgym.>", cb=take)
    await client.flush()
    return client


def durable(heard: list[Msg], subject: str) -> list[dict[str, Any]]:
    return [json.loads(message.data) for message in heard if message.subject == subject]


@pytest.mark.parametrize("jetstream", [False, True])
async def test_a_plain_subscriber_on_a_plain_server_hears_all_three_subjects(tmp_path: Path, jetstream: bool) -> None:
    heard: list[Msg] = []
    with NatsServer(tmp_path / "nats", jetstream=jetstream) as server:
        client = await subscriber(server.url, heard)
        status, out, err = await command(*BATTERY, env=clean_environ(NATS_URL=server.url), cwd=tmp_path)
        await client.flush()
        await client.close()
    assert status == 0, err
    batches = {batch["batch_id"]: batch for batch in json.loads(out)["batches"]}
    completed = {event["batch_id"]: event for event in durable(heard, BATCH_COMPLETED)}
    assert completed.keys() == batches.keys()
    for batch_id, event in completed.items():
        assert (event["env"], event["success_rate"]) == (batches[batch_id]["env"], batches[batch_id]["success_rate"])
    assert len(durable(heard, EPISODE_COMPLETED)) == 4
    assert [event["status"] for event in durable(heard, FIELD_STATUS)] == ["running", "stopped"]
    assert any(message.subject.startswith("agentgym.live.timestep.v1.") for message in heard)
    for message in heard:
        validate(message.subject, message.data)
        if message.subject in DURABLE:
            assert message.headers is not None
            assert message.headers["ce-id"] == message.headers["Nats-Msg-Id"]
            assert message.headers["ce-type"] == message.subject


async def test_events_wait_for_the_next_node(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    _, out, _ = await command(
        "--run", "Maze", "--agent", "oracle", "--repeat", "3", "--json", env=clean_environ(), cwd=tmp_path
    )
    (batch,) = json.loads(out)["batches"]
    with NodeProcess(data_dir) as node:
        async with await node.connect() as connection:
            js = connection.client.jetstream()
            await retry_until_success(lambda: js.stream_info("AGENTGYM_EVENTS"))  # it is made after the node has begun to answer
            subscription = await js.pull_subscribe("agentgym.>", stream="AGENTGYM_EVENTS")
            ids: set[str] = set()
            wanted = {f"episode:{episode['episode_id']}" for episode in batch["episodes"]} | {
                f"batch:{batch['batch_id']}"
            }
            async with asyncio.timeout(30):
                while not wanted <= ids:
                    ids |= {
                        str((message.headers or {})["ce-id"]) for message in await subscription.fetch(10, timeout=5)
                    }


@pytest.mark.long
async def test_a_foreground_run_is_heard_on_the_running_nodes_broker(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        async with await node.connect() as connection:
            heard: list[Msg] = []
            await subscriber_on(connection.client, heard)
            status, out, err = await command(
                "--run", "Maze", "--agent", "oracle", "--json", env=clean_environ(), cwd=tmp_path
            )
            assert status == 0, err
            (batch,) = json.loads(out)["batches"]
            async with asyncio.timeout(20):
                while not (durable(heard, BATCH_COMPLETED) and _live(heard, "timestep")):
                    await connection.client.flush()
    assert [event["batch_id"] for event in durable(heard, BATCH_COMPLETED)] == [batch["batch_id"]]


@pytest.mark.long
async def test_a_node_without_an_egress_leaves_it_to_a_run_that_has_one(tmp_path: Path) -> None:
    heard: list[Msg] = []
    with NatsServer(tmp_path / "nats", jetstream=False) as server, NodeProcess(tmp_path / "data"):
        client = await subscriber(server.url, heard)
        status, out, err = await command(
            "--run", "Maze", "--agent", "oracle", "--json", env=clean_environ(NATS_URL=server.url), cwd=tmp_path
        )
        await client.flush()
        await client.close()
    assert status == 0, err
    (batch,) = json.loads(out)["batches"]
    assert [event["batch_id"] for event in durable(heard, BATCH_COMPLETED)] == [batch["batch_id"]]
    assert len(durable(heard, EPISODE_COMPLETED)) == len(batch["episodes"])
    assert "running" in [event["status"] for event in durable(heard, FIELD_STATUS)]


async def subscriber_on(client: Client, heard: list[Msg]) -> None:
    async def take(message: Msg) -> None:
        heard.append(message)

    await client.subscribe("agentgym.>", cb=take)
    await client.flush()


def _live(heard: list[Msg], channel: str) -> list[Msg]:
    return [message for message in heard if message.subject.startswith(f"agentgym.live.{channel}.")]


@pytest.mark.long
async def test_an_unreachable_egress_neither_stops_nor_slows_a_run_and_gets_everything_later(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    with server:
        pass
    env = clean_environ(NATS_URL=server.url)
    status, out, err = await command(
        "--run", "Maze", "--agent", "oracle", "--repeat", "2", "--json", env=env, cwd=tmp_path
    )
    assert status == 0, err
    assert "5 events are not delivered yet" in err  # running, two episodes, the batch, stopped
    heard: list[Msg] = []
    with server:
        client = await subscriber(server.url, heard)
        await command("--run", "Wordle", "--agent", "oracle", env=env, cwd=tmp_path)
        await client.flush()
        await client.close()
    first = {episode["episode_id"] for batch in json.loads(out)["batches"] for episode in batch["episodes"]}
    assert first <= {event["episode_id"] for event in durable(heard, EPISODE_COMPLETED)}
