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

from agentgym_tui.sessions import control_client
from agentgym_tui.sessions.control_client import NodeControl
from agentgym_tui.sessions.episode_library import episode_from_bytes
from agentgym_tui.sessions.protocols import ControlRequestError
from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection
from runner.events.control import StartArgs
from runner.events.subjects import control_subject
from tests.support.episodes import new_id
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), jetstream=False) as server:
        yield server


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("state")) as node:
        yield node


@asynccontextmanager
async def asking(node: NodeProcess, **options: Any) -> AsyncIterator[NodeControl]:  # noqa: ANN401
    async with await node.connect() as connection:
        yield NodeControl(lambda: connection, lambda _: node.name, **options)


@asynccontextmanager
async def answered_by(server: NatsServer, answer: Callable[[dict[str, Any]], bytes]) -> AsyncIterator[NodeControl]:
    """A control whose node is an impostor."""

    async def reply(message: Msg) -> None:
        await message.respond(answer(json.loads(message.data)))

    async with await NatsConnection.open(BusAddress(server.url), name="test") as connection:
        await connection.client.subscribe(control_subject("n1"), cb=reply)
        await connection.client.flush()
        yield NodeControl(lambda: connection, lambda _: "n1")


def ok(request: dict[str, Any], result: object) -> bytes:
    return json.dumps({"id": request["id"], "ok": True, "result": result}).encode()


async def played(control: NodeControl, batch_id: str) -> None:
    async with asyncio.timeout(60):
        while next(b for b in (await control.fetch_list()).batches if b.batch_id == batch_id).status != "completed":  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.02)


async def test_a_batch_is_started_and_its_episode_fetched(node: NodeProcess) -> None:
    orders: list[None] = []
    async with asking(node, on_command=lambda: orders.append(None)) as control:
        batch_id = new_id()
        [batch] = await control.start(StartArgs(batch_id=batch_id, envs=["Wordle"], agent="oracle"))
        assert (batch.batch_id, batch.env, len(orders)) == (batch_id, "Wordle", 1)
        await played(control, batch_id)
        [file] = (node.data_dir / "runs" / batch_id).glob("*.json")
        data = await control.fetch_episode(file.stem)
        assert data == file.read_bytes()
        assert episode_from_bytes(data, file).env == "Wordle"
        assert (await control.fetch_health()).node == node.name
        with pytest.raises(ControlRequestError, match="cancel: not running") as late:
            await control.command("cancel", batch_id=batch_id)
        assert (batch_id in str(late.value), late.value.hint) == (False, "")


async def test_a_refusal_says_why_and_what_to_do(node: NodeProcess) -> None:
    async with asking(node) as control:
        with pytest.raises(ControlRequestError, match="pause: ") as refused:
            await control.command("pause", batch_id=new_id())
        with pytest.raises(ControlRequestError, match=r"start: .*ULID"):
            await control.start(StartArgs(batch_id="x", envs=["Wordle"]))
        with pytest.raises(ControlRequestError, match=r"episode: .*no episode"):
            await control.fetch_episode(new_id())
    assert isinstance(refused.value.hint, str)


async def test_a_watcher_asks_for_episodes_only(node: NodeProcess) -> None:
    async with asking(node, read_only="watching only") as control:
        with pytest.raises(ControlRequestError, match="watching only"):
            await control.start(StartArgs(batch_id=new_id(), envs=["Wordle"]))
        with pytest.raises(ControlRequestError, match="watching only"):
            await control.shutdown(drain=False)
        with pytest.raises(ControlRequestError, match="watching only"):
            await control.command("cancel", batch_id=new_id())
        assert (await control.fetch_list()).envs


async def test_without_a_connection_or_a_node_it_says_so(server: NatsServer) -> None:
    with pytest.raises(ControlRequestError, match="not connected"):
        await NodeControl(lambda: None, lambda _: "n1").fetch_list()
    async with await NatsConnection.open(BusAddress(server.url), name="test") as connection:
        with pytest.raises(ControlRequestError, match="node nobody does not answer"):
            await NodeControl(lambda: connection, lambda _: "nobody").fetch_list()


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "x" * 65, "\r\nPUB x 0\r\n"])
async def test_a_name_that_is_none_is_not_asked(server: NatsServer, name: str) -> None:
    async with await NatsConnection.open(BusAddress(server.url), name="test") as connection:
        with pytest.raises(ControlRequestError, match="not a valid node name"):
            await NodeControl(lambda: connection, lambda _: name).fetch_list()


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
async def test_nonsense_is_no_answer(server: NatsServer, reply: bytes) -> None:
    async with answered_by(server, lambda _: reply) as control:
        with pytest.raises(ControlRequestError, match=r"list: the reply"):
            await control.fetch_list()


async def test_a_result_of_another_shape_is_no_answer(server: NatsServer) -> None:
    async with answered_by(server, lambda request: ok(request, {"batches": 1})) as control:
        with pytest.raises(ControlRequestError, match="cannot be decoded"):
            await control.fetch_list()


def chunks(whole: bytes, size: int, **said: object) -> Callable[[dict[str, Any]], bytes]:
    def answer(request: dict[str, Any]) -> bytes:
        offset = request["args"]["offset"]
        part = base64.b64encode(whole[offset : offset + size]).decode()
        known = {"total": len(whole), "sha256": hashlib.sha256(whole).hexdigest(), "data": part}
        return ok(request, {**known, **said})

    return answer


async def test_a_large_episode_comes_in_parts(server: NatsServer) -> None:
    data = bytes(range(256)) * 4_000
    async with answered_by(server, chunks(data, 100_000)) as control:
        assert await control.fetch_episode(new_id()) == data


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"sha256": "0" * 64}, "keeps changing"),
        ({"total": (64 << 20) + 1}, "the limit is"),
        ({"total": -1}, "keeps changing"),
        ({"data": ""}, "keeps changing"),
        ({"total": 3}, "keeps changing"),
    ],
)
async def test_a_file_that_does_not_fit_its_digest_is_refused(
    server: NatsServer, said: dict[str, object], reason: str
) -> None:
    async with answered_by(server, chunks(b"0123456789", 4, **said)) as control:
        with pytest.raises(ControlRequestError, match=reason):
            await control.fetch_episode(new_id())


async def test_a_file_that_changed_meanwhile_is_read_again(server: NatsServer) -> None:
    versions = [chunks(b"first version", 4), *[chunks(b"second version!", 4)] * 10]
    async with answered_by(server, lambda request: versions.pop(0)(request)) as control:
        assert await control.fetch_episode(new_id()) == b"second version!"


async def test_a_node_that_does_not_answer_in_time_is_said_to_be_stalled(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "TIMEOUT_S", 0.2)
    async with await NatsConnection.open(BusAddress(server.url), name="test") as connection:
        await connection.client.subscribe(control_subject("n1"))
        await connection.client.flush()
        with pytest.raises(ControlRequestError, match="did not answer"):
            await NodeControl(lambda: connection, lambda _: "n1").fetch_list()


async def test_the_folder_of_a_node_is_never_part_of_a_request(node: NodeProcess, tmp_path: Path) -> None:
    async with asking(node) as control:
        with pytest.raises(ControlRequestError):
            await control.fetch_episode(f"../../{tmp_path.name}")
