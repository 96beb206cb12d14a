"""A node on another machine, reached through OpenSSH: its address and credential, and a port that is forwarded to it.

The credential is read into memory; it is in no argument and no file. Only the forwarded port is dialled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Final
from urllib.parse import unquote, urlsplit

import msgspec

from runner.bus.address import BusAddress
from runner.errors import ConfigError, RunnerError
from runner.util.child_process import ChildProcess
from runner.util.display_text import mask, one_line

MARKER: Final = b"agentgym-node "
"""Begins the line of ``nats-info --credential``; a login may print anything before."""
OPTIONS: Final = tuple(
    word
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ConnectTimeout=10", "ServerAliveInterval=15")
    for word in ("-o", option)
)
VARIABLES: Final = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR")
MAX_OUTPUT: Final = 64 * 1024
TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05
RESTART_S: Final = 2.0  # until a connection that was lost is made again
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_\[:][A-Za-z0-9_.:\[\]%-]*")


class SshError(RunnerError):
    published_error_type = "ssh"


class SshNode(msgspec.Struct, frozen=True):
    """The node of a state directory on another machine; ``folder`` "": the one that the runner there chooses."""

    host: str
    port: int | None = None
    folder: str = ""
    remote_command: str = "agentgym-runner"

    def command(self, *options: str, remote: tuple[str, ...] = ()) -> list[str]:
        port = [] if self.port is None else ["-p", str(self.port)]
        return ["ssh", "-T", *OPTIONS, *port, *options, "--", self.host, *([shlex.join(remote)] if remote else [])]


class RemoteNode(msgspec.Struct):
    """What ``nats-info --credential`` prints after the marker."""

    url: str
    user: str
    password: str
    node: str


def parse_ssh_url(url: str, remote_command: str | None = None) -> SshNode:
    """Return the node of ``ssh://[user@]host[:port][/folder]``; ``/~/folder`` is below the home folder there.

    Raises ``ConfigError`` for another URL, and for a host that ssh could take for an option.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit("ssh:"), None
    host = parts.netloc if port is None else parts.netloc.rpartition(":")[0]
    if parts.scheme != "ssh" or parts.password or parts.query or parts.fragment or _HOST.fullmatch(host) is None:
        raise ConfigError(f"{one_line(mask(url))} is not ssh://[user@]host[:port][/folder]")
    folder = unquote(parts.path).removesuffix("/")
    address = host.replace("[", "").replace("]", "")  # of IPv6
    return SshNode(address, port, folder.removeprefix("/~/"), remote_command or "agentgym-runner")


@asynccontextmanager
async def forwarded(node: SshNode) -> AsyncIterator[tuple[BusAddress, str]]:
    """Forward a port to a node's broker; yield its address and the node's name. A lost connection is made again.

    Raises ``SshError`` with what ssh printed if the machine or the node cannot be reached.
    """
    if shutil.which("ssh") is None:
        raise ConfigError("OpenSSH is needed for ssh:// and `ssh` is not on the path; install it, or use --nats URL")
    remote = await asyncio.to_thread(_read_node, node)
    there = urlsplit(remote.url)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    forward = node.command("-N", "-L", f"127.0.0.1:{port}:{there.hostname}:{there.port}")
    process = _start(forward)
    keeping: asyncio.Task[None] | None = None
    try:
        await _wait_for_port(process, port, node.host)
        keeping = asyncio.create_task(_keep(process, forward))
        address = BusAddress(
            f"nats://127.0.0.1:{port}", user=remote.user, password=remote.password, follows_announced=False
        )
        yield address, remote.node
    finally:
        if keeping is None:
            _end(process)
        else:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


def _start(command: list[str], stdout: int = subprocess.DEVNULL) -> ChildProcess:
    environ = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    # the thread of the event loop starts what forwards, and lives as long as this process
    is_forward = stdout == subprocess.DEVNULL
    program, *arguments = command
    command = [shutil.which(program) or program, *arguments]
    return ChildProcess(command, environ, stdout=stdout, stderr=subprocess.PIPE, dies_with_thread=is_forward)


def _read_node(node: SshNode) -> RemoteNode:
    folder = ("--data-dir", node.folder) if node.folder else ()
    remote = (*shlex.split(node.remote_command), "nats-info", "--credential", *folder)
    process = _start(node.command(remote=remote), subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    try:
        output, errors = _read_bounded(process.stdout, process.stderr)
    finally:
        _end(process)
    for line in output.split(b"\n"):
        if line.startswith(MARKER):
            try:
                return msgspec.json.decode(line.removeprefix(MARKER), type=RemoteNode)
            except ValueError:
                break
    raise _failure(node.host, errors)


def _read_bounded(*streams: IO[bytes]) -> list[bytes]:
    """Return what comes from streams until they end, at most ``MAX_OUTPUT`` bytes of each and for ``TIMEOUT_S``."""
    texts, deadline = {stream: bytearray() for stream in streams}, time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                text, data = texts[key.fileobj], os.read(key.fd, MAX_OUTPUT)  # type: ignore[index]
                text += data[: MAX_OUTPUT - len(text)]
                if not data or len(text) == MAX_OUTPUT:
                    selector.unregister(key.fileobj)
    return [bytes(text) for text in texts.values()]


def _failure(host: str, errors: bytes) -> SshError:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    reason = one_line(mask(lines[-1]), 300) if lines else "no node information came back"
    return SshError(f"ssh {host}: {reason}; check that `ssh {host}` works without a password and a node has run there")


async def _wait_for_port(process: ChildProcess, port: int, host: str) -> None:
    """Wait until the port is forwarded; raises ``SshError`` if ssh ends or takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), POLL_S):
            return
        await asyncio.sleep(POLL_S)
    process.kill()
    assert process.stderr is not None
    raise _failure(host, process.stderr.read(MAX_OUTPUT))


async def _keep(process: ChildProcess, command: list[str]) -> None:
    """Start ssh again whenever it ends; the last one is killed when this task is cancelled."""
    try:
        while True:
            if process.poll() is not None:
                _end(process)
                await asyncio.sleep(RESTART_S)
                process = _start(command)
            await asyncio.sleep(POLL_S * 10)
    finally:
        _end(process)


def _end(process: ChildProcess) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
