"""Where the console's node is: its state directory, and a process for it when none lives."""

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

from runner.errors import RunnerError, StoreError

if TYPE_CHECKING:
    from runner.config import Profile
    from runner.node.state_lock import NodeFile

NODE_IDLE_EXIT_S: Final = 120
START_TIMEOUT_S: Final = 40.0
POLL_INTERVAL_S: Final = 0.05
MAX_LOG_LINES: Final = 6
MAX_LOG_BYTES: Final = 4_096
MAX_NODE_FILE_BYTES: Final = 64 * 1024


class LaunchOptions(msgspec.Struct, frozen=True):
    """What the command line says about the place; None where the profile decides."""

    config: str | None = None
    data_dir: str | None = None
    node: str | None = None


class StateLocation(msgspec.Struct, frozen=True):
    """A state directory, absolute, the name of a node that is started there, and the profile it plays."""

    data_dir: Path
    node: str
    profile: Profile


class StateLocator:
    """Finds the place once, in the thread that needs it first: reading a profile takes its time.

    Args:
        wanted: the command line.
        environ: by default that of this process.
        cwd: where relative paths start.
    """

    def __init__(
        self, wanted: LaunchOptions, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        """Nothing is read yet."""
        self.options = wanted
        self._environ = os.environ if environ is None else environ
        self._cwd = cwd or Path.cwd()
        self._lock = threading.Lock()
        self._found: StateLocation | None = None

    def find(self) -> StateLocation:
        """The place; blocks.

        Raises:
            ConfigError: for a profile or a name that cannot be used; the next call tries again.
        """
        with self._lock:
            if self._found is None:
                self._found = self._read()
            return self._found

    def _read(self) -> StateLocation:
        from runner.config import load_profile, resolve_data_dir, resolve_node

        wanted, environ = self.options, self._environ
        profile = load_profile(wanted.config, environ=environ, cwd=self._cwd)
        data_dir = resolve_data_dir(wanted.data_dir, environ, profile, self._cwd)
        return StateLocation(data_dir, resolve_node(wanted.node, environ, profile, socket.gethostname()), profile)


class NodeStartError(RunnerError):
    """No node could be started; says the last that it said."""


def read_node_file(data_dir: Path) -> NodeFile | None:
    """``node.json``, None where there is none that can be read."""
    from runner.node.state_lock import NodeFile

    try:
        with (data_dir / "node.json").open("rb") as file:
            return msgspec.json.decode(file.read(MAX_NODE_FILE_BYTES), type=NodeFile)
    except (OSError, ValueError):
        return None


async def ensure_node(place: StateLocation, config: str | None) -> None:
    """Return once a node has the state directory; one is started in the background when there is none.

    Raises:
        NodeFailed: when it ended, or did not come up in time.
        StoreError: when the state directory cannot be used.
    """
    from runner.node.state_lock import is_node_alive

    if is_node_alive(place.data_dir):
        return
    before = read_node_file(place.data_dir)
    log = await asyncio.to_thread(_make_log, place.data_dir)
    process = await asyncio.to_thread(_start, place, config, log)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while process.poll() is None:
                # Its lock is not looked at meanwhile: a look holds it for a moment, and the node would find it taken.
                if (now := read_node_file(place.data_dir)) is not None and (before is None or now.boot != before.boot):
                    return
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError:
        raise NodeStartError(f"the node did not come up within {START_TIMEOUT_S:g} s; see {log}") from None
    finally:
        threading.Thread(target=process.wait, daemon=True).start()  # takes note of its end, whenever that is
    if not is_node_alive(place.data_dir):  # else somebody else's was faster
        raise NodeStartError(f"the node could not start: {read_last_lines(log) or f'exit code {process.returncode}'}")


def _make_log(data_dir: Path) -> Path:
    folder = data_dir / "logs"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise StoreError(f"{folder} cannot be created: {exc.strerror}; name another folder with --data-dir") from exc
    return folder / "node-start.log"


def _start(place: StateLocation, config: str | None, log: Path) -> subprocess.Popen[bytes]:
    options = ["--data-dir", str(place.data_dir), "--node", place.node, "--idle-exit", str(NODE_IDLE_EXIT_S)]
    if config is not None:
        options += ["--config", config]
    try:
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            return subprocess.Popen(
                # -P: a folder named runner in the working directory must not take the place of the package.
                [sys.executable, "-P", "-m", "runner.cli", "node", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        finally:
            os.close(said)
    except OSError as exc:
        raise NodeStartError(f"the node could not be started: {exc.strerror or exc}; check {log}") from exc


def read_last_lines(log: Path) -> str:
    """The end of a log, "" when there is none; hostile text."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - MAX_LOG_BYTES, 0))
            text = file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.strip().split("\n")[-MAX_LOG_LINES:])
