"""The node of a state directory on this machine: finding the directory and its profile, and starting the node."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runner.errors import ConfigError, RunnerError, StoreError
from runner.node.logs import read_last_lines
from runner.node.state_lock import NodeFile, is_node_alive
from runner.util.files import create_private, make_folder, read_regular, resolve_path

if TYPE_CHECKING:
    from runner.config import Profile, ProfileFile

NODE_IDLE_EXIT_S: Final = 120  # without work or requests after which a node started by a client exits
STOP_TIMEOUT_S: Final = 60.0  # for a node to stop: it ends the running steps, and publishes the remaining events
POLL_INTERVAL_S: Final = 0.05  # between checks while a node starts or stops
MAX_LOG_LINES: Final = 6  # number of lines shown from the end of a failed node's log
MAX_NODE_FILE_BYTES: Final = 64 * 1024


class LaunchOptions(msgspec.Struct, frozen=True):
    """Options of the command line: name or path of the profile, state directory, node; None: something else decides."""

    config: str | None = None
    data_dir: str | None = None
    node: str | None = None


class StateLocation(msgspec.Struct, frozen=True):
    """A state directory, the node that is started there, and its profile.

    ``notice`` is what the user should know about the choice of the state directory.
    """

    data_dir: Path
    node: str
    profile: Profile
    notice: str = ""
    profile_file: ProfileFile | None = None


class StateLocator:
    """Finds the state directory at the first call of ``find``, because loading a profile takes time.

    The methods block, and raise ``ConfigError`` if the profile or a name is not valid.
    """

    def __init__(
        self, options: LaunchOptions, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.options = options
        self._environ = os.environ if environ is None else environ
        self._cwd = cwd or Path.cwd()
        self._lock = threading.Lock()
        self._location: StateLocation | None = None

    def find(self) -> StateLocation:
        with self._lock:
            self._location = self._location or self._read()
            return self._location

    def running_folder(self) -> Path | None:
        """Return the state directory if a node runs there; None also if only the profile names it, which takes long."""
        if not (chosen := self.options.data_dir or self._environ.get("AGENTGYM_DATA_DIR")):
            return None
        data_dir = resolve_path(chosen, self._environ, self._cwd)
        return data_dir if is_node_alive(data_dir) else None

    def reload(self, config: str | None = None) -> StateLocation:
        """Read the profile again, or that at the path ``config`` from now on; without effect if it is not valid."""
        from runner.config import read_profile

        known = self.find()
        own = self.options.config if known.profile_file is None else str(known.profile_file.path)
        profile, file = read_profile(config or own, environ=self._environ, cwd=self._cwd)
        self.options = msgspec.structs.replace(self.options, config=config or self.options.config)
        return self._use(known, profile, file)

    def follow_node(self) -> StateLocation | None:
        """Take the profile of the node that runs now; None if ``options`` name one, or the node's cannot be read."""
        known = self.find()
        if self.options.config is not None or (running := _running_profile(known.data_dir, self._environ)) is None:
            return None
        return self._use(known, *running)

    def _use(self, known: StateLocation, profile: Profile, file: ProfileFile | None) -> StateLocation:
        location = msgspec.structs.replace(known, profile=profile, profile_file=file, notice="")
        with self._lock:
            self._location = location
        return location

    def _read(self) -> StateLocation:
        from runner.config import find_data_dir, read_profile, resolve_node

        options, environ = self.options, self._environ
        profile, file = read_profile(options.config, environ=environ, cwd=self._cwd)
        data_dir, notice = find_data_dir(options.data_dir, environ, profile, self._cwd)
        node = resolve_node(options.node, environ, profile, socket.gethostname())
        if options.config is None and (running := _running_profile(data_dir, environ)) is not None:
            profile, file = running
        return StateLocation(data_dir, node, profile, notice, file)


class NodeStartError(RunnerError):
    published_error_type = "node_failed"


def read_node_file(data_dir: Path) -> NodeFile | None:
    try:
        return msgspec.json.decode(read_regular(data_dir / "node.json", MAX_NODE_FILE_BYTES)[0], type=NodeFile)
    except (OSError, ValueError):
        return None


def _running_profile(data_dir: Path, environ: Mapping[str, str]) -> tuple[Profile, ProfileFile] | None:
    from runner.config import read_profile

    node_file = read_node_file(data_dir)
    if node_file is None or not node_file.profile_path or not is_node_alive(data_dir):
        return None
    try:
        return read_profile(node_file.profile_path, environ=environ, cwd=data_dir)
    except ConfigError:
        return None


async def wait_until_stopped(data_dir: Path) -> None:
    """Wait until no node owns the state directory; raises ``NodeStartError`` after ``STOP_TIMEOUT_S``."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            while await asyncio.to_thread(is_node_alive, data_dir):  # noqa: ASYNC110 - the node is another process
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError:
        raise NodeStartError(f"the node did not stop within {STOP_TIMEOUT_S:g} s; see its log") from None


async def ensure_node(location: StateLocation, config: str | None) -> None:
    """Start a node process in the background unless a node owns the state directory; return once a node owns it.

    Raises ``NodeStartError`` if the process exits, ``StoreError`` if nothing can be stored in the state directory.
    """
    if is_node_alive(location.data_dir):
        return
    from runner.node.storage import require_storage

    await asyncio.to_thread(require_storage, location.data_dir)
    before = read_node_file(location.data_dir)
    process, log = await asyncio.to_thread(_start, location, config)
    try:
        while process.poll() is None:
            # Testing the lock would hold it for a moment, and the starting node would find it taken.
            if (now := read_node_file(location.data_dir)) is not None and (before is None or now.boot != before.boot):
                return
            await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it exits
    if not is_node_alive(location.data_dir):  # otherwise another console's node was faster
        lines = "\n".join(read_last_lines(log, MAX_LOG_LINES))
        raise NodeStartError(f"the node could not start: {lines or f'exit code {process.returncode}'}")


def _start(location: StateLocation, config: str | None) -> tuple[subprocess.Popen[bytes], Path]:
    folder = location.data_dir / "logs"
    try:
        make_folder(folder)
    except OSError as exc:
        raise StoreError(f"{folder} cannot be created: {exc.strerror}; choose another folder with --data-dir") from exc
    log = folder / "node-start.log"
    options = ["--data-dir", str(location.data_dir), "--node", location.node, "--idle-exit", str(NODE_IDLE_EXIT_S)]
    if config is not None:
        options += ["--config", config]
    # -P: a folder named runner in the working directory must not shadow the package.
    command = [sys.executable, "-P", "-m", "runner.cli", "node", *options]
    try:
        with os.fdopen(create_private(log), "wb") as stderr:
            no_file = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=no_file, stdout=no_file, stderr=stderr, start_new_session=True)
            return process, log
    except OSError as exc:
        raise NodeStartError(f"the node could not be started: {exc.strerror or exc}; check {log}") from exc
