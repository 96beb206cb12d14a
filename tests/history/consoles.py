"""The real console in a pseudo-terminal, and the episodes that its list shows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

import psutil

from tests.history.cluster import NODE, Cluster
from tests.history.processes import DIE_WITH_PARENT
from tests.history.records import Process, Recorder, Shown
from tests.support.console.launch import CONSOLE
from tests.support.terminal import Terminal

SCRAPE_S: Final = 0.5
READY_TIMEOUT_S: Final = 60.0
N_SCRAPES: Final = 8
"""Number of times that a screen is read before the next one is shown."""
_SCREENS: Final = "1232"
"""Keys of the screens in the order in which they are shown, after the list of episodes: live, episodes, events."""
_NAME: Final = "console"
_OUTCOMES: Final = {
    "✓ success": "success",
    "✗ failure": "failure",
    "… limit of": "truncated",
    "… stopped": "truncated",
    "◔ timeout": "timeout",
    "○ cancelled": "cancelled",
    "! error": "error",
    "! interrupted": "interrupted",
}
_N_COLUMNS: Final = 11
_UNKNOWN_REWARD: Final = "\N{EN DASH}"
_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class ConsoleWatcher:
    """Keeps a console with the list of episodes open, and records the ended episodes that it shows.

    It starts the console only while the node runs, because a console starts a missing node itself.
    """

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._terminal: Terminal | None = None
        self._killed = False
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._before: set[str] = set()
        self._recorded: set[str] = set()

    @property
    def pid(self) -> int | None:
        """Process id of the console; None while it does not run."""
        terminal = self._terminal
        return terminal.process.pid if terminal is not None and terminal.process.poll() is None else None

    def kill(self) -> None:
        """Kill the console; it stays dead until ``start``."""
        self._wanted.clear()
        self._killed = True
        if self._terminal is not None and self.pid is not None:
            self._terminal.process.send_signal(signal.SIGKILL)

    def start(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Run consoles, one after the other, until cancelled."""
        while True:
            await self._wanted.wait()
            async with self._cluster.node_lock:
                while not self._cluster.is_node_alive:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
                terminal = self._open()
                try:
                    await asyncio.to_thread(_show_episodes, terminal)
                except asyncio.CancelledError:
                    self._close(terminal)  # while the node is alive: without one, the console would start another
                    raise
            try:
                await self._watch(terminal)
            finally:
                self._close(terminal)

    def _open(self) -> Terminal:
        cluster = self._cluster
        options = ("--data-dir", str(cluster.data_dir), "--node", NODE, "--config", str(cluster.profile))
        command = (*DIE_WITH_PARENT, CONSOLE, "launch", *options)
        self._killed = False
        terminal = self._terminal = Terminal(*command, columns=200, rows=60, cwd=cluster.folder).__enter__()
        self._recorder.write(Process(name=_NAME, pid=terminal.process.pid))
        return terminal

    async def _watch(self, terminal: Terminal) -> None:
        for key in itertools.cycle(_SCREENS):
            for _ in range(N_SCRAPES):
                if terminal.process.poll() is not None:
                    return
                await asyncio.to_thread(self._scrape, terminal)
                await asyncio.sleep(SCRAPE_S)
            with contextlib.suppress(OSError):  # the console was killed
                terminal.send(key)

    def _scrape(self, terminal: Terminal) -> None:
        """Record the rows that were there before, too: a row that is being drawn mixes two episodes."""
        if self._is_stopped(terminal):
            self._before = set()  # it may have been stopped in the middle of a row
            return
        rows = set(terminal.lines)
        for row in sorted((rows & self._before) - self._recorded):
            for fields in _parse(row):
                self._recorder.write(Shown(console=_NAME, what="episode", id=fields.pop("id"), fields=fields))
        self._recorded |= rows & self._before
        self._before = rows

    @staticmethod
    def _is_stopped(terminal: Terminal) -> bool:
        try:
            return psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return True

    def _close(self, terminal: Terminal) -> None:
        status = terminal.process.poll()
        terminal.__exit__(None, None, None)
        expected = self._killed or status is None
        self._recorder.write(
            Process(name=_NAME, pid=terminal.process.pid, exit_status=terminal.process.returncode, expected=expected)
        )
        (self._cluster.folder / "console.txt").write_text(terminal.text)
        self._terminal, self._before = None, set()


def _show_episodes(terminal: Terminal) -> None:
    """Open the list of episodes once the console accepts keys; a console that died meanwhile is left alone."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and terminal.process.poll() is None:
        if "started" in terminal.text and "outcome" in terminal.text:
            return
        if "Environments" in terminal.text:
            terminal.send("2")
        terminal.wait_until_quiet(0.2, 1.0)


def _parse(row: str) -> Iterator[dict[str, Any]]:
    """Yield the id and the values of a row of the list, if it is that of an ended episode.

    The reward of one that a lost process has not ended is unknown until its event arrives.
    """
    cells = re.split(r"\s{2,}", row.strip())
    if len(cells) != _N_COLUMNS or not _ID.fullmatch(cells[-1]) or cells[4] == _UNKNOWN_REWARD:
        return
    for outcome in (outcome for text, outcome in _OUTCOMES.items() if cells[3].startswith(text)):
        yield {
            "id": cells[-1],
            "env": cells[1],
            "task_index": int(cells[2].partition("·")[0]),  # ``5·2``: the second attempt at task 5
            "outcome": outcome,
            "reward": float(cells[4]),
            "rounds": int(cells[5]),
        }
