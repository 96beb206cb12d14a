from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from agentgym_tui.sessions.episode_files import episode_from_bytes
from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection
from runner.client.node_client import ControlRequestError, NodeClient
from runner.events.control import StartArgs
from runner.events.subjects import control_subject
from tests.support.episodes import new_id
from tests.support.nats_server import Bus
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("state")) as node:
        yield node


@asynccontextmanager
async def node_control(node: NodeProcess, **options: Any) -> AsyncIterator[NodeClient]:  # noqa: ANN401
    async with await node.connect() as connection:
        yield NodeClient(lambda: connection, lambda _: node.name, **options)


@asynccontextmanager
async def fake_node(bus: Bus, respond: Callable[[dict[str, Any]], bytes]) -> AsyncIterator[NodeClient]:
    """A control client of a node that replies with ``respond``."""

    async def on_request(message: Msg) -> None:
        await message.respond(respond(json.loads(message.data)))

    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        await connection.client.subscribe(control_subject("n1"), cb=on_request)
        await connection.client.flush()
        yield NodeClient(lambda: connection, lambda _: "n1")


def ok(request: dict[str, Any], result: object) -> bytes:
    return json.dumps({"id": request["id"], "ok": True, "result": result}).encode()


async def wait_for_batch(control: NodeClient, batch_id: str) -> None:
    async with asyncio.timeout(60):
        while next(b for b in (await control.fetch_list()).batches if b.batch_id == batch_id).status != "completed":  # noqa: ASYNC110 - the node is another process
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("op", "n_sent"), [("list", 2), ("step", 1)])
async def test_a_lost_request_is_sent_again_if_it_has_no_effect_twice(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, op: str, n_sent: int
) -> None:
    monkeypatch.setattr("runner.client.node_client.REPEAT_S", 0.1)
    received: list[dict[str, Any]] = []

    async def on_request(message: Msg) -> None:
        received.append(json.loads(message.data))
        if len(received) == 2:
            await message.respond(ok(received[1], {"batches": [], "envs": [], "agents": [], "models": []}))

    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        await connection.client.subscribe(control_subject("n1"), cb=on_request)
        await connection.client.flush()
        control = NodeClient(lambda: connection, lambda _: "n1", timeout_s=20 if op == "list" else 0.5)
        if op == "list":
            assert (await control.fetch_list()).batches == []
        else:
            with pytest.raises(ControlRequestError, match="did not answer"):
                await control.command("step", episode_id=new_id())
    assert [request["op"] for request in received] == [op] * n_sent
    assert len({request["id"] for request in received}) == 1


@pytest.mark.long
async def test_a_batch_is_started_and_its_episode_fetched(node: NodeProcess) -> None:
    commands: list[None] = []
    async with node_control(node, on_command=lambda: commands.append(None)) as control:
        batch_id = new_id()
        [batch] = await control.start(StartArgs(batch_id=batch_id, envs=["Wordle"], agent="oracle"))
        assert (batch.batch_id, batch.env, len(commands)) == (batch_id, "Wordle", 1)
        await wait_for_batch(control, batch_id)
        [file] = (node.data_dir / "runs" / batch_id).glob("*.json")
        data = await control.fetch_episode(file.stem)
        assert data == file.read_bytes()
        assert episode_from_bytes(data, file).env == "Wordle"
        assert (await control.fetch_health()).node == node.name
        with pytest.raises(ControlRequestError, match="cancel: it has ended") as late:
            await control.command("cancel", batch_id=batch_id)
        assert (batch_id in str(late.value), late.value.hint) == (False, "")


@pytest.mark.long
async def test_a_rejected_request_raises_its_reason_and_hint(node: NodeProcess, tmp_path: Path) -> None:
    async with node_control(node) as control:
        with pytest.raises(ControlRequestError, match="pause: ") as rejected:
            await control.command("pause", batch_id=new_id())
        with pytest.raises(ControlRequestError, match=r"start: .*ULID"):
            await control.start(StartArgs(batch_id="x", envs=["Wordle"]))
        with pytest.raises(ControlRequestError, match=r"episode: .*no episode"):
            await control.fetch_episode(new_id())
        with pytest.raises(ControlRequestError):
            await control.fetch_episode(f"../../{tmp_path.name}")
    assert isinstance(rejected.value.hint, str)
    async with node_control(node, read_only="watching only") as control:
        with pytest.raises(ControlRequestError, match="watching only"):
            await control.start(StartArgs(batch_id=new_id(), envs=["Wordle"]))
        with pytest.raises(ControlRequestError, match="watching only"):
            await control.command("cancel", batch_id=new_id())
        assert (await control.fetch_list()).envs


async def test_a_missing_connection_or_node_or_reply_is_reported(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.client.node_client.RETRY_INTERVAL_S", 0.01)
    with pytest.raises(ControlRequestError, match="not connected"):
        await NodeClient(lambda: None, lambda _: "n1").fetch_list()
    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        with pytest.raises(ControlRequestError, match="node missing does not answer"):
            await NodeClient(lambda: connection, lambda _: "missing").fetch_list()
        await connection.client.subscribe(control_subject("n1"))
        await connection.client.flush()
        with pytest.raises(ControlRequestError, match="did not answer"):
            await NodeClient(lambda: connection, lambda _: "n1", timeout_s=0.2).fetch_list()


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "x" * 65, "\r\nPUB x 0\r\n"])
async def test_an_invalid_node_name_is_rejected(bus: Bus, name: str) -> None:
    async with await NatsConnection.open(BusAddress(bus.url), name="test") as connection:
        with pytest.raises(ControlRequestError, match="not a valid node name"):
            await NodeClient(lambda: connection, lambda _: name).fetch_list()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": "another", "ok": true, "result": {}}',
        b'{"ok": true}',
        b"null",
        b" " * (900 << 10) + b"{}",
    ],
)
async def test_an_invalid_reply_is_rejected(bus: Bus, reply: bytes) -> None:
    async with fake_node(bus, lambda _: reply) as control:
        with pytest.raises(ControlRequestError, match=r"list: the node (sent|replied)"):
            await control.fetch_list()
    async with fake_node(bus, lambda request: ok(request, {"batches": 1})) as control:
        with pytest.raises(ControlRequestError, match="unreadable"):
            await control.fetch_list()


def chunked(file: bytes, size: int, **overrides: object) -> Callable[[dict[str, Any]], bytes]:
    def respond(request: dict[str, Any]) -> bytes:
        offset = request["args"]["offset"]
        part = base64.b64encode(file[offset : offset + size]).decode()
        fields = {"total": len(file), "sha256": hashlib.sha256(file).hexdigest(), "data": part}
        return ok(request, {**fields, **overrides})

    return respond


async def test_a_large_episode_is_fetched_in_chunks(bus: Bus) -> None:
    data = bytes(range(256)) * 4_000
    async with fake_node(bus, chunked(data, 100_000)) as control:
        assert await control.fetch_episode(new_id()) == data


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"sha256": "0" * 64}, "keeps changing"),
        ({"total": (64 << 20) + 1}, "the limit is"),
        ({"total": -1}, "keeps changing"),
        ({"data": ""}, "keeps changing"),
        ({"total": 3}, "keeps changing"),
    ],
)
async def test_a_file_that_does_not_match_its_digest_is_rejected(
    bus: Bus, overrides: dict[str, object], reason: str
) -> None:
    async with fake_node(bus, chunked(b"0123456789", 4, **overrides)) as control:
        with pytest.raises(ControlRequestError, match=reason):
            await control.fetch_episode(new_id())


async def test_a_file_that_changes_during_the_fetch_is_fetched_again(bus: Bus) -> None:
    versions = [chunked(b"first version", 4), *[chunked(b"second version!", 4)] * 10]
    async with fake_node(bus, lambda request: versions.pop(0)(request)) as control:
        assert await control.fetch_episode(new_id()) == b"second version!"
