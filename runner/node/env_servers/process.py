"""One environment server that a node started: its process, output and readiness."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import msgspec

from runner.config import EnvironmentEntry
from runner.envs.http.address import ServerAddress
from runner.envs.http.probe import NOT_LISTENING, PROBE_TIMEOUT_S, ServerState, probe_servers
from runner.envs.placement import server_address
from runner.errors import ConfigError, catch_foreign
from runner.events.control import ServerInfo, ServerStatus
from runner.node.env_servers import process_guard
from runner.node.env_servers.launch import prepare_launch
from runner.node.env_servers.log import ServerLog
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 60.0
"""Maximum seconds until a started server must be ready; some servers load large data first."""
WRONG_SERVER_TIMEOUT_S = 10.0
"""Seconds that a starting server may give wrong answers; some answer with errors while they load data."""
POLL_INTERVAL_S = 0.1
STOP_TIMEOUT_S = process_guard.STOP_GRACE_S + 2.0
DRAIN_TIMEOUT_S = 1.0
"""Maximum seconds to read the output of an ended server; an orphaned child process may keep the pipe open."""


class StartTimings(msgspec.Struct, frozen=True):
    """Durations in seconds: limit for becoming ready, limit for wrong answers, interval between two checks."""

    ready_timeout_s: float = READY_TIMEOUT_S
    wrong_server_timeout_s: float = WRONG_SERVER_TIMEOUT_S
    poll_interval_s: float = POLL_INTERVAL_S

    @property
    def outcome_timeout_s(self) -> float:
        """Maximum seconds from ``EnvServer.start`` until the server is ready, or has failed with its cause.

        Longer than the limit for becoming ready: two probes may use their whole time (is the address free, is the
        server ready), and the cause of a failure is complete when the server has been stopped and its output read.
        """
        return self.ready_timeout_s + self.poll_interval_s + 2 * PROBE_TIMEOUT_S + STOP_TIMEOUT_S + DRAIN_TIMEOUT_S


DEFAULT_TIMINGS = StartTimings()


class EnvServer:
    """A server process, started once and never restarted.

    ``on_change`` is called after each change of ``status``, on the thread that supervises the server.
    """

    def __init__(
        self,
        entry: EnvironmentEntry,
        log: Path,
        on_change: Callable[[], None],
        timings: StartTimings = DEFAULT_TIMINGS,
    ) -> None:
        """Raises ``ConfigError`` if the profile has no usable command or port, or the working directory is missing."""
        self.env = entry.name
        self._launch = prepare_launch(entry, os.environ)
        self._address = _server_address(entry)
        self._log = ServerLog(log, mask=self._launch.mask)
        self._on_change = on_change
        self._timings = timings
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        self._stop_requested = threading.Event()
        self._ready_or_failed = threading.Event()
        self.status: ServerStatus = "starting"
        self.cause: str | None = "it is starting"
        self._thread = threading.Thread(target=self._run, name=f"server {entry.name[:40]}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Also true while the server is starting."""
        return self.status in ("starting", "running")

    @property
    def info(self) -> ServerInfo:
        return ServerInfo(env=self.env, status=self.status, cause=self.cause)

    def start(self) -> None:
        """Returns immediately; ``status`` changes when the server is ready or has failed."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the server is ready or has failed; return False if it is still starting after ``timeout_s``."""
        return self._ready_or_failed.wait(timeout_s)

    def request_stop(self) -> None:
        """Returns immediately."""
        if self.is_alive:
            self.cause = "it is stopping"
        self._stop_requested.set()
        self._close_stdin()

    def wait_stopped(self, timeout_s: float) -> bool:
        """Return False if the server still runs after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop the server and wait for its end; kill it if it still runs after ``STOP_TIMEOUT_S`` seconds."""
        self.request_stop()
        if not self.wait_stopped(STOP_TIMEOUT_S) and self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.wait_stopped(STOP_TIMEOUT_S)

    def _run(self) -> None:
        problems: list[BaseException] = []
        with catch_foreign(problems.append):
            self._check_address_is_free()
            if (process := self._spawn()) is not None:
                self._set_status("failed", self._serve(process))
        for problem in problems:
            self._set_status("failed", one_line(self._launch.mask(str(problem))))
        if self._stop_requested.is_set():
            self._set_status("stopped", None)
        else:
            logger.warning("the server of %s: %s", self.env, self.cause)

    def _set_status(self, status: ServerStatus, cause: str | None) -> None:
        self.status, self.cause = status, cause
        self._ready_or_failed.set()
        self._on_change()

    def _state(self) -> ServerState:
        return probe_servers({self.env: self._address})[self.env]

    def _check_address_is_free(self) -> None:
        if (state := self._state()).cause != NOT_LISTENING:
            reason = state.cause or "another server of this environment, not started by this node, answers there"
            raise ConfigError(f"not started at {self._address.base}: {reason}")

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._guard:
            if self._stop_requested.is_set():
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", process_guard.__file__, *self._launch.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._launch.guard_environ,
                cwd=self._launch.folder,
                start_new_session=True,
            )
            return self._process

    def _close_stdin(self) -> None:
        # The process guard stops the server when this pipe closes, also if this process dies.
        with self._guard:
            if self._process is not None:
                cast(IO[bytes], self._process.stdin).close()

    def _serve(self, process: subprocess.Popen[bytes]) -> str:
        """Return the reason of the end."""
        output = cast(IO[bytes], process.stdout)
        drain = threading.Thread(target=self._log.drain, args=(output,), name="server log", daemon=True)
        drain.start()
        failure = self._wait_until_ready(process)
        if failure:
            self._close_stdin()
        code = process.wait()
        self._close_stdin()
        drain.join(DRAIN_TIMEOUT_S)
        cause = failure or f"it ended with exit code {code}"
        return f"{cause}; last output: {self._log.recent_output} (see {self._log.path})"

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until the server is ready, has ended or was stopped, and return None; return the reason if it failed."""
        started, wrong_since, cause = time.monotonic(), math.inf, "it was not checked"
        while process.poll() is None and not self._stop_requested.wait(self._timings.poll_interval_s):
            now = time.monotonic()
            if now - started > self._timings.ready_timeout_s:
                return f"it was not ready within {self._timings.ready_timeout_s:g} s: {cause}"
            if now - wrong_since > self._timings.wrong_server_timeout_s:
                return f"it is not a server of this environment: {cause}"
            state = self._state()
            if state.usable:
                self._set_status("running", None)
                return None
            cause = self._launch.mask(state.cause or "it is not ready")
            wrong_since = min(wrong_since, now) if state.status == "wrong" else math.inf
            self.cause = f"it is starting: {cause}"
        return None


def _server_address(entry: EnvironmentEntry) -> ServerAddress:
    if (address := server_address(entry)) is None:
        raise ConfigError(f"{entry.name} has a server_cmd but no port in the profile; add its port")
    return address
