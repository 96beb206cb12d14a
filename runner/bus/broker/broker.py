"""The node's own nats-server: one per state directory, restarted when it exits, and stopped with the node."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import msgspec

from runner.bus.address import BusAddress, Credential, read_credential
from runner.bus.backoff import Backoff
from runner.bus.broker import server_process
from runner.bus.errors import BusError
from runner.config import LiveStream
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.util.child_process import ChildProcess, describe_end
from runner.util.files import replace_file

logger = logging.getLogger(__name__)

USER = "agentgym"
MAX_FIRST_STARTS = 3
"""Number of times that the first start of a server is tried if a signal ended it."""
MAX_BACKOFF_S = 5.0
STABLE_AFTER_S = 10.0
"""Seconds; a server that ran at least this long is restarted after the shortest pause."""
DISK_POLL_S = 1.0
DISK_FULL_BYTES = 1 << 20
"""A disk with fewer free bytes counts as full."""
DISK_RECOVERED_BYTES = 4 << 20
"""A full disk counts as recovered when it has more free bytes than this."""


class BrokerTimeouts(msgspec.Struct, frozen=True):
    """Seconds until another process releases the store, the previous port is free, and a server is killed."""

    lock_s: float = 3.0
    port_s: float = 2.0
    stop_s: float = 5.0


DEFAULT_TIMEOUTS: Final = BrokerTimeouts()


class DiskWatch(threading.Thread):
    """Thread that calls ``on_recovered`` each time the disk of ``folder`` has free space again after being full."""

    def __init__(self, folder: Path, on_recovered: Callable[[], None]) -> None:
        super().__init__(name="disk watch", daemon=True)
        self._folder = folder
        self._on_recovered = on_recovered
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        self.join()

    def run(self) -> None:
        was_full = False
        while not self._closed.wait(DISK_POLL_S):
            with catch_foreign(log_failure(logger, "checking the disk")):
                disk = os.statvfs(self._folder)
                free = disk.f_bavail * disk.f_frsize
                if was_full and free > DISK_RECOVERED_BYTES:
                    self._on_recovered()
                was_full = free < DISK_FULL_BYTES or (was_full and free <= DISK_RECOVERED_BYTES)


class Broker:
    """The nats-server of a state directory, supervised by a thread.

    Restarts keep the port and the credential. When another program has taken the port, ``url`` changes, so read it
    again in ``on_restart``.

    Args:
        state_dir: absolute path; the server's files are in its ``nats/``, the log is in its ``logs/``.
        live_bytes: maximum size of the stream of live items, from which the memory limit of the server follows.
        monitor_port: port of the monitoring pages, such as ``/healthz``; None for no pages.
        on_restart: called in the broker's thread when a restarted server listens again.
    """

    def __init__(
        self,
        state_dir: Path,
        node: str,
        *,
        live_bytes: int = LiveStream().max_bytes,
        monitor_port: int | None = None,
        on_restart: Callable[[], None] | None = None,
        timeouts: BrokerTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.folder = state_dir / "nats"
        self.log = state_dir / "logs" / "nats-server.log"
        self.credential_file = self.folder / "credential.json"
        self._node = node
        self._memory = server_process.memory_limit(live_bytes)
        self._monitor_port = monitor_port
        self._on_restart = on_restart
        self._timeouts = timeouts
        self._credential = Credential(USER, "")
        self._port: int | None = None
        self._lock: server_process.StoreLock | None = None
        self._guard = threading.Lock()
        self._process: ChildProcess | None = None
        self._was_killed = False
        self._thread: threading.Thread | None = None
        self._disk: DiskWatch | None = None
        self._first_start: Future[None] = Future()
        self._stopping = threading.Event()
        self._is_cancelled: Callable[[], bool] = lambda: False

    @property
    def url(self) -> str:
        return f"nats://{server_process.HOST}:{self._port}"

    @property
    def address(self) -> BusAddress:
        return BusAddress(self.url, user=self._credential.user, password=self._credential.password)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it listens; a server that does not listen is ended when ``is_cancelled``.

        Raises:
            BusError: another process uses the store, or the server does not start.
        """
        self._is_cancelled = is_cancelled
        server = server_process.executable()
        try:
            lock = self._prepare()
        except OSError as exc:
            self.stop()
            raise BusError("other", f"{exc.filename or self.folder} cannot be used: {exc.strerror}") from exc
        self._first_start = Future()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._supervise, args=(server, lock), name="broker", daemon=True)
        self._thread.start()
        try:
            self._first_start.result()
        except BusError:
            self.stop()
            raise
        self._disk = DiskWatch(self.folder, self._restart_after_full_disk)
        self._disk.start()

    def stop(self) -> None:
        """Stop the server and release its store; does nothing when it is not running."""
        self._stopping.set()
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        with self._guard:
            process = self._process
        if process is not None:
            process.terminate()
            process.end(self._timeouts.stop_s)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def restore_credential(self) -> bool:
        """Write the credential file again if it is missing, changed or readable by others; return whether it was."""
        try:
            if read_credential(self.credential_file) == self._credential:
                return False
        except ConfigError:
            pass
        replace_file(self.credential_file, msgspec.json.encode(self._credential))
        return True

    def _prepare(self) -> server_process.StoreLock:
        for folder in (self.folder.parent, self.folder, self.log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = server_process.StoreLock(self.folder / "lock", timeout_s=self._timeouts.lock_s)
        self._credential = self._load_credential()
        return self._lock

    def _supervise(self, server: str, lock: server_process.StoreLock) -> None:
        """Run and restart the server. Only this thread starts servers: each dies with the thread that started it."""
        backoff, n_failed_starts = Backoff(MAX_BACKOFF_S), 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                process = self._launch(server, lock)
            except (OSError, BusError) as exc:
                error = exc if isinstance(exc, BusError) else BusError("other", f"nats-server cannot be started: {exc}")
                n_failed_starts += 1
                if not self._first_start.done() and not (self._was_killed and n_failed_starts < MAX_FIRST_STARTS):
                    self._first_start.set_exception(error)
                    return
                logger.warning("%s", error)
            else:
                self._report_start()
                code = process.wait()
                if not self._stopping.is_set():
                    logger.warning("nats-server %s; restarting it", describe_end(code))
            if time.monotonic() - started > STABLE_AFTER_S:
                backoff.reset()
            self._stopping.wait(backoff.next())

    def _restart_after_full_disk(self) -> None:
        # After a failed write, a server rejects all messages until it is restarted.
        logger.warning("the disk of %s has free space again; restarting nats-server", self.folder)
        with self._guard:
            process = self._process
        if process is not None:
            process.terminate()

    def _launch(self, server: str, lock: server_process.StoreLock) -> ChildProcess:
        config = server_process.write_config(
            self.folder,
            self.log,
            name=self._node,
            port=self._choose_port(),
            credential=self._credential,
            monitor_port=self._free_monitor_port(),
        )
        ports = self.folder / "ports"
        with self._guard:
            if self._stopping.is_set():
                raise BusError("other", "nats-server was stopped before it was listening")
            process = self._process = server_process.spawn(server, config, ports, lock.descriptor, self._memory)
        lock.record(process.pid)
        port = server_process.wait_for_port(process, ports, self._is_start_cancelled)
        if port is None:
            code = process.poll()
            self._was_killed = (code or 0) < 0
            last_line = server_process.last_log_error(self.log)
            reason = "did not listen" if code is None else describe_end(code)
            process.terminate()
            process.end(self._timeouts.stop_s)
            raise BusError("other", f"nats-server did not start (it {reason}): {last_line}; see {self.log}")
        if port != self._port:
            self._port = port
            (self.folder / "port").write_text(f"{port}\n")
        return process

    def _is_start_cancelled(self) -> bool:
        return self._stopping.is_set() or (not self._first_start.done() and self._is_cancelled())

    def _report_start(self) -> None:
        if not self._first_start.done():
            self._first_start.set_result(None)
        elif self._on_restart is not None:
            with catch_foreign(log_failure(logger, "a broker callback")):
                self._on_restart()

    def _choose_port(self) -> int:
        """Return the previous port, which clients know, or -1 (any) when another program has taken it."""
        try:
            port = self._port or int((self.folder / "port").read_text())
        except (OSError, ValueError):
            return -1
        if 0 < port < 65536 and server_process.wait_for_free(port, self._timeouts.port_s):
            return port
        logger.warning("port %d is taken by another program; nats-server uses another port", port)
        return -1

    def _free_monitor_port(self) -> int | None:
        port = self._monitor_port
        if port is None or server_process.wait_for_free(port, self._timeouts.port_s):
            return port
        logger.warning("nats.monitor_port %d is taken by another program; nats-server runs without it", port)
        return None

    def _load_credential(self) -> Credential:
        """Return the stored credential, or a new one when it is missing, damaged or readable by others."""
        try:
            return read_credential(self.credential_file)
        except ConfigError:
            credential = Credential(USER, secrets.token_urlsafe(32))
            replace_file(self.credential_file, msgspec.json.encode(credential))
            return credential
