from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

EXECUTABLE = Path(sys.executable).with_name("nats-server")
START_TIMEOUT_S = 20.0
N_ACCOUNTS = 400
"""Accounts of a shared server; each test of a worker that uses the server takes one."""


class Bus(Protocol):
    """A NATS server or account that tests connect to."""

    @property
    def url(self) -> str:
        """URL to connect to, with user information."""

    @property
    def display_url(self) -> str:
        """URL without user information."""


class NatsServer:
    """A real nats-server on a random loopback port, with its own folder.

    ``config`` becomes the configuration file, as JSON; ``options`` are added to the command line. A restart keeps the
    port and the store.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jetstream: bool = True,
        config: Mapping[str, Any] | None = None,
        options: tuple[str, ...] = (),
        port: int = -1,
        scheme: str = "nats",
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.log = folder / "server.log"
        self.port = port
        self.config: dict[str, Any] = dict(config or {})
        self._jetstream = jetstream
        self._options = options
        self._scheme = scheme
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def display_url(self) -> str:
        return self.url

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        assert not self.running, "the server is already running"
        ports = self.folder / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        command = [str(EXECUTABLE), "-a", "127.0.0.1", "-p", str(self.port), "--ports_file_dir", str(ports)]
        command += ["-l", str(self.log), *self._options]
        if self._jetstream:
            command += ["-js", "-sd", str(self.store)]
        if self.config:
            path = self.folder / "server.conf"
            path.write_text(json.dumps(self.config))
            command += ["-c", str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.port = self._wait_for_port(ports)
        self._wait_until_listening()
        return self

    def kill(self) -> None:
        self._terminate(signal.SIGKILL)

    def stop(self) -> None:
        self._terminate(signal.SIGTERM)

    def restart(self) -> Self:
        self.kill()
        return self.start()

    def reload(self, config: Mapping[str, Any]) -> None:
        """Apply another configuration; the server disconnects clients that it no longer accepts."""
        self.config = dict(config)
        (self.folder / "server.conf").write_text(json.dumps(self.config))
        os.kill(self.pid, signal.SIGHUP)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def empty_store(self) -> None:
        assert not self.running, "the server is still running"
        shutil.rmtree(self.store, ignore_errors=True)

    def _terminate(self, stop_signal: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(stop_signal)
            self._process.send_signal(signal.SIGCONT)  # a paused process handles no other signal than SIGKILL
        self._process.wait(START_TIMEOUT_S)

    def _wait_for_port(self, folder: Path) -> int:
        for _ in self._poll("wrote no ports file"):
            for path in folder.glob("*.ports"):
                try:
                    return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
                except (ValueError, KeyError, IndexError):  # the file is still being written
                    continue
        raise AssertionError("unreachable")

    def _wait_until_listening(self) -> None:
        for _ in self._poll("does not listen"):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                continue
            return

    def _poll(self, failure: str) -> Iterator[None]:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            yield
            time.sleep(0.005)
        raise AssertionError(f"nats-server {failure}:\n{self._read_log()}")

    def _read_log(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "(no log)"


class NatsAccount:
    """One account of a shared server; other accounts do not see its subjects and streams."""

    def __init__(self, server: NatsServer, name: str) -> None:
        self.name = name
        self.port = server.port

    @property
    def url(self) -> str:
        return f"nats://{self.name}:{self.name}@127.0.0.1:{self.port}"

    @property
    def display_url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


class SharedNatsServer(NatsServer):
    """A server that many tests share without stopping it; each test takes a new account."""

    def __init__(self, folder: Path) -> None:
        names = [f"test{number}" for number in range(N_ACCOUNTS)]
        accounts = {name: {"jetstream": "enabled", "users": [{"user": name, "password": name}]} for name in names}
        # Streams reserve their maximum size; the default limit, a part of the free disk, is soon used up.
        storage = {"max_file_store": 1 << 50, "max_memory_store": 1 << 50}
        super().__init__(folder, config={"accounts": accounts, "jetstream": storage})
        self._names = iter(names)

    def new_account(self) -> NatsAccount:
        name = next(self._names, None)
        assert name is not None, f"more than {N_ACCOUNTS} tests of one worker need an account; raise N_ACCOUNTS"
        return NatsAccount(self, name)
