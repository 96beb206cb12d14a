"""A client that is killed in the middle of an order leaves all of the order at the node, or nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import pytest
from nats.aio.msg import Msg

from runner.bus.address import address_of_node
from runner.client.node_client import NodeClient
from runner.events.control import StartArgs
from runner.events.subjects import control_subject
from runner.util.clock import new_ulid
from tests.support.console.launch import node_cleanup
from tests.support.ctl import HELD_PROFILE, held_environ
from tests.support.event_proxy import frames
from tests.support.held_steps import StepGate
from tests.support.model_server import ModelServer
from tests.support.node_events import wait_until
from tests.support.node_process import COMMAND, NodeProcess, clean_environ
from tests.support.tcp_proxy import TcpProxy, run_proxy

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

MODELS: Final = """
agent:
  mode: local
  local_fallback: null
  model: test-echo
  format: react
  endpoints:
    - {{name: one, url: "{url}/v1", kind: openai}}
    - {{name: two, url: "{url}/v1", kind: openai, model: test-oracle}}
"""
Moment: TypeAlias = Literal["lost", "sent", "answered"]
"""When the client is killed: before its request reaches the broker, right after that, or as the reply arrives."""


class KillingProxy(TcpProxy):
    """Forwards the connections of a client, which it kills at a moment of its request for an operation."""

    def __init__(self, backend_port: int, op: str, moment: Moment) -> None:
        super().__init__(backend_port)
        self.client: Future[subprocess.Popen[bytes]] = Future()
        self._op, self._moment = op, moment
        self._inbox = b""

    def pipes(
        self,
        to_backend: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        to_client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        return self._pipe_requests(*to_backend), self._pipe_replies(*to_client)

    async def _pipe_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            async for head, frame in frames(reader):
                is_order = head[0] == b"PUB" and b'"op":"%s"' % self._op.encode() in frame
                if is_order and self._moment == "lost":
                    return self._kill()
                self._inbox = head[2] if is_order else self._inbox
                writer.write(frame)
                await writer.drain()
                if is_order and self._moment == "sent":
                    return self._kill()
        return None

    async def _pipe_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            async for head, frame in frames(reader):
                if self._inbox and head[:2] == [b"MSG", self._inbox]:
                    return self._kill()
                writer.write(frame)
        return None

    def _kill(self) -> None:
        self.client.result(30).kill()


def run_ctl(node: NodeProcess, *arguments: str, proxy: KillingProxy | None = None) -> tuple[int, Any]:
    """Run a command, through the proxy if there is one; return its exit code and document, None without one."""
    address = address_of_node(node.data_dir)
    assert address is not None and address.user and address.password
    url = address.url if proxy is None else f"nats://127.0.0.1:{proxy.port}"
    command = [COMMAND, "ctl", *arguments, "--json", "--nats", url, "--node", node.name]
    environ = clean_environ(NATS_USER=address.user, NATS_PASSWORD=address.password)
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        if proxy is not None:
            proxy.client.set_result(process)
        output = process.communicate(timeout=60)[0]
    return process.returncode, json.loads(output) if output else None


async def kill_ctl(node: NodeProcess, op: str, moment: Moment, *arguments: str) -> None:
    """Start a command, and kill it at a moment; return when the broker has what it has sent."""
    passed: asyncio.Queue[bytes] = asyncio.Queue()

    async def tap(message: Msg) -> None:
        passed.put_nowait(message.data)

    address = address_of_node(node.data_dir)
    assert address is not None
    async with await node.connect() as connection:
        await connection.client.subscribe(control_subject(node.name), cb=tap)
        await connection.client.flush()
        async with run_proxy(KillingProxy(int(address.url.rpartition(":")[2]), op, moment)) as proxy:
            assert await asyncio.to_thread(run_ctl, node, *arguments, proxy=proxy) == (-signal.SIGKILL, None)
        async with asyncio.timeout(30):
            while moment != "lost" and b'"op":"%s"' % op.encode() not in await passed.get():
                pass


@contextlib.asynccontextmanager
async def client_of(node: NodeProcess) -> AsyncIterator[NodeClient]:
    async with await node.connect() as connection:
        yield NodeClient(lambda: connection, lambda _: node.name)


def start_node(folder: Path, url: str, gate: StepGate) -> NodeProcess:
    profile = folder / "profile.yaml"
    profile.write_text(HELD_PROFILE + MODELS.format(url=url))
    return NodeProcess(folder / "data", "--config", str(profile), env=held_environ(folder) | gate.environ)


@pytest.fixture(scope="module")
def held_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose batch waits at its first step, so that all others wait in the queue."""
    folder = tmp_path_factory.mktemp("killed")
    with ModelServer() as models, StepGate() as gate, start_node(folder, models.url, gate) as node:
        assert run_ctl(node, "submit", "--run", "EndlessSteps", "--agent", "up")[0] == 0
        gate.next()
        yield node


SUBMIT: Final = (
    *("submit", "--battery", "lightweight", "--agent", "react", "--model", "test-echo,test-oracle"),
    *("--repeat", "2", "--batch-id"),
)
OPTIONS: Final = {
    "set": ("--concurrency", "2", "--budget-errors", "7"),
    "extend": ("--repeat", "3", "--attempts", "2"),
    "extend ended": ("--repeat", "3"),
}
N_BATCHES: Final = 6
"""Three environments with two models each."""


async def start_battery(client: NodeClient) -> str:
    battery_id, envs, models = new_ulid(), ["Maze", "Wordle", "BabyAI"], ["test-echo", "test-oracle"]
    started = await client.start(StartArgs(batch_id=battery_id, envs=envs, agent="react", models=models))
    assert len(started) == N_BATCHES
    return battery_id


async def prepare(verb: str, client: NodeClient, new_id: str) -> tuple[str, ...]:
    """Return a command that changes something; ``new_id`` is that of the run that it starts."""
    if verb == "submit":
        return *SUBMIT, new_id
    battery_id = await start_battery(client)
    if verb in ("again", "extend ended"):
        await client.command("cancel", batch_id=battery_id)
    if verb == "resume":
        await client.command("pause", batch_id=battery_id)
    return verb.split()[0], battery_id, *OPTIONS.get(verb, ()), *(("--batch-id", new_id) if verb == "again" else ())


@pytest.mark.parametrize("moment", get_args(Moment))
@pytest.mark.parametrize("verb", ["submit", "again", "pause", "resume", "cancel", "move", *OPTIONS])
async def test_all_of_an_order_is_done_or_nothing(held_node: NodeProcess, verb: str, moment: Moment) -> None:
    new_id, op = new_ulid(), {"submit": "start", "again": "replay"}.get(verb, verb.split()[0])
    async with client_of(held_node) as other:
        command = await prepare(verb, other, new_id)
        before = await other.fetch_list()
        await kill_ctl(held_node, op, moment, *command)
        killed = await other.fetch_list()
        code, document = await asyncio.to_thread(run_ctl, held_node, *command)
        assert code == 0, document
        after = await other.fetch_list()
    assert killed == (before if moment == "lost" else after) and before != after
    order = document["result"]
    assert len(order["batches"]) == N_BATCHES * (2 if verb == "extend ended" else 1)
    if verb in ("submit", "again"):
        assert [each.battery_id for each in after.batches].count(new_id) == N_BATCHES
    if verb != "move":  # which has an effect whenever it is sent
        assert order["changed"] is (moment == "lost")


async def test_the_newest_run_is_played_again_once(held_node: NodeProcess) -> None:
    """A repeated command names the run before its own as the last one."""
    again = ("again", "last", "--batch-id", new_id := new_ulid())
    async with client_of(held_node) as other:
        await other.command("cancel", batch_id=await start_battery(other))
        await kill_ctl(held_node, "replay", "answered", *again)
        code, document = await asyncio.to_thread(run_ctl, held_node, *again)
        assert (code, document["error"]) == (0, None)
        assert document["result"]["changed"] is False
        assert [each.battery_id for each in (await other.fetch_list()).batches].count(new_id) == N_BATCHES


@pytest.mark.parametrize("moment", get_args(Moment))
async def test_a_node_stops_or_plays_on(tmp_path: Path, moment: Moment) -> None:
    with StepGate() as gate, start_node(tmp_path, "http://127.0.0.1:1", gate) as node:
        async with client_of(node) as other:
            await other.start(StartArgs(batch_id=new_ulid(), envs=["EndlessSteps"], agent="up"))
            step = await asyncio.to_thread(gate.next)
            await kill_ctl(node, "shutdown", moment, "stop")
            if moment == "lost":
                assert [each.status for each in (await other.fetch_list()).batches] == ["running"]
                code, document = await asyncio.to_thread(run_ctl, node, "stop")
                assert (code, document["result"]["changed"]) == (0, True)
        step.release()
        assert node.process is not None
        assert await asyncio.to_thread(node.process.wait, 60) == 0


async def test_an_order_that_starts_a_node_is_played_once(tmp_path: Path) -> None:
    data_dir, batch_id = tmp_path / "data", new_ulid()
    submit = [COMMAND, "ctl", "submit", "--run", "Maze", "--agent", "oracle", "--batch-id", batch_id]
    submit += ["--json", "--data-dir", str(data_dir)]
    with node_cleanup(data_dir):
        with subprocess.Popen(submit, env=clean_environ(), stdout=subprocess.DEVNULL) as process:  # noqa: ASYNC220
            await wait_until((data_dir / "logs" / "node-start.log").exists)
            process.kill()
        done = await asyncio.to_thread(subprocess.run, [*submit, "--wait"], env=clean_environ(), capture_output=True)
        items = [json.loads(line)["result"] for line in done.stdout.splitlines()]
        assert (done.returncode, items[-1]["status"], items[-1]["n_episodes"]) == (0, "completed", 1)
        assert len(list(data_dir.glob("runs/*/*.json"))) == 1
