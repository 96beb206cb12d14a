"""One server that a node started: its process, its output, and whether it answers."""

from __future__ import annotations

import logging
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

from runner.config import EnvironmentEntry
from runner.envs.http.address import ServerAddress
from runner.envs.http.probe import NOBODY, ServerState, probe
from runner.envs.placement import address_of
from runner.errors import ConfigError, boundary
from runner.events.control import ServerInfo, ServerStatus
from runner.node.env_servers import supervisor as keeper
from runner.node.env_servers.log import ServerLog
from runner.util.text import is_secret_name, mask, one_line

logger = logging.getLogger(__name__)

READY_S = 60.0
"""Seconds for a server to answer; some read much data first."""
WRONG_S = 10.0
"""Seconds for what answers to become this environment's server; some answer with errors while they read."""
POLL_S = 0.1
STOP_S = keeper.GRACE_S + 2.0
DRAIN_S = 1.0
"""Seconds for what was said last; somebody that the server left behind may hold the pipe open."""


class Server:
    """A server from its start on; it is started once, and not again when it ends.

    ``on_change`` is called on its own thread whenever its status is another.
    """

    def __init__(self, entry: EnvironmentEntry, log: Path, on_change: Callable[[], None]) -> None:
        """Look whether it can be started.

        Raises:
            ConfigError: saying what the profile lacks, or what is not installed.
        """
        self.env = entry.name
        self._command = _command(entry)
        self._address = _place(entry)
        self._log = ServerLog(log)
        self._on_change = on_change
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        self._unwanted = threading.Event()
        self._settled = threading.Event()
        self.status: ServerStatus = "starting"
        self.cause: str | None = "it is starting"
        self._thread = threading.Thread(target=self._run, name=f"server {entry.name[:40]}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it starts or runs."""
        return self.status in ("starting", "running")

    @property
    def info(self) -> ServerInfo:
        """How it is, for who asks."""
        return ServerInfo(env=self.env, status=self.status, cause=self.cause)

    def start(self) -> None:
        """Begin to start; ``status`` tells how that went."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it answers or will not; False when it took longer."""
        return self._settled.wait(timeout_s)

    def ask_to_stop(self) -> None:
        """Begin to stop."""
        if self.alive:
            self.cause = "it is stopping"
        self._unwanted.set()
        self._let_go()

    def ended(self, timeout_s: float) -> bool:
        """Wait for the end; False when it took longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop, by force when it takes too long."""
        self.ask_to_stop()
        if not self.ended(STOP_S) and self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.ended(STOP_S)

    def _run(self) -> None:
        problems: list[BaseException] = []
        with boundary(problems.append):
            self._refuse_taken_place()
            if (process := self._spawn()) is not None:
                self._become("failed", self._serve(process))
        for problem in problems:
            self._become("failed", one_line(mask(str(problem))))
        if self._unwanted.is_set():
            self._become("stopped", None)
        else:
            logger.warning("the server of %s: %s", self.env, self.cause)

    def _become(self, status: ServerStatus, cause: str | None) -> None:
        self.status, self.cause = status, cause
        self._settled.set()
        self._on_change()

    def _state(self) -> ServerState:
        return probe({self.env: self._address})[self.env]

    def _refuse_taken_place(self) -> None:
        if (state := self._state()).cause != NOBODY:
            what = state.cause or "it is a server of this environment, which this node did not start"
            raise ConfigError(f"nothing was started at {self._address.base}: {what}")

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._guard:
            if self._unwanted.is_set():
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=child_environ(os.environ),
                start_new_session=True,
            )
            return self._process

    def _let_go(self) -> None:
        """End the process: its keeper waits for this pipe to close, by us or by our death."""
        with self._guard:
            if self._process is not None:
                cast(IO[bytes], self._process.stdin).close()

    def _serve(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until it answers, then until it ends; returns how it ended."""
        output = cast(IO[bytes], process.stdout)
        drain = threading.Thread(target=self._log.drain, args=(output,), name="server log", daemon=True)
        drain.start()
        given_up = self._watch(process)
        if given_up:
            self._let_go()
        code = process.wait()
        self._let_go()
        drain.join(DRAIN_S)
        ending = given_up or f"it ended with exit code {code}"
        return f"{ending}; its last words: {self._log.last_words} (see {self._log.path})"

    def _watch(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until it answers; returns why it is given up, None where it answered, ended or is not wanted."""
        started, wrong_since, cause = time.monotonic(), math.inf, "it was not asked"
        while process.poll() is None and not self._unwanted.wait(POLL_S):
            now = time.monotonic()
            if now - started > READY_S:
                return f"it did not answer as it should within {READY_S:g} s: {cause}"
            if now - wrong_since > WRONG_S:
                return f"it is no server of this environment: {cause}"
            state = self._state()
            if state.usable:
                self._become("running", None)
                return None
            cause = state.cause or "it is not well"
            wrong_since = min(wrong_since, now) if state.status == "wrong" else math.inf
            self.cause = f"it is starting: {cause}"
        return None


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What a server gets of our variables: none that are named like a secret, or hold a URL with a password.

    Our own commands can be found, whether or not their folder is on the path.
    """
    known = {name: value for name, value in environ.items() if not (is_secret_name(name) or mask(value, {}) != value)}
    return known | {"PATH": os.pathsep.join(filter(None, (known.get("PATH"), str(Path(sys.executable).parent))))}


def _command(entry: EnvironmentEntry) -> list[str]:
    if entry.server_cmd is None:
        raise ConfigError(f"{entry.name} has no server_cmd in the profile, so there is nothing to start")
    try:
        command = shlex.split(entry.server_cmd)
    except ValueError as exc:
        raise ConfigError(f"server_cmd of {entry.name} cannot be split into words: {exc}") from exc
    if not command:
        raise ConfigError(f"server_cmd of {entry.name} is blank")
    if shutil.which(command[0], path=child_environ(os.environ)["PATH"]) is None:
        raise ConfigError(
            f"server_cmd of {entry.name} starts {one_line(mask(command[0]))}, which is not installed here"
        )
    return command


def _place(entry: EnvironmentEntry) -> ServerAddress:
    if (address := address_of(entry)) is None:
        raise ConfigError(f"{entry.name} has a server_cmd but no port in the profile, so nobody could find its server")
    return address
