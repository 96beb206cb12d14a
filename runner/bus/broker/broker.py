"""The node's own nats-server: one per state directory, started again when it dies, gone when the node is."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from runner.bus.address import BusAddress, Credential, read_credential
from runner.bus.backoff import Backoff
from runner.bus.broker import server_process
from runner.bus.broker.store_lock import StoreLock
from runner.bus.errors import BusError
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.util.files import write_secret

logger = logging.getLogger(__name__)

USER = "agentgym"
LOCK_TIMEOUT_S = 3.0
LONGEST_PAUSE_S = 5.0
PORT_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 5.0
STEADY_S = 10.0
"""A server that lived this long is started again at once."""

DISK_POLL_S = 1.0
"""Seconds between two looks."""

DISK_FULL_BYTES = 1 << 20
"""With less room than this a disk counts as full."""

DISK_RECOVERED_BYTES = 4 << 20
"""With more room than this it does no longer."""


class DiskWatch(threading.Thread):
    """Calls ``on_room``, on a thread of its own, each time the disk of ``folder`` was full and is no longer."""

    def __init__(self, folder: Path, on_room: Callable[[], None]) -> None:
        """Nothing is watched before ``start``."""
        super().__init__(name="disk watch", daemon=True)
        self._folder = folder
        self._on_room = on_room
        self._closed = threading.Event()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self.join()

    def run(self) -> None:
        """Look now and then until closed."""
        was_full = False
        while not self._closed.wait(DISK_POLL_S):
            with catch_foreign(log_failure(logger, "looking after the disk")):
                found = os.statvfs(self._folder)
                free = found.f_bavail * found.f_frsize
                if was_full and free > DISK_RECOVERED_BYTES:
                    self._on_room()
                was_full = free < DISK_FULL_BYTES or (was_full and free <= DISK_RECOVERED_BYTES)


class Broker:
    """The nats-server of a state directory, supervised by a thread of its own.

    Port and credential stay the same over restarts as far as possible. When another program took the port in the
    meantime ``url`` changes, so look at it in ``on_restart``.

    Args:
        state_dir: absolute; the server keeps its files in ``nats/`` and its log in ``logs/`` there.
        node: the server's name.
        max_payload: the largest message, in bytes.
        on_restart: called in the broker's thread when the server is there again.
    """

    def __init__(
        self,
        state_dir: Path,
        node: str,
        *,
        max_payload: int = 1 << 20,
        on_restart: Callable[[], None] | None = None,
    ) -> None:
        """Nothing happens before ``start``."""
        self.folder = state_dir / "nats"
        self.log = state_dir / "logs" / "nats-server.log"
        self.credential_file = self.folder / "credential.json"
        self._node = node
        self._max_payload = max_payload
        self._on_restart = on_restart
        self._credential = Credential(USER, "")
        self._port: int | None = None
        self._lock: StoreLock | None = None
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._disk: DiskWatch | None = None
        self._first: Future[None] = Future()
        self._stopping = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens; without the credential."""
        return f"nats://{server_process.HOST}:{self._port}"

    @property
    def address(self) -> BusAddress:
        """Where it listens and how to log in."""
        return BusAddress(self.url, user=self._credential.user, password=self._credential.password)

    @property
    def pid(self) -> int | None:
        """The running server's."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Start the server and wait until it listens.

        Raises:
            BusError: when another process has the store, or the server does not start.
        """
        server = server_process.executable()
        try:
            lock = self._prepare()
        except OSError as exc:
            self.stop()
            raise BusError("other", f"{self.folder} cannot be used: {exc}") from exc
        self._first = Future()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._supervise, args=(server, lock), name="broker", daemon=True)
        self._thread.start()
        try:
            self._first.result()
        except BusError:
            self.stop()
            raise
        self._disk = DiskWatch(self.folder, self._start_anew)
        self._disk.start()

    def stop(self) -> None:
        """End the server and let go of its store; does nothing when it does not run."""
        self._stopping.set()
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        with self._guard:
            process = self._process
        if process is not None:
            server_process.end(process, STOP_TIMEOUT_S)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _prepare(self) -> StoreLock:
        for folder in (self.folder.parent, self.folder, self.log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = StoreLock(self.folder / "lock", timeout_s=LOCK_TIMEOUT_S)
        self._credential = self._make_credential()
        return self._lock

    def _supervise(self, server: str, lock: StoreLock) -> None:
        """Start the server whenever it is not there. All starts are made by this thread: a server dies with it."""
        pauses = Backoff(LONGEST_PAUSE_S)
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                process = self._launch(server, lock)
            except (OSError, BusError) as exc:
                error = exc if isinstance(exc, BusError) else BusError("other", f"nats-server cannot be started: {exc}")
                if not self._first.done():
                    self._first.set_exception(error)
                    return
                logger.warning("%s", error)
            else:
                self._announce()
                process.wait()
                if not self._stopping.is_set():
                    logger.warning("nats-server ended (%s), starting it again", server_process.how_ended(process))
            if time.monotonic() - began > STEADY_S:
                pauses.reset()
            self._stopping.wait(pauses.next())

    def _start_anew(self) -> None:
        """A server that could once not write to its store takes nothing more until it is started again."""
        logger.warning("the disk of %s has room again, nats-server is ended for a fresh start", self.folder)
        with self._guard:
            process = self._process
        if process is not None:
            process.terminate()

    def _launch(self, server: str, lock: StoreLock) -> subprocess.Popen[bytes]:
        """Start a server and wait until it listens."""
        config = server_process.write_config(
            self.folder,
            self.log,
            name=self._node,
            port=self._wanted_port(),
            credential=self._credential,
            max_payload=self._max_payload,
        )
        ports = self.folder / "ports"
        with self._guard:
            if self._stopping.is_set():
                raise BusError("other", "nats-server was stopped before it listened")
            process = self._process = server_process.spawn(server, config, ports, lock.descriptor)
        lock.record(process.pid)
        port = server_process.port_of(process, ports, self._stopping.is_set)
        if port is None:
            server_process.end(process, STOP_TIMEOUT_S)
            ended = server_process.how_ended(process)
            raise BusError("other", f"nats-server did not start ({ended}): {server_process.last_words(self.log)}")
        if port != self._port:
            self._port = port
            (self.folder / "port").write_text(f"{port}\n")
        return process

    def _announce(self) -> None:
        if not self._first.done():
            self._first.set_result(None)
        elif self._on_restart is not None:
            with catch_foreign(log_failure(logger, "a callback of the broker")):
                self._on_restart()

    def _wanted_port(self) -> int:
        """The port of last time, which clients know, unless somebody else has it now; then any."""
        try:
            port = self._port or int((self.folder / "port").read_text())
        except (OSError, ValueError):
            return -1
        if 0 < port < 65536 and server_process.wait_for_free(port, PORT_TIMEOUT_S):
            return port
        logger.warning("port %d was taken by another program, nats-server moves", port)
        return -1

    def _make_credential(self) -> Credential:
        """The one of last time, or a new one where it is missing, damaged or was open to others."""
        try:
            return read_credential(self.credential_file)
        except ConfigError:
            credential = Credential(USER, secrets.token_urlsafe(32))
            write_secret(self.credential_file, msgspec.json.encode(credential))
            return credential
