"""Processes of a history: they die with it, and restart unless the schedule wants them dead."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.history.records import Process, Recorder

RESTART_S = 0.2
"""Seconds between two attempts to start a process that ended."""
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if sys.platform == "linux" else ()
_END_TIMEOUT_S = 60.0
_REFUSED = 2
"""Exit status of a command that could not start."""


class ManagedProcess:
    """A process that is kept running, from ``start`` to ``close``.

    Args:
        name: name in the records.
        command: returns the command of the next start.
        log: file for its output.
        may_refuse: returns whether the process may end at its start, because the schedule took away what it needs.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        recorder: Recorder,
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        may_refuse: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._command = command
        self._recorder = recorder
        self._log = log
        self._env = dict(env)
        self._cwd = cwd
        self._may_refuse = may_refuse
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._ended_by_us = False
        self._may_refuse_start = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it, and keep it running."""
        self._wanted = True
        self._notice_end()
        if self._process is None:
            self._spawn()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_running())

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it; it stays dead until ``start``."""
        self._wanted = False
        if self.pid is not None:
            self._ended_by_us = True
            self.signal(number)
            self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                psutil.Process(self.pid).send_signal(number)

    async def wait_for_end(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.wait, _END_TIMEOUT_S)
            self._notice_end()

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        self.kill()
        await self.wait_for_end()

    async def _keep_running(self) -> None:
        while True:
            await asyncio.sleep(RESTART_S)
            self._notice_end()
            if self._wanted and self._process is None:
                self._spawn()

    def _spawn(self) -> None:
        self._ended_by_us = False
        self._may_refuse_start = self._may_refuse()  # it may be stopped until the cause is gone
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,  # Ctrl-C ends the history, which then ends its processes
            )
        self._recorder.write(Process(name=self.name, pid=self._process.pid))

    def _notice_end(self) -> None:
        process = self._process
        if process is None or process.poll() is None:
            return
        self._process = None
        may_refuse = self._may_refuse_start or self._may_refuse()
        expected = self._ended_by_us or (process.returncode == _REFUSED and may_refuse)
        record = Process(name=self.name, pid=process.pid, exit_status=process.returncode, expected=expected)
        self._recorder.write(record)
