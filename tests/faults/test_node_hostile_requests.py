"""Control requests with forged reply subjects, and floods of invalid requests, from other connections."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from ulid import ULID

from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection
from runner.bus.request_server import RefusalBudget
from runner.events.subjects import EPISODE_COMPLETED, EVENTS_STREAM, LIVE_STREAM
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ, running_node
from tests.support.raw_nats import RawNatsClient, publish_frame

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

HEALTH = b'{"id": "1", "op": "health"}'
N_REQUESTS = 20_000


async def replies_in_streams(client: Client) -> int:
    """Return the number of stored messages that are replies; wait until the node has created its streams."""
    n_replies = 0
    async with asyncio.timeout(30):
        for stream in (EVENTS_STREAM, LIVE_STREAM):
            last = await last_sequence(client, stream)
            for sequence in range(max(1, last - 200), last + 1):
                message = await client.jetstream().get_msg(stream, sequence)
                n_replies += b'"ok":' in (message.data or b"")
    return n_replies


async def last_sequence(client: Client, stream: str) -> int:
    while True:
        try:
            return (await client.jetstream().stream_info(stream)).state.last_seq
        except NotFoundError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "reply",
    [
        EPISODE_COMPLETED,
        "agentgym.field.status.v1",
        "agentgym.live.health.v1.n1",
        "agentgym.control.n1",
        "$JS.API.STREAM.PURGE.AGENTGYM_EVENTS",
        "inbox.mine",
        "_INBOX",
    ],
)
async def test_no_reply_and_no_effect_where_the_reply_subject_is_no_inbox(node: NodeProcess, reply: str) -> None:
    received: list[Msg] = []

    async def on_message(message: Msg) -> None:
        if b'"ok"' in message.data:
            received.append(message)

    async with await node.connect() as connection:
        assert await replies_in_streams(connection.client) == 0
        await connection.client.subscribe(reply, cb=on_message)
        batch_id = str(ULID())
        start = {"id": "1", "op": "start", "args": {"batch_id": batch_id, "envs": ["Maze"], "agent": "oracle"}}
        for payload in (HEALTH, b"garbage", json.dumps(start).encode()):
            await connection.client.publish("agentgym.control.n1", payload, reply=reply)
        listed = await node.request(connection, "list")  # is answered after the forged requests
        assert batch_id not in {batch["batch_id"] for batch in listed["batches"]}
        await connection.client.flush()
        assert received == []
        assert await replies_in_streams(connection.client) == 0


@pytest.mark.parametrize("prefix", [b"_INBOX", b"_INBOX_alice", b"_INBOX.alice"])
async def test_clients_with_private_inboxes_are_answered(node: NodeProcess, prefix: bytes) -> None:
    async with await node.connect() as connection:
        address = connection.address
        client = await nats.connect(
            address.url, user=address.user, password=address.password, inbox_prefix=prefix, connect_timeout=5
        )
        reply = await client.request("agentgym.control.n1", HEALTH, timeout=10)
        await client.close()
    assert json.loads(reply.data)["ok"]


async def test_requests_through_a_service_import_of_another_account_are_answered(tmp_path: Path) -> None:
    accounts = {
        "node": {"users": [{"user": "node", "password": "x"}], "exports": [{"service": "agentgym.control.>"}]},
        "other": {
            "users": [{"user": "other", "password": "x"}],
            "imports": [{"service": {"account": "node", "subject": "agentgym.control.>"}}],
        },
    }
    with NatsServer(tmp_path / "nats", jetstream=False, config={"accounts": accounts}) as server:
        environ = clean_environ(NATS_URL=f"nats://node:x@127.0.0.1:{server.port}")
        with NodeProcess(tmp_path / "data", env=environ):
            client = await nats.connect(f"nats://other:x@127.0.0.1:{server.port}", connect_timeout=5)
            async with asyncio.timeout(20):
                while True:
                    try:
                        reply = await client.request("agentgym.control.n1", HEALTH, timeout=5)
                        break
                    except nats.errors.NoRespondersError:  # the node has not connected to this broker yet
                        await asyncio.sleep(0.05)
            await client.close()
    assert json.loads(reply.data)["ok"]


FLOODS = {
    "text": b"\xff garbage",
    "unknown op": b'{"id": "g", "op": "dance"}',
    "unknown argument": b'{"id": "g", "op": "list", "args": {"x": 1}}',
    "duplicate key": b'{"id": "g", "op": "list", "op": "list"}',
    "valid": b'{"id": "g", "op": "list"}',
}


@pytest.mark.parametrize(
    ("payload", "reply"),
    [*((payload, "_INBOX.{:012d}") for payload in FLOODS.values())]
    + [(FLOODS["text"], reply) for reply in ("", "_INBOX.flood", "_INBOX.{:022d}")],
)
async def test_a_flood_of_requests_is_cut_off_and_others_are_answered(
    node: NodeProcess, payload: bytes, reply: str
) -> None:
    n_replies = 0

    async def count(message: Msg) -> None:
        nonlocal n_replies
        n_replies += 1

    async with await node.connect() as flood, await node.connect() as other:
        await flood.client.subscribe("_INBOX.>", cb=count)
        answers: list[bool] = []
        for number in range(N_REQUESTS):
            await flood.client.publish("agentgym.control.n1", payload, reply=reply.format(number))
            if number % 5000 == 0:
                await flood.client.flush()
                answers.append(await is_answered(node, other))
        await flood.client.flush()
        answers.append(await is_answered(node, other))
        answers.append(await is_answered(node, flood))
    assert answers == [True] * 6
    bound = 60 * RefusalBudget.TOTAL
    assert n_replies - len(answers) < bound + (N_REQUESTS // 4 if payload == FLOODS["valid"] else 0)


async def test_others_are_answered_at_once_while_invalid_requests_pretend_to_come_from_many_senders(
    node: NodeProcess,
) -> None:
    async with await node.connect() as other:
        flood = threading.Thread(target=send_from_many_senders, args=(other.address, FLOODS["duplicate key"]))
        flood.start()
        answers = [await is_answered(node, other) for _ in range(50)]  # the node reads the flood for about a second
        flood.join()
    assert all(answers)


def send_from_many_senders(address: BusAddress, payload: bytes) -> None:
    with RawNatsClient(address) as client:
        for first in range(0, N_REQUESTS, 100):
            inboxes = [f"_INBOX.{number:012d}" for number in range(first, first + 100)]
            client.send(b"".join(publish_frame("agentgym.control.n1", payload, inbox) for inbox in inboxes))
        client.flush()


async def is_answered(node: NodeProcess, connection: NatsConnection) -> bool:
    reply = await node.request_reply(connection, "health")
    return bool(reply["ok"])


async def test_a_sender_that_is_cut_off_is_answered_when_its_request_is_valid(node: NodeProcess) -> None:
    async with await node.connect() as connection:
        replies: list[bytes] = []

        async def on_reply(message: Msg) -> None:
            replies.append(message.data)

        inbox = connection.client.new_inbox()
        await connection.client.subscribe(inbox, cb=on_reply)
        async with asyncio.timeout(5):
            while not replies:  # an earlier flood may have used up the replies of this second
                for _ in range(1000):
                    await connection.client.publish("agentgym.control.n1", b"garbage", reply=inbox)
                assert await is_answered(node, connection)
        assert len(replies) < 500
        assert json.loads(replies[0])["error"]["code"] == "bad_request"


async def test_garbage_does_not_keep_an_idle_node_running(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", "--idle-exit", "2") as (node, connection):
        async with asyncio.timeout(60):
            while node.process is not None and node.process.poll() is None:
                if connection.connected:
                    await connection.client.publish("agentgym.control.n1", b"garbage")
                await asyncio.sleep(0.1)
        assert node.process is not None
        assert node.process.returncode == 0
