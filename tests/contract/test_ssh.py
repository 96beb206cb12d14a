"""A node on another machine is reached through a real OpenSSH server."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentgym_tui.sessions.bus_session import BusSession
from runner.bus.address import address_of_node
from runner.cli import main
from runner.client.node_client import ControlRequestError
from runner.client.node_folder import LaunchOptions
from runner.client.ssh import SshError, parse_ssh_url
from runner.client.target import Target, connected
from runner.errors import ConfigError
from tests.support.command import REPOSITORY
from tests.support.env_server_process import free_port
from tests.support.node_process import COMMAND, NodeProcess

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="install openssh-server"),
]
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("ssh") / "data dir") as process:
        yield process


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a machine, this one, whose server lets a key of the test in; ``runner`` on it prints a greeting."""
    keys = [tmp_path / name for name in ("host_key", "user_key")]
    for key in keys:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    port, ssh = free_port(), shutil.which("ssh")
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": keys[0],
        "AuthorizedKeysFile": keys[1].with_suffix(".pub"),
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "prohibit-password",
    }
    (tmp_path / "sshd_config").write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))
    client = f'Host rig\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile "{keys[1]}"\n'
    client += f' IdentitiesOnly yes\n StrictHostKeyChecking accept-new\n UserKnownHostsFile "{tmp_path}/known"\n'
    (tmp_path / "config").write_text(client)
    for name, text in {"bin/ssh": f'exec {ssh} -F "{tmp_path}/config" "$@"', "runner": GREETING}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    assert SSHD is not None
    with subprocess.Popen([SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_listening(port):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        login = subprocess.run(["ssh", "-o", "BatchMode=yes", "rig", "true"], capture_output=True, check=False)
        try:
            if login.returncode:
                pytest.skip(f"the server does not let this user in: {login.stderr.decode()[-200:]}")
            yield "rig"
        finally:
            server.kill()


GREETING = f'echo "Welcome to agentgym-node {{}}"; echo agentgym-nodes; PYTHONPATH="{REPOSITORY}" exec {COMMAND} "$@"'


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def target(host: str, node: NodeProcess, tmp_path: Path) -> Target:
    folder = str(node.data_dir).replace(" ", "%20")
    return Target(ssh=parse_ssh_url(f"ssh://{host}{folder}", f"'{tmp_path}/runner'"))


def test_ctl_plays_on_the_node_of_another_machine(
    host: str, node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"ssh://{host}{str(node.data_dir).replace(' ', '%20')}"
    options = ["--nats", url, "--remote-command", f"'{tmp_path}/runner'", "--json"]
    assert main(["ctl", "submit", "--run", "Maze", "--agent", "oracle", "--follow", *options]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {document["node"] for document in documents} == {"n1"}
    assert [document["result"].get("kind") for document in documents][-2:] == ["episode", "batch"]
    for wrong, error in (
        (f"ssh://{host}/nowhere", "No node has run"),
        ("ssh://no-such-host.invalid", "resolve hostname"),
    ):
        for content in ([], ["--content"]):
            assert main(["ctl", "list", *options[2:], "--nats", wrong, *content]) == 1
            output = capsys.readouterr().out
            assert json.loads(output)["error"]["code"] == "unreachable"
            assert (error in output) is bool(content)


async def test_no_process_has_the_password_and_a_lost_connection_is_made_again(
    host: str, node: NodeProcess, tmp_path: Path
) -> None:
    address = address_of_node(node.data_dir)
    assert address is not None and address.password
    async with connected(target(host, node, tmp_path)) as remote:
        assert (await remote.client.fetch_health()).pid == node.pid
        assert remote.connection.address.servers != address.servers
        children = psutil.Process().children(recursive=True)
        forwarding = [each for each in children if "-N" in each.cmdline()]
        for child in children:
            assert not any(address.password in word for word in (*child.cmdline(), *child.environ().values()))
        for child in forwarding:
            child.kill()
        async with asyncio.timeout(TIMEOUT_S):
            while await is_unreachable(remote.client.fetch_health()):  # noqa: ASYNC110 - ssh is another process
                await asyncio.sleep(0.05)
    assert not [each for each in psutil.Process().children(recursive=True) if "-N" in each.cmdline()]


async def is_unreachable(request: object) -> bool:
    try:
        await request  # type: ignore[misc]
    except ControlRequestError:
        return True
    return False


async def test_a_console_watches_through_ssh(host: str, node: NodeProcess, tmp_path: Path) -> None:
    url = f"ssh://{host}{str(node.data_dir).replace(' ', '%20')}"
    options = LaunchOptions(data_dir=str(tmp_path / "own"))
    session = BusSession(options, url=url, remote_command=f"'{tmp_path}/runner'")
    running = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while session.store.link.status != "connected" or not session.store.nodes:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert "n1" in session.store.nodes
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    "url",
    ["ssh://-oProxyCommand=x", "ssh://-l@host", "ssh://", "ssh://a b", "ssh://u:p@host", "ssh://h?x=1", "ssh://h:x/"],
)
def test_a_url_that_ssh_could_misread_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not ssh://"):
        parse_ssh_url(url)


async def test_a_machine_without_the_runner_is_reported_with_what_ssh_printed(host: str) -> None:
    with pytest.raises(SshError, match="no-runner"):
        async with connected(Target(ssh=parse_ssh_url(f"ssh://{host}", "no-runner"))):
            raise AssertionError


async def test_an_ssh_that_prints_much_goes_on_and_its_last_line_is_the_reason(
    host: str, node: NodeProcess, tmp_path: Path
) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace("exec", "yes debug1: | head -c 300000 >&2\nexec"))  # more than a pipe holds
    async with connected(target(host, node, tmp_path)) as remote:
        assert (await remote.client.fetch_health()).pid == node.pid
    with pytest.raises(SshError, match="no-runner"):
        async with connected(Target(ssh=parse_ssh_url(f"ssh://{host}", "no-runner"))):
            raise AssertionError
