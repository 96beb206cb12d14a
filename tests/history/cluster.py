"""The processes that a history is about: a node on its own disk, a foreign broker, environment servers, a console."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import msgspec
import psutil

from runner.node.state_lock import is_node_alive
from tests.history.disks import ObservedDisk, open_disk
from tests.history.processes import ManagedProcess
from tests.history.records import Recorder
from tests.history.schedule import EMBEDDED, MAX_CONCURRENCY, SERVERS
from tests.support.command import COMMAND, REPOSITORY
from tests.support.nats_server import EXECUTABLE
from tests.support.shifted_clock import ShiftedClock
from tests.support.tcp_proxy import TcpProxy, run_proxy

NODE = "n1"
WAIT_S = 15.0
"""Seconds that a batch waits for an environment server that went away."""
_STEP_DELAY_S = 0.04


@dataclass(frozen=True)
class Cluster:
    """The processes and the means to disturb them.

    Attributes:
        folder: folder of the history, with the logs of all processes.
        data_dir: state directory of the node.
        node_lock: held while the node is down or a console starts, because a console starts a missing node itself.
    """

    folder: Path
    data_dir: Path
    profile: Path
    node: ManagedProcess
    foreign: ManagedProcess
    foreign_port: int
    servers: Mapping[str, ManagedProcess]
    proxies: Mapping[str, TcpProxy]
    disk: ObservedDisk
    clock: ShiftedClock | None
    node_lock: asyncio.Lock

    @property
    def is_node_alive(self) -> bool:
        return self.node.pid is not None and is_node_alive(self.data_dir)

    def own_broker_pid(self) -> int | None:
        """Process id of the node's own broker, or None."""
        try:
            children = psutil.Process(self.node.pid).children() if self.node.pid is not None else []
            return next((child.pid for child in children if "nats-server" in child.name()), None)
        except psutil.Error:
            return None

    def fork_server_pid(self) -> int | None:
        """Process id of the node's fork server, or None."""
        try:
            children = psutil.Process(self.node.pid).children() if self.node.pid is not None else []
            return next((child.pid for child in children if "runner.worker" in child.cmdline()), None)
        except psutil.Error:
            return None

    def worker_pid(self) -> int | None:
        """Process id of the oldest worker of the node, or None."""
        try:
            server = self.fork_server_pid()
            children = [] if server is None else psutil.Process(server).children()
            return min(children, key=psutil.Process.create_time).pid if children else None
        except psutil.Error:
            return None

    def processes(self) -> dict[str, int]:
        """Return the process ids of the managed processes and the own broker, by name."""
        managed = {each.name: each.pid for each in (self.node, self.foreign, *self.servers.values())}
        every = managed | {"own_broker": self.own_broker_pid()}
        return {name: pid for name, pid in every.items() if pid is not None}


@asynccontextmanager
async def run_cluster(
    folder: Path, recorder: Recorder, *, disk_mib: int, mutation: str | None
) -> AsyncIterator[Cluster]:
    """Start the foreign broker and the servers; these, and a node that the caller starts, end with the block."""
    async with AsyncExitStack() as stack:
        ports = {name: _free_port() for name in ("foreign_broker", *SERVERS)}
        proxies = {name: await stack.enter_async_context(run_proxy(TcpProxy(port))) for name, port in ports.items()}
        profile = folder / "soak.yaml"
        profile.write_text(json.dumps(_profile(proxies)))
        pids: list[ManagedProcess] = []
        disk_folder = folder / "disk"
        disk = stack.enter_context(
            open_disk(disk_folder, disk_mib, lambda: [each.pid for each in pids if each.pid is not None])
        )
        clock = ShiftedClock(folder) if which("cc") else None
        data_dir = disk_folder / "data"
        node = ManagedProcess(
            "node",
            lambda: _node_command(data_dir, profile, mutation),
            recorder,
            log=folder / "node.log",
            env=client_environ()
            | {"NATS_URL": f"nats://127.0.0.1:{proxies['foreign_broker'].port}"}
            | _clock_environ(clock),
            cwd=folder,
            may_refuse=lambda: disk.is_full,
        )
        pids.append(node)
        foreign = ManagedProcess(
            "foreign_broker",
            lambda: _broker_command(folder / "foreign", ports["foreign_broker"]),
            recorder,
            log=folder / "foreign.log",
            env=client_environ(),
            cwd=folder,
        )
        servers = {name: _server(name, folder, ports[name], recorder) for name in SERVERS}
        stack.callback(_kill_stray_node, data_dir)
        for process in (foreign, *servers.values(), node):
            stack.push_async_callback(process.close)
        for process in (foreign, *servers.values()):
            process.start()
        yield Cluster(
            folder,
            data_dir,
            profile,
            node,
            foreign,
            ports["foreign_broker"],
            servers,
            proxies,
            disk,
            clock,
            asyncio.Lock(),
        )


def _kill_stray_node(data_dir: Path) -> None:
    """Kill a node that a console started because it found none."""
    if is_node_alive(data_dir):
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            psutil.Process(int((data_dir / "node.lock").read_text())).kill()


def _free_port() -> int:
    """Return a free port that no client socket takes while its server is dead: one below the ephemeral ports."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port


def client_environ() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(REPOSITORY)}


def _clock_environ(clock: ShiftedClock | None) -> dict[str, str]:
    return {} if clock is None else clock.environ


def _profile(proxies: Mapping[str, TcpProxy]) -> dict[str, object]:
    entries: list[dict[str, object]] = [
        {"name": env, "port": proxies[name].port, "transport": "http", "timeout_sec": 5, "wait_sec": WAIT_S}
        for name, env in SERVERS.items()
    ]
    return {
        "id": "soak",
        "episode": {"concurrent": MAX_CONCURRENCY, "max_duration_sec": 30},
        "environments": {"lightweight": [*entries, {"name": EMBEDDED, "transport": "embedded"}]},
    }


def _node_command(data_dir: Path, profile: Path, mutation: str | None) -> list[str]:
    program = [COMMAND] if mutation is None else [sys.executable, "-m", "tests.history.mutated_node", mutation]
    return [*program, "node", "--data-dir", str(data_dir), "--node", NODE, "--config", str(profile)]


def _broker_command(store: Path, port: int) -> list[str]:
    return [str(EXECUTABLE), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(store)]


def _server(name: str, folder: Path, port: int, recorder: Recorder) -> ManagedProcess:
    return ManagedProcess(
        name,
        lambda: _server_command(name, folder, port),
        recorder,
        log=folder / f"{name}.log",
        env=client_environ(),
        cwd=folder,
    )


def _server_command(name: str, folder: Path, port: int) -> list[str]:
    command = [sys.executable, "-m", "tests.history.logged_server", name, SERVERS[name], "--port", str(port)]
    return [*command, "--log", str(folder / f"{name}.jsonl"), "--delay", str(_STEP_DELAY_S)]


def credential(data_dir: Path) -> tuple[str, str, str] | None:
    """Return URL, user and password of the own broker, read as an independent client; None while they are missing."""
    try:
        node = msgspec.json.decode((data_dir / "node.json").read_bytes())
        login = msgspec.json.decode(Path(node["credential_file"]).read_bytes())
        return str(node["url"]), str(login["user"]), str(login["password"])
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return None
