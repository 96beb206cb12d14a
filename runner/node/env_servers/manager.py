"""The servers that a node starts and stops: those of its profile's ``server_cmd``, when asked or by ``autostart``."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runner.config import EnvironmentEntry, Profile
from runner.envs.placement import environment_entry
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.events.control import ServerInfo
from runner.node.env_servers.log import log_name
from runner.node.env_servers.process import READY_TIMEOUT_S, EnvServer
from runner.util.text import mask, one_line

logger = logging.getLogger(__name__)

READY_POLL_S = 0.2
STOP_WAIT_S = 1.0


class EnvServerManager:
    """Starts and stops servers; from any thread."""

    def __init__(self, profile: Profile, logs: Path) -> None:
        """Nothing is started; ``logs`` is the folder that output goes to."""
        self._profile = profile
        self._logs = logs
        self._guard = threading.Lock()
        self._servers: dict[str, EnvServer] = {}
        self._start_errors: dict[str, str] = {}
        """Why a server of the profile could not even begin."""
        self._closed = False
        self._n_changes = itertools.count(1)
        self.n_changes = 0
        """How often the status of a server was another; who sees it grow looks at the servers anew."""

    def autostart(self) -> None:
        """Begin to start what the profile says; what cannot be is logged, and is the cause of its environment."""
        for _, entry in self._profile.listed():
            if entry.autostart:
                with catch_foreign(partial(self._note_start_failure, entry.name)):
                    self.start(entry.name)

    def start(self, env: str) -> ServerInfo:
        """Begin to start a server, which takes a while; one that runs or starts already is left alone.

        Raises:
            ConfigError: when it cannot be started at all.
        """
        entry = self._entry(env)
        with self._guard:
            known = self._servers.get(entry.name.casefold())
            if known is not None and known.is_alive:
                return known.info
            if self._closed:
                raise ConfigError(f"The server of {entry.name} is not started: this node is about to stop")
            server = EnvServer(entry, self._logs / log_name(entry.name), self._note_change)
            self._servers[entry.name.casefold()] = server
            server.start()
        return server.info

    def stop(self, env: str) -> ServerInfo:
        """Begin to stop a server that this node started, which is over by then where it heeds that at once.

        Raises:
            ConfigError: when it started none.
        """
        entry = self._entry(env)
        with self._guard:
            server = self._servers.get(entry.name.casefold())
        if server is None:
            raise ConfigError(f"This node has not started a server of {entry.name}")
        server.request_stop()
        server.wait_stopped(STOP_WAIT_S)
        return server.info

    def close(self) -> None:
        """Stop all of them, for good."""
        with self._guard:
            self._closed = True
            servers = list(self._servers.values())
        for server in servers:
            server.request_stop()
        for server in servers:
            server.stop()

    def cause(self, env: str) -> str | None:
        """Why the server of an environment does not run although it was started, None where there is nothing to say."""
        server = self._servers.get(env.casefold())
        cause = self._start_errors.get(env.casefold()) if server is None else server.cause
        return None if cause is None else f"its server: {cause}"

    def wait_for(self, env: str, is_cancelled: Callable[[], bool]) -> None:
        """Wait for a server that is being started, as it would be missed otherwise."""
        server = self._servers.get(env.casefold())
        deadline = time.monotonic() + READY_TIMEOUT_S
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
            raise ConfigError(f"The profile {self._profile.id} has no environment {env!r} to play")
        return entry
