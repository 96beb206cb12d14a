from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from runner.bus.broker import server_process
from runner.bus.broker.broker import Broker, BrokerTimeouts
from runner.bus.connection import BusAddress, BusError, NatsConnection
from runner.bus.streams import ensure_streams
from runner.events.subjects import DURABLE
from tests.support.bus import BusStateRecorder
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
START_BROKER = """
import sys, time
from pathlib import Path
from runner.bus.broker.broker import Broker

broker = Broker(Path(sys.argv[1]), "node")
broker.start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


class RestartRecorder:
    """Counts calls of ``on_restart``; ``wait`` waits for the next one."""

    def __init__(self) -> None:
        self._calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self._calls.release()

    def wait(self) -> None:
        assert self._calls.acquire(timeout=20), "the broker was not restarted"


def _wait_for_exit(pid: int, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while _is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_the_broker_listens_on_the_loopback_and_accepts_only_its_credential(broker: Broker) -> None:
    async with await NatsConnection.open(broker.address, name="test") as connection:
        assert connection.client.max_payload == 1 << 20
        assert connection.client.connected_server_version.major >= 2
    for address in (BusAddress(broker.url), BusAddress(broker.url, user="agentgym", password="wrong")):
        with pytest.raises(BusError) as caught:
            await NatsConnection.open(address, name="test")
        assert caught.value.kind == "auth"
    sockets = psutil.Process(broker.pid).net_connections("inet")
    listening = {f"{socket.laddr.ip}:{socket.laddr.port}" for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert listening == {broker.url.removeprefix("nats://")}


async def test_the_monitoring_pages_are_served_where_the_profile_gives_them_a_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        broker = Broker(tmp_path, "node", monitor_port=port, timeouts=BrokerTimeouts(port_s=0.0))
        broker.start()  # without them, as another program has the port
        broker.stop()
    broker.start()
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/healthz")).json() == {"status": "ok"}
    finally:
        broker.stop()


def test_only_private_files_contain_the_password(broker: Broker, tmp_path: Path) -> None:
    password = broker.address.password
    assert password is not None
    assert len(password) >= 32
    assert password not in repr(broker.address)
    for name in ("cmdline", "environ"):
        assert password.encode() not in Path(f"/proc/{broker.pid}/{name}").read_bytes()
    paths = {path for path in tmp_path.rglob("*") if path.is_file() and password.encode() in path.read_bytes()}
    assert paths == {broker.credential_file, broker.folder / "server.conf"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (broker.folder, broker.log.parent))


async def test_a_killed_broker_is_restarted_with_its_store(tmp_path: Path) -> None:
    restarts, states = RestartRecorder(), BusStateRecorder()
    broker = Broker(tmp_path, "node", on_restart=restarts)
    broker.start()
    try:
        url = broker.url
        async with await NatsConnection.open(broker.address, name="test", on_state=states) as connection:
            await ensure_streams(connection.client.jetstream(), DURABLE)
            for number in range(1, 4):
                assert (await connection.client.jetstream().publish(DURABLE[0], b"x")).seq == number
                assert broker.pid is not None
                os.kill(broker.pid, signal.SIGKILL)
                killed_at = time.monotonic()
                await states.wait_for("disconnected")
                await states.wait_for("connected")
                assert time.monotonic() - killed_at < 5
                restarts.wait()
                assert broker.url == url
    finally:
        broker.stop()
    assert broker.pid is None


def test_a_later_broker_keeps_port_and_credential(broker: Broker, tmp_path: Path) -> None:
    before = broker.address
    broker.stop()
    later = Broker(tmp_path, "node-1")
    later.start()
    assert later.address == before
    later.stop()
    later.stop()


@contextmanager
def _start_broker(folder: Path, timeouts: BrokerTimeouts) -> Iterator[Broker]:
    broker = Broker(folder, "node", timeouts=timeouts)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def test_a_broker_whose_port_was_taken_uses_another(tmp_path: Path) -> None:
    with _start_broker(tmp_path, BrokerTimeouts(port_s=0.2)) as broker:
        before = broker.url
        broker.stop()
        with socket.socket() as other_program:
            other_program.bind(("127.0.0.1", int(before.rpartition(":")[2])))
            other_program.listen()
            broker.start()
        assert broker.url != before


@pytest.mark.parametrize("content", ["", "{", '{"user": 1}'])
def test_a_damaged_credential_is_replaced(content: str, tmp_path: Path) -> None:
    broker = Broker(tmp_path, "node")
    broker.folder.mkdir()
    broker.credential_file.write_text(content)
    (broker.folder / "port").write_text(content)
    broker.start()
    assert broker.address.password
    broker.stop()


def test_a_second_broker_is_rejected_with_the_pid_of_the_first(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(BusError, match=f"in use by process {os.getpid()}"):
        Broker(tmp_path, "node-2", timeouts=BrokerTimeouts(lock_s=0.2)).start()
    assert broker.pid is not None
    assert _is_running(broker.pid)


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "nats").write_text("a file")
    with pytest.raises(BusError, match="cannot be used"):
        Broker(tmp_path, "node").start()
    (tmp_path / "nats").unlink()
    (tmp_path / "nats" / "store").mkdir(parents=True)
    (tmp_path / "nats" / "store" / "jetstream").write_text("a file")
    with pytest.raises(BusError, match="did not start"):
        Broker(tmp_path, "node").start()


def test_a_server_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn, n_killed = server_process.spawn, 0

    def spawn_and_kill(*args: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        nonlocal n_killed
        process = spawn(*args)
        if n_killed < 2:
            n_killed += 1
            process.kill()
        return process

    monkeypatch.setattr(server_process, "spawn", spawn_and_kill)
    with _start_broker(tmp_path, BrokerTimeouts()) as broker:
        assert broker.pid is not None
    assert n_killed == 2


def test_a_hanging_server_is_killed(tmp_path: Path) -> None:
    with _start_broker(tmp_path, BrokerTimeouts(stop_s=0.2)) as broker:
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        broker.stop()
        assert not _is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="run on Linux: it alone reports the death of a parent")
@pytest.mark.parametrize("hangs", [False, True])
def test_the_server_ends_with_its_node(hangs: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", START_BROKER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        server = int(node.stdout.readline())
        if hangs:
            os.kill(server, signal.SIGSTOP)
        node.kill()
        node.wait()
        successor = Broker(tmp_path, "node")
        successor.start()  # waits until the old server has ended
        assert not _is_running(server)
        successor.stop()
        _wait_for_exit(server)


def test_a_node_whose_broker_hangs_at_its_start_names_it_and_is_ended_by_sigterm(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with NodeProcess(data_dir) as node:
        assert node.terminate()[0] == 0
    (stored,) = (data_dir / "nats" / "store").rglob("meta.inf")
    stored.unlink()
    os.mkfifo(stored)
    (data_dir / "node.json").unlink()
    command = [COMMAND, "node", "--data-dir", str(data_dir), "--node", "n1"]
    with subprocess.Popen(command, env=clean_environ(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "nats-server, has started and does not listen yet" in process.stderr.readline()
            process.terminate()
            status = process.wait(30)  # less than the broker may take
            errors = process.stderr.read()
        finally:
            process.kill()
    assert (status, "nats-server did not start (it did not listen)" in errors) == (2, True), errors
    assert f"see {data_dir / 'logs' / 'nats-server.log'}" in errors
