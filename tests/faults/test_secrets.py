"""No secret that a run, a node or a viewer logs in with appears in their files, output or messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from nats.aio.msg import Msg

from runner.bus.address import address_from_environ
from runner.bus.connection import NatsConnection
from tests.support.bus import Certificates, new_seed, operator_config, public_key, write_creds_file
from tests.support.command import COMMAND, run_agentgym
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.subscriptions import collect_messages

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
CANARY = "canary-4f1d9c"
USER = f"{CANARY} user"
PASSWORD = f"{CANARY}/p@ss: word"
Command = tuple[str, ...]
RUNS: tuple[Command, ...] = (("--run", "Wordle", "--agent", "oracle", "--json"), ("--run", PASSWORD))
QUERIES: tuple[Command, ...] = (("--results", "--json"), ("outbox", "--json"), ("nats-info",))
"""Commands that do not log in."""


@dataclass
class Login:
    """Configuration of a server, a login with its secrets, and whether the server accepts the login (``good``)."""

    config: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)
    userinfo: str = ""
    secrets: list[str] = field(default_factory=list)
    good: bool = True


def token(folder: Path) -> Login:
    return Login({"authorization": {"token": PASSWORD}}, {"NATS_TOKEN": PASSWORD})


def url(folder: Path) -> Login:
    config = {"authorization": {"user": USER, "password": PASSWORD}}
    return Login(config, userinfo=f"{quote(USER)}:{quote(PASSWORD, safe='')}@")


def wrong_password(folder: Path) -> Login:
    config = {"authorization": {"user": USER, "password": "another"}}
    return Login(config, {"NATS_USER": USER, "NATS_PASSWORD": PASSWORD}, good=False)


def nkey(folder: Path) -> Login:
    seed = new_seed()
    config = {"authorization": {"users": [{"nkey": public_key(seed)}]}}
    return Login(config, {"NATS_NKEY": str(_secret_file(folder / "seed", seed))}, secrets=[seed])


def no_nkey(folder: Path) -> Login:
    config = {"authorization": {"users": [{"nkey": public_key(new_seed())}]}}
    return Login(config, {"NATS_NKEY": str(_secret_file(folder / "seed", PASSWORD))}, good=False)


def creds(folder: Path) -> Login:
    account = new_seed(prefix=0)
    path = write_creds_file(folder / "user.creds", account)
    secrets = _lines(path)
    assert len(secrets) == 2, "a token and a seed"
    return Login(operator_config(account), {"NATS_CREDS": str(path)}, secrets=secrets)


def tls_and_password(folder: Path) -> Login:
    certificates = Certificates(folder)
    names = {"NATS_CA": certificates.ca, "NATS_CERT": certificates.client_cert, "NATS_KEY": certificates.client_key}
    variables = {name: str(path) for name, path in names.items()} | {"NATS_USER": USER, "NATS_PASSWORD": PASSWORD}
    config = certificates.server_config(verify=True) | {"authorization": {"user": USER, "password": PASSWORD}}
    return Login(config, variables, secrets=_lines(certificates.client_key))


def _secret_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if len(line) > 20 and not line.startswith("-")]


LOGINS = [token, url, wrong_password, nkey, creds, tls_and_password, *([no_nkey] if FULL else [])]
MAX_CONCURRENT = 3
"""Logins that are tested at the same time, as they mostly wait for processes to start."""


async def test_no_secret_appears_in_files_output_or_messages(tmp_path: Path) -> None:
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def check(login_of: Callable[[Path], Login]) -> None:
        (folder := tmp_path / login_of.__name__ / "keys").mkdir(parents=True)
        async with slots:
            await _check_login(folder.parent, login_of(folder), thorough=FULL or login_of is token)

    await asyncio.gather(*map(check, LOGINS))


async def _check_login(folder: Path, login: Login, *, thorough: bool) -> None:
    outputs: dict[str, bytes] = {}
    data_dir = folder / "data"
    with NatsServer(folder / "nats", jetstream=False, config=login.config) as server:
        env = clean_environ(NATS_URL=server.url.replace("://", f"://{login.userinfo}"), TENSORZERO_API_KEY=PASSWORD)
        env |= login.variables
        async with _node(data_dir, env) as node:
            async with await node.connect() as connection, _external_messages(env, login) as external:
                internal = await collect_messages(connection.client)
                outputs |= await _play_batch(node, connection)
                outputs |= await _run_commands(folder, env, RUNS + QUERIES if thorough else RUNS[:1])
            outputs |= _processes(node) | _files(data_dir)
            assert str(data_dir / "index.sqlite-wal") in outputs
            digest = json.loads((data_dir / "node.json").read_bytes())["variables"]["TENSORZERO_API_KEY"]
            key = (data_dir / "node.key").read_text()
            outputs["node"] = (await asyncio.to_thread(node.terminate))[1].encode()
        outputs |= {f"{path} at the end": content for path, content in _files(data_dir).items()}
    assert (b"-- " in outputs["watch --nats"]) == login.good
    assert len(internal) > 5
    assert bool(external) == login.good
    sent = b"".join(message.data + repr(message.headers).encode() for message in internal + external)
    for secret in [CANARY, *login.secrets]:
        assert [name for name, content in outputs.items() if secret.encode() in content] == []
        assert secret.encode() not in sent
    for secret, name in ((digest, "node.json"), (key, "node.key")):
        assert {Path(each.split()[0]).name for each, content in outputs.items() if secret.encode() in content} == {name}
        assert secret.encode() not in sent


@contextlib.asynccontextmanager
async def _node(data_dir: Path, env: Mapping[str, str]) -> AsyncIterator[NodeProcess]:
    """Run a node; start it without blocking the event loop."""
    node = NodeProcess(data_dir, env=env)
    try:
        yield await asyncio.to_thread(node.start)
    finally:
        node.kill()


@contextlib.asynccontextmanager
async def _external_messages(env: Mapping[str, str], login: Login) -> AsyncIterator[list[Msg]]:
    """Yield the messages on the external bus; none when it rejects the login."""
    if not login.good:
        yield []
        return
    async with await NatsConnection.open(address_from_environ(env["NATS_URL"], env), name="listener") as connection:
        yield await collect_messages(connection.client)


async def _play_batch(node: NodeProcess, connection: NatsConnection) -> dict[str, bytes]:
    batch_id = await node.start_batch(connection, "Maze")
    await node.wait_for_batch(connection, batch_id, "completed")
    return {op: json.dumps(await node.request(connection, op)).encode() for op in ("health", "list")}


async def _run_commands(folder: Path, env: dict[str, str], commands: Sequence[Command]) -> dict[str, bytes]:
    """Return the output of commands, and of two viewers beside them."""
    internal = await _viewer(folder, env)
    external = await _viewer(folder, env, "--json", "--nats", env["NATS_URL"])
    runs = await asyncio.gather(
        *(asyncio.to_thread(run_agentgym, folder, *options, environ=env) for options in commands)
    )
    assert [run.returncode for run in runs] == [2 if PASSWORD in options else 0 for options in commands]
    outputs = {str(options): (run.stdout + run.stderr).encode() for options, run in zip(commands, runs, strict=True)}
    outputs |= {"watch": await _stop(internal, b"episode.completed"), "watch --nats": await _stop(external)}
    assert b"episode.completed" in outputs["watch"]
    return outputs


async def _viewer(folder: Path, env: Mapping[str, str], *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(COMMAND, "watch", "--since", "all", *options),
        env=dict(env),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def _stop(viewer: asyncio.subprocess.Process, awaited: bytes = b"") -> bytes:
    """Return the output of a viewer, which is stopped as soon as it has shown ``awaited``."""
    shown = b""
    assert viewer.stdout is not None
    async with asyncio.timeout(60):
        while awaited not in shown and (line := await viewer.stdout.readline()):
            shown += line
    with contextlib.suppress(ProcessLookupError):  # a viewer whose login was rejected has exited
        viewer.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        out, err = await viewer.communicate()
    return shown + out + err


def _processes(node: NodeProcess) -> dict[str, bytes]:
    """Return the command lines of node and broker, and the broker's environment; the node's contains the secrets."""
    broker = node.broker.pid
    paths = [f"/proc/{node.pid}/cmdline", f"/proc/{broker}/cmdline", f"/proc/{broker}/environ"]
    return {path: Path(path).read_bytes() for path in paths}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
