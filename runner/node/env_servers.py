"""Environment servers as child processes of a node: each ``server_cmd`` of the profile, on request or at start."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, cast

import msgspec

from runner.config import EnvironmentEntry, Profile
from runner.envs.http.server import NOT_LISTENING, PROBE_TIMEOUT_S, ServerState, probe_servers
from runner.envs.names import UnplayableName
from runner.envs.placement import environment_entry, server_address
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.events.control import ServerInfo, ServerStatus
from runner.node import process_guard
from runner.util.child_process import ChildProcess, describe_end
from runner.util.display_text import mask, masker, one_line, public_variables, secret_lines
from runner.util.files import resolve_path

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = process_guard.STOP_GRACE_S + 2.0
DRAIN_TIMEOUT_S = 1.0
"""Maximum seconds to read the output of an ended server; an orphaned child process may keep the pipe open."""
MAX_BYTES = 1 << 20
"""Maximum bytes of the log file; a full log file is renamed to ``….log.1`` and replaces the one of that name."""
MAX_LINE_BYTES = 2000
N_RECENT_LINES, MAX_RECENT_CHARS = 5, 200
"""Number of recent lines in memory, and maximum length of each."""


def log_name(env: str) -> str:
    """Return the log file name of an environment: its name without special characters, plus a hash of the name."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", env)[:64]
    if plain != env:
        plain += "-" + hashlib.blake2b(env.encode(errors="replace"), digest_size=4).hexdigest()
    return f"server-{plain}.log"


class ServerLog:
    """The log file of one server, which its first line creates; only one thread may write to it.

    ``mask`` hides secrets, by default this process's.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, mask: Callable[[str], str] | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._recent: deque[str] = deque(maxlen=N_RECENT_LINES)
        self._mask = mask or masker()
        self._size = 0

    @property
    def recent_output(self) -> str:
        """The most recent lines as one text; thread-safe."""
        return " | ".join(self._recent.copy()) or "no output"

    def drain(self, output: IO[bytes]) -> None:
        """Write a server's output to the log until the output ends; keep reading even if the log cannot be written."""
        with output:
            while line := output.readline(MAX_LINE_BYTES):
                text = one_line(self._mask(line.decode(errors="replace").rstrip("\r\n")), MAX_LINE_BYTES)
                if text.strip():
                    self._recent.append(one_line(text, MAX_RECENT_CHARS))
                with suppress(OSError):
                    self._write(f"{text}\n".encode())

    def _write(self, line: bytes) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._size + len(line) > self._max_bytes:
            self.path.replace(self.path.with_suffix(".log.1"))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line)
            self._size = file.tell()


@dataclass(frozen=True)
class Launch:
    """Everything that starts one server.

    Attributes:
        environ: all environment variables of the server.
        mask: hides the values of the profile's variables, and the secrets of this process.
    """

    command: list[str]
    folder: Path | None
    environ: dict[str, str] = field(repr=False)
    mask: Callable[[str], str] = field(repr=False)


def prepare_launch(entry: EnvironmentEntry, environ: Mapping[str, str]) -> Launch:
    """Check that the server of an environment can be started, and return how."""
    if entry.server_cmd is None:
        raise ConfigError(f"{entry.name} has no server_cmd in the profile; add one")
    try:
        command = shlex.split(entry.server_cmd)
    except ValueError as exc:
        raise ConfigError(f"server_cmd of {entry.name} is not a valid command line: {exc}") from exc
    if not command:
        raise ConfigError(f"server_cmd of {entry.name} is empty")
    folder = None if entry.cwd is None else _folder(entry.name, resolve_path(entry.cwd, environ, Path.cwd()))
    variables = child_environ(environ, entry.env)
    if _locate(command[0], folder, variables["PATH"]) is None:
        place = "" if folder is None else f" (searched from its cwd {_shown(folder)})"
        raise ConfigError(
            f"server_cmd of {entry.name} starts {_shown(command[0])}, which is not installed here{place}; "
            "install it, or correct server_cmd"
        )
    return Launch(command, folder, variables, masker(environ, secret_lines(entry.env.values())))


def child_environ(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a server: its ``own``, and what it inherits.

    Inherited variables that look like secrets or contain a URL with a password are removed. PATH also contains the
    folder of the commands of this Python installation.
    """
    variables = public_variables(environ) | dict(own)
    path = filter(None, (variables.get("PATH"), str(Path(sys.executable).parent)))
    return variables | {"PATH": os.pathsep.join(path)}


def _folder(env: str, folder: Path) -> Path:
    if os.access(folder, os.X_OK) and folder.is_dir():
        return folder
    problem = "is not a folder that this user can enter" if os.access(folder, os.F_OK) else "does not exist"
    raise ConfigError(f"cwd of {env} is {_shown(folder)}, which {problem}; create it, or correct cwd in the profile")


def _locate(program: str, folder: Path | None, search_path: str) -> str | None:
    """Return the path of a program as the operating system finds it from the server's working directory."""
    if folder is None:
        return shutil.which(program, path=search_path)
    if os.sep in program:
        return shutil.which(folder / program)
    return shutil.which(program, path=os.pathsep.join(str(folder / part) for part in search_path.split(os.pathsep)))


def _shown(text: str | Path) -> str:
    return one_line(mask(str(text)))


class StartTimings(msgspec.Struct, frozen=True):
    """Limits of a start, in which some servers load large data, and until then do not answer or answer with errors."""

    ready_timeout_s: float = 60.0
    wrong_server_timeout_s: float = 10.0
    poll_interval_s: float = 0.1

    @property
    def outcome_timeout_s(self) -> float:
        """Maximum seconds from ``EnvServer.start`` until the server is ready, or has failed with its cause.

        Longer than the limit for becoming ready: two probes may use their whole time (is the address free, is the
        server ready), and the cause of a failure is complete when the server has been stopped and its output read.
        """
        return self.ready_timeout_s + self.poll_interval_s + 2 * PROBE_TIMEOUT_S + STOP_TIMEOUT_S + DRAIN_TIMEOUT_S


DEFAULT_TIMINGS = StartTimings()


class EnvServer(threading.Thread):
    """A server process, started once and never restarted; its thread supervises it.

    ``on_change`` is called after each change of ``status``, on that thread.

    Raises:
        ConfigError: the profile has no usable command or port, or the working directory is missing.
    """

    def __init__(
        self, entry: EnvironmentEntry, log: Path, on_change: Callable[[], None], timings: StartTimings
    ) -> None:
        super().__init__(name=f"server {entry.name[:40]}", daemon=True)
        self.env = entry.name
        self._launch = prepare_launch(entry, os.environ)
        if (address := server_address(entry)) is None:
            raise ConfigError(f"{entry.name} has a server_cmd but no port in the profile; add its port")
        self._address = address
        self._log = ServerLog(log, mask=self._launch.mask)
        self._on_change = on_change
        self._timings = timings
        self._process: ChildProcess | None = None
        self._guard = threading.Lock()
        self._stop_requested = threading.Event()
        self.ready_or_failed = threading.Event()
        self.status: ServerStatus = "starting"
        self.cause: str | None = "it is starting"

    @property
    def is_up(self) -> bool:
        """Also true while the server is starting."""
        return self.status in ("starting", "running")

    @property
    def info(self) -> ServerInfo:
        return ServerInfo(env=self.env, status=self.status, cause=self.cause)

    def request_stop(self) -> None:
        if self.is_up:
            self.cause = "it is stopping"
        self._stop_requested.set()
        self._close_stdin()

    def stop(self) -> None:
        """Stop the server and wait for its end; kill it if it still runs after ``STOP_TIMEOUT_S`` seconds."""
        self.request_stop()
        self.join(STOP_TIMEOUT_S)
        if self.is_alive() and self._process is not None:
            self._process.kill()
            self.join(STOP_TIMEOUT_S)

    def run(self) -> None:
        problems: list[BaseException] = []
        with catch_foreign(problems.append):
            if (state := self._state()).cause != NOT_LISTENING:
                reason = state.cause or "another server of this environment, not started by this node, answers there"
                raise ConfigError(f"not started at {self._address.base}: {reason}")
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
        self.ready_or_failed.set()
        self._on_change()

    def _state(self) -> ServerState:
        return probe_servers({self.env: self._address})[self.env]

    def _spawn(self) -> ChildProcess | None:
        with self._guard:
            if self._stop_requested.is_set():
                return None
            self._process = ChildProcess(
                [sys.executable, "-I", "-S", process_guard.__file__, *self._launch.command],
                {},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._launch.folder,
            )
            with suppress(BrokenPipeError):  # its end will be reported
                stdin = cast(IO[bytes], self._process.stdin)
                stdin.write(json.dumps(self._launch.environ).encode() + b"\n")
                stdin.flush()
            return self._process

    def _close_stdin(self) -> None:
        # The process guard stops the server when this pipe closes, also if this process dies.
        with self._guard:
            if self._process is not None:
                with suppress(BrokenPipeError):
                    cast(IO[bytes], self._process.stdin).close()

    def _serve(self, process: ChildProcess) -> str:
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
        cause = failure or f"it {describe_end(code)}"
        return f"{cause}; last output: {self._log.recent_output} (see {self._log.path})"

    def _wait_until_ready(self, process: ChildProcess) -> str | None:
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


READY_POLL_S = 0.2
STOP_WAIT_S = 1.0


class EnvServerManager:
    """Starts and stops environment servers, whose log files are in the folder ``logs``; thread-safe."""

    def __init__(self, profile: Profile, logs: Path, timings: StartTimings = DEFAULT_TIMINGS) -> None:
        self._profile = profile
        self._logs = logs
        self._timings = timings
        self._guard = threading.Lock()
        self._servers: dict[str, EnvServer] = {}
        self._start_errors: dict[str, str] = {}
        """Reasons why servers could not be started, by environment name in lower case."""
        self._closed = False
        self._n_changes = itertools.count(1)
        self.n_changes = 0
        """Total status changes of all servers; the health monitor checks the servers again when this number grows."""

    def autostart(self) -> None:
        """Start the servers that have ``autostart`` in the profile; log each failure and return it from ``cause``."""
        for _, entry in self._profile.tiered_entries():
            if entry.autostart:
                with catch_foreign(partial(self._note_start_failure, entry.name)):
                    self.start(entry.name)

    def start(self, env: str) -> ServerInfo:
        """Start a server unless it runs, without waiting for it; raises ``ConfigError`` if it cannot be started."""
        entry = self._entry(env)
        with self._guard:
            existing = self._servers.get(entry.name.casefold())
            if existing is not None and existing.is_up:
                return existing.info
            if self._closed:
                raise ConfigError(f"The server of {entry.name} cannot start: this node is stopping")
            server = EnvServer(entry, self._logs / log_name(entry.name), self._note_change, self._timings)
            self._servers[entry.name.casefold()] = server
            server.start()
        return server.info

    def stop(self, env: str) -> ServerInfo:
        """Wait ``STOP_WAIT_S`` at most for the end; raises ``ConfigError`` if this node did not start such a server."""
        entry = self._entry(env)
        with self._guard:
            server = self._servers.get(entry.name.casefold())
        if server is None:
            raise ConfigError(f"This node did not start a server of {entry.name}")
        server.request_stop()
        server.join(STOP_WAIT_S)
        return server.info

    def close(self) -> None:
        with self._guard:
            self._closed = True
            servers = list(self._servers.values())
        for server in servers:
            server.request_stop()
        for server in servers:
            server.stop()

    def cause(self, env: str) -> str | None:
        server = self._servers.get(env.casefold())
        cause = self._start_errors.get(env.casefold()) if server is None else server.cause
        return None if cause is None else f"its server: {cause}"

    def wait_for(self, env: str, is_cancelled: Callable[[], bool]) -> None:
        """Wait until a starting server is ready or has failed; return early if ``is_cancelled()`` becomes true.

        The limit is ``StartTimings.outcome_timeout_s``, so that ``cause`` has the reason if the server has failed.
        """
        server = self._servers.get(env.casefold())
        deadline = time.monotonic() + self._timings.outcome_timeout_s
        while server is not None and not is_cancelled() and time.monotonic() < deadline:
            if server.ready_or_failed.wait(READY_POLL_S):
                return

    def _note_start_failure(self, env: str, problem: BaseException) -> None:
        log_failure(logger, f"starting the server of {env}")(problem)
        self._start_errors[env.casefold()] = f"it was not started: {one_line(mask(str(problem)))}"
        self._note_change()

    def _note_change(self) -> None:
        self.n_changes = next(self._n_changes)

    def _entry(self, env: str) -> EnvironmentEntry:
        entry = environment_entry(self._profile, env)
        if entry is None:
            with_command = [each.name for _, each in self._profile.tiered_entries() if each.server_cmd]
            raise UnplayableName(
                f"The profile {self._profile.id} has no environment {env!r}",
                f"Environments with a server_cmd: {', '.join(with_command) or 'none'}",
            )
        return entry
