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
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
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
MAX_LINE: Final = 1_000  # bytes of an error, of which the last ``N_LINES`` are kept
N_LINES: Final = 20
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
        raise ConfigError(
            f"{one_line(mask(url))} is not ssh:// with a host, before it perhaps a user, after it a port and a folder"
        )
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
    process = _Ssh(forward)
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
            process.stop()
        else:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


class _Ssh(ChildProcess):
    """A process of ssh. What it prints on standard error is read at once; ``errors`` has the last lines of it."""

    def __init__(self, command: list[str], stdout: int = subprocess.DEVNULL) -> None:
        environ = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        # the thread of the event loop starts what forwards, and lives as long as this process
        is_forward = stdout == subprocess.DEVNULL
        program, *arguments = command
        command = [shutil.which(program) or program, *arguments]
        super().__init__(command, environ, stdout=stdout, stderr=subprocess.PIPE, dies_with_thread=is_forward)
        self.errors = deque[bytes](maxlen=N_LINES)
        self._reading = threading.Thread(target=self._read_errors, daemon=True)
        self._reading.start()

    def _read_errors(self) -> None:
        assert self.stderr is not None
        with self.stderr:
            self.errors.extend(iter(partial(self.stderr.readline, MAX_LINE), b""))

    def stop(self) -> None:
        self.kill()
        self.wait()
        self._reading.join(POLL_S * 10)  # a process that ssh has started may have left its group
        if self.stdout is not None:
            self.stdout.close()


def _read_node(node: SshNode) -> RemoteNode:
    folder = ("--data-dir", node.folder) if node.folder else ()
    remote = (*shlex.split(node.remote_command), "nats-info", "--credential", *folder)
    process = _Ssh(node.command(remote=remote), subprocess.PIPE)
    assert process.stdout is not None
    try:
        output = _read_bounded(process.stdout)
    finally:
        process.stop()
    for line in output.split(b"\n"):
        if line.startswith(MARKER):
            try:
                return msgspec.json.decode(line.removeprefix(MARKER), type=RemoteNode)
            except ValueError:
                break
    raise _failure(node.host, process)


def _read_bounded(stream: IO[bytes]) -> bytes:
    """Return what comes from a stream until it ends, about ``MAX_OUTPUT`` bytes at most and for ``TIMEOUT_S``."""
    text, deadline = b"", time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(text) < MAX_OUTPUT and selector.select(max(deadline - time.monotonic(), 0)):
            if not (data := os.read(stream.fileno(), MAX_OUTPUT)):
                break
            text += data
    return text


def _failure(host: str, process: _Ssh) -> SshError:
    """Return why a process of ssh that was stopped has failed."""
    lines = b"".join(process.errors).decode("utf-8", "replace").strip().splitlines()
    reason = one_line(mask(lines[-1]), 300) if lines else "no node information came back"
    return SshError(f"ssh {host}: {reason}; check that `ssh {host}` works without a password and a node has run there")


async def _wait_for_port(process: _Ssh, port: int, host: str) -> None:
    """Wait until the port is forwarded; raises ``SshError`` if ssh ends or takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), POLL_S):
            return
        await asyncio.sleep(POLL_S)
    process.stop()
    raise _failure(host, process)


async def _keep(process: _Ssh, command: list[str]) -> None:
    """Start ssh again whenever it ends; the last one is killed when this task is cancelled."""
    try:
        while True:
            if process.poll() is not None:
                process.stop()
                await asyncio.sleep(RESTART_S)
                process = _Ssh(command)
            await asyncio.sleep(POLL_S * 10)
    finally:
        process.stop()
