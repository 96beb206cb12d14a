"""No secret that a run, a node or a viewer logs in with is found in anything they write, say or send."""

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

import psutil
import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.bus.address import address_from_environ
from runner.bus.connection import NatsConnection
from tests.faults.test_delivery import command, subscriber_on
from tests.support.bus import Certificates, new_seed, operator_config, public_key, write_creds_file
from tests.support.nats_server import NatsServer
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = pytest.mark.timeout(120)

FULL = os.environ.get("AGENTGYM_FAULTS") == "full"
CANARY = "canary-4f1d9c"
USER = f"{CANARY} user"
PASSWORD = f"{CANARY}/p@ss: word"
Command = tuple[str, ...]
PLAY: tuple[Command, ...] = (("--run", "Wordle", "--agent", "oracle", "--json"), ("--run", PASSWORD))
LOOK: tuple[Command, ...] = (("--results", "--json"), ("outbox", "--json"), ("nats-info",))  # they do not log in


@dataclass
class Login:
    """How to log in at a server, and what of that nobody may find."""

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
    made = Certificates(folder)
    names = {"NATS_CA": made.ca, "NATS_CERT": made.client_cert, "NATS_KEY": made.client_key}
    variables = {name: str(path) for name, path in names.items()} | {"NATS_USER": USER, "NATS_PASSWORD": PASSWORD}
    config = made.server_config(verify=True) | {"authorization": {"user": USER, "password": PASSWORD}}
    return Login(config, variables, secrets=_lines(made.client_key))


def _secret_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if len(line) > 20 and not line.startswith("-")]


LOGINS = [token, url, wrong_password, nkey, creds, tls_and_password, *([no_nkey] if FULL else [])]
AT_ONCE = 3
"""They mostly wait for processes to start."""


@pytest.mark.long
async def test_no_secret_is_found_anywhere(tmp_path: Path) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def look(login_of: Callable[[Path], Login]) -> None:
        (folder := tmp_path / login_of.__name__ / "keys").mkdir(parents=True)
        async with room:
            await _look_for_secrets(folder.parent, login_of(folder), thorough=FULL or login_of is token)

    await asyncio.gather(*map(look, LOGINS))


async def _look_for_secrets(folder: Path, login: Login, *, thorough: bool) -> None:
    at_home, elsewhere, found = list[Msg](), list[Msg](), dict[str, bytes]()
    data_dir = folder / "data"
    with NatsServer(folder / "nats", jetstream=False, config=login.config) as server:
        env = clean_environ(NATS_URL=server.url.replace("://", f"://{login.userinfo}"), TENSORZERO_API_KEY=PASSWORD)
        env |= login.variables
        async with _node(data_dir, env) as node:
            async with await node.connect() as connection, _listening(env, elsewhere if login.good else None):
                await subscriber_on(connection.client, at_home)
                found |= await _ask(node, connection)
                found |= await _say(folder, env, PLAY + LOOK if thorough else PLAY[:1])
            found |= _processes(node.pid) | _files(data_dir)
            assert str(data_dir / "outbox.sqlite-wal") in found
            found["node"] = (await asyncio.to_thread(node.terminate))[1].encode()
        found |= {f"{path} at the end": content for path, content in _files(data_dir).items()}
    assert (b"-- " in found["watch --nats"]) == login.good
    assert len(at_home) > 5
    assert bool(elsewhere) == login.good
    sent = b"".join(message.data + repr(message.headers).encode() for message in at_home + elsewhere)
    for secret in [CANARY, *login.secrets]:
        assert [where for where, content in found.items() if secret.encode() in content] == []
        assert secret.encode() not in sent


@contextlib.asynccontextmanager
async def _node(data_dir: Path, env: Mapping[str, str]) -> AsyncIterator[NodeProcess]:
    """Started beside what goes on."""
    node = NodeProcess(data_dir, env=env)
    try:
        yield await asyncio.to_thread(node.start)
    finally:
        node.kill()


@contextlib.asynccontextmanager
async def _listening(env: Mapping[str, str], heard: list[Msg] | None) -> AsyncIterator[None]:
    """To the bus elsewhere, as far as it lets us in."""
    if heard is None:
        yield
        return
    async with await NatsConnection.open(address_from_environ(env["NATS_URL"], env), name="listener") as connection:
        await subscriber_on(connection.client, heard)
        yield


async def _ask(node: NodeProcess, connection: NatsConnection) -> dict[str, bytes]:
    batch_id = str(ULID())
    await node.request(connection, "start", batch_id=batch_id, envs=["Maze"], agent="oracle")
    await node.wait_for_batch(connection, batch_id, "completed")
    return {op: json.dumps(await node.request(connection, op)).encode() for op in ("health", "list")}


async def _say(folder: Path, env: Mapping[str, str], commands: Sequence[Command]) -> dict[str, bytes]:
    """What commands and viewers print."""
    at_home = await _viewer(folder, env)
    elsewhere = await _viewer(folder, env, "--json", "--nats", env["NATS_URL"])
    printed = await asyncio.gather(*(command(*options, env=env, cwd=folder) for options in commands))
    assert [status for status, _, _ in printed] == [2 if PASSWORD in options else 0 for options in commands]
    said = {str(options): (out + err).encode() for options, (_, out, err) in zip(commands, printed, strict=True)}
    said |= {"watch": await _ended(at_home), "watch --nats": await _ended(elsewhere)}
    assert b"episode.completed" in said["watch"]
    return said


async def _viewer(folder: Path, env: Mapping[str, str], *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(COMMAND, "watch", "--since", "all", *options),
        env=dict(env),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def _ended(viewer: asyncio.subprocess.Process) -> bytes:
    with contextlib.suppress(ProcessLookupError):  # one that was not let in
        viewer.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        out, err = await viewer.communicate()
    return out + err


def _processes(node: int) -> dict[str, bytes]:
    """What others see of the node and of its broker; the variables of the node itself were given to it."""
    broker = [child.pid for child in psutil.Process(node).children() if "nats-server" in child.name()]
    assert broker
    shown = [Path(f"/proc/{pid}/cmdline") for pid in (node, *broker)]
    return {str(path): path.read_bytes() for path in (*shown, *(Path(f"/proc/{pid}/environ") for pid in broker))}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
