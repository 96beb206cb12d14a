"""Environment servers of a node: runs each ``server_cmd`` of the profile on request, or at start (``autostart``)."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runner.config import EnvironmentEntry, Profile
from runner.envs.names import UnplayableName
from runner.envs.placement import environment_entry
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.events.control import ServerInfo
from runner.node.env_servers.process import DEFAULT_TIMINGS, EnvServer, StartTimings, log_name
from runner.util.display_text import mask, one_line

logger = logging.getLogger(__name__)

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
            if existing is not None and existing.is_alive:
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
        server.wait_stopped(STOP_WAIT_S)
        return server.info

    def close(self) -> None:
        """Stop all servers and reject later starts."""
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
            if server.wait_ready(READY_POLL_S):
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
