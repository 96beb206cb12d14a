"""The keys a run or a node logs in with are found in nothing it writes, says or sends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.events.address import address_from_environ
from runner.events.connect import Connection
from tests.bus_helpers import Certificates, creds_file, new_seed, operator_mode, public_key
from tests.faults.test_delivery import command, subscriber_on
from tests.nats_server import NatsServer
from tests.node_process import NodeProcess, environ

pytestmark = pytest.mark.timeout(120)

Login = tuple[dict[str, Any], dict[str, str], list[str]]


def nkey(folder: Path) -> Login:
    seed = new_seed()
    path = folder / "seed"
    path.touch(mode=0o600)
    path.write_text(seed)
    return {"authorization": {"users": [{"nkey": public_key(seed)}]}}, {"NATS_NKEY": str(path)}, [seed]


def creds(folder: Path) -> Login:
    account = new_seed(prefix=0)
    path = creds_file(folder / "user.creds", account)
    lines = path.read_text().splitlines()
    secrets = [line for line in lines if line and not line.startswith("-")]
    assert len(secrets) == 2, "a token and a seed"
    return operator_mode(account), {"NATS_CREDS": str(path)}, secrets


def tls(folder: Path) -> Login:
    certificates = Certificates(folder)
    names = {"NATS_CA": certificates.ca, "NATS_CERT": certificates.client_cert, "NATS_KEY": certificates.client_key}
    secrets = [line for line in certificates.client_key.read_text().splitlines() if len(line) > 20 and line[0] != "-"]
    assert secrets
    return certificates.for_server(verify=True), {name: str(path) for name, path in names.items()}, secrets


@pytest.mark.parametrize("login", [nkey, creds, tls])
async def test_no_key_is_found_in_any_file_log_event_or_output(tmp_path: Path, login: Any) -> None:  # noqa: ANN401
    data_dir, heard = tmp_path / "data", list[Msg]()
    (keys := tmp_path / "keys").mkdir()
    config, variables, secrets = login(keys)
    with NatsServer(tmp_path / "nats", jetstream=False, config=config) as server:
        env = environ(NATS_URL=server.url, **variables)
        address = address_from_environ(server.url, env)
        async with await Connection.open(address, name="listener") as listener:
            await subscriber_on(listener.client, heard)
            said = await play(data_dir, env)
            for options in (("--run", "Wordle", "--json"), ("--results",), ("outbox",), ("nats-info",)):
                _, out, err = await command(*options, env=env, cwd=tmp_path)
                said += out + err
            await listener.client.flush()
    assert heard, "the login was good"
    sent = b"".join(message.data + repr(message.headers).encode() for message in heard)
    written = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    assert written
    for secret in secrets:
        assert secret not in said
        assert secret.encode() not in sent
        assert [path for path, content in written.items() if secret.encode() in content] == []


async def play(data_dir: Path, env: dict[str, str]) -> str:
    """A batch by a node; what the node said."""
    with NodeProcess(data_dir, env=env) as node:
        async with await node.connect() as connection:
            batch_id = str(ULID())
            await node.request(connection, "start", batch_id=batch_id, envs=["Maze"])
            await node.until(connection, batch_id, "completed")
            health = json.dumps(await node.request(connection, "health"))
        return health + (await asyncio.to_thread(node.terminate))[1]
