"""Injects the faults of a schedule into a cluster, and records when each began and ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import psutil

from tests.history.cluster import Cluster
from tests.history.consoles import ConsoleWatcher
from tests.history.processes import ManagedProcess
from tests.history.records import Fault, Recorder
from tests.history.schedule import LIVE, TERMINATED, PlannedFault
from tests.support.shifted_clock import ShiftedClock

WORKER_WAIT_S = 10.0
WORKER_POLL_S = 0.02


class FaultInjector:
    """Runs faults.

    Attributes:
        n_active: number of faults that have begun and not ended.
        last_end_at: monotonic time at which the last one ended.
        counts: number of faults by kind.
    """

    def __init__(self, cluster: Cluster, console: ConsoleWatcher | None, recorder: Recorder) -> None:
        self.n_active = 0
        self.last_end_at = time.monotonic()
        self.counts: dict[str, int] = {}
        self._cluster = cluster
        self._console = console
        self._recorder = recorder
        self._numbers = itertools.count()

    async def inject(self, fault: PlannedFault) -> None:
        """Begin the fault, and end it when its time is over."""
        if fault.kind == "clock" and self._cluster.clock is None:
            return
        if fault.target == "console" and self._console is None:
            return
        number = next(self._numbers)
        self.n_active += 1
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        try:
            await self._run(fault, number)
        finally:
            self.n_active -= 1
            self.last_end_at = time.monotonic()

    async def _run(self, fault: PlannedFault, number: int) -> None:
        match fault.kind:
            case "kill":
                await self._kill(fault, number)
            case "stop":
                await self._stop(fault, number)
            case "partition":
                self._record(fault, number, begins=True)
                proxy = self._cluster.proxies[fault.target]
                proxy.cut()
                await asyncio.sleep(fault.for_s)
                effect = f"{proxy.n_connections} silent connections" if not proxy.is_open else ""
                proxy.heal()
                self._record(fault, number, begins=False, effect=effect)
            case "disk_full":
                self._record(fault, number, begins=True)
                await asyncio.to_thread(self._cluster.disk.fill)
                effect = self._cluster.disk.measure()
                await asyncio.sleep(fault.for_s)
                self._cluster.disk.free_space()
                self._record(fault, number, begins=False, effect=effect)
            case "clock":
                assert self._cluster.clock is not None
                self._record(fault, number, begins=True)
                self._cluster.clock.set(int(fault.detail))
                effect = await asyncio.to_thread(_measured_shift, self._cluster.clock)
                self._record(fault, number, begins=False, effect=effect)
            case "delete":
                await self._delete(fault, number)

    async def _kill(self, fault: PlannedFault, number: int) -> None:
        if fault.target in ("own_broker", "worker", "fork_server"):  # the node starts them again
            pid = await self._wait_for_pid(fault.target)
            self._record(fault, number, begins=True)
            effect = _send(pid, signal.SIGKILL)
            self._record(fault, number, begins=False, effect=effect)
        elif fault.target == "console":
            assert self._console is not None
            self._record(fault, number, begins=True)
            effect = _describe(self._console.pid)
            self._console.kill()
            await asyncio.sleep(fault.for_s)
            self._console.start()
            self._record(fault, number, begins=False, effect=effect)
        elif fault.target == "node":
            async with self._cluster.node_lock:
                await self._kill_process(self._cluster.node, fault, number)
        else:
            await self._kill_process(self._process(fault.target), fault, number)

    async def _kill_process(self, process: ManagedProcess, fault: PlannedFault, number: int) -> None:
        self._record(fault, number, begins=True)
        effect = _describe(process.pid)
        process.kill(signal.SIGTERM if fault.detail == TERMINATED else signal.SIGKILL)
        await process.wait_for_end()
        await asyncio.sleep(fault.for_s)
        process.start()
        self._record(fault, number, begins=False, effect=effect)

    async def _stop(self, fault: PlannedFault, number: int) -> None:
        pid = await self._wait_for_pid(fault.target)
        self._record(fault, number, begins=True)
        _send(pid, signal.SIGSTOP)
        await asyncio.sleep(fault.for_s)
        effect = _describe(pid) if pid is not None and _is_stopped(pid) else ""
        _send(pid, signal.SIGCONT)
        self._record(fault, number, begins=False, effect=effect)

    async def _delete(self, fault: PlannedFault, number: int) -> None:
        """Delete files; those that a running node does not restore, while the node is dead."""
        state, _, names = fault.detail.partition(": ")
        if state == LIVE:
            self._record(fault, number, begins=True)
            effect = self._unlink(names)
            self._record(fault, number, begins=False, effect=effect)
            return
        async with self._cluster.node_lock:
            self._record(fault, number, begins=True)
            self._cluster.node.kill()
            await self._cluster.node.wait_for_end()
            effect = self._unlink(names)
            await asyncio.sleep(fault.for_s)
            self._cluster.node.start()
            self._record(fault, number, begins=False, effect=effect)

    def _unlink(self, names: str) -> str:
        """Delete files of the state directory; return the names of those that existed."""
        present = [name for name in names.split() if (self._cluster.data_dir / name).exists()]
        for name in present:
            (self._cluster.data_dir / name).unlink(missing_ok=True)
        return " ".join(present)

    def _process(self, target: str) -> ManagedProcess:
        cluster = self._cluster
        return {"node": cluster.node, "foreign_broker": cluster.foreign, **cluster.servers}[target]

    async def _wait_for_pid(self, target: str) -> int | None:
        """Return the process of a target; wait a moment for a worker or the fork server, which a batch starts."""
        deadline, late = time.monotonic() + WORKER_WAIT_S, ("worker", "fork_server")
        while (pid := self._pid(target)) is None and target in late and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(WORKER_POLL_S)
        return pid

    def _pid(self, target: str) -> int | None:
        match target:
            case "own_broker":
                return self._cluster.own_broker_pid()
            case "worker":
                return self._cluster.worker_pid()
            case "fork_server":
                return self._cluster.fork_server_pid()
            case "console":
                return None if self._console is None else self._console.pid
        return self._process(target).pid

    def _record(self, fault: PlannedFault, number: int, *, begins: bool, effect: str = "") -> None:
        self._recorder.write(
            Fault(
                number=number,
                kind=fault.kind,
                target=fault.target,
                phase="begin" if begins else "end",
                detail=fault.detail,
                effect=effect,
            )
        )


def _send(pid: int | None, number: signal.Signals) -> str:
    """Send a signal, and return which process got it."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return _describe(pid)
    return ""


def _describe(pid: int | None) -> str:
    return "" if pid is None else f"process {pid}"


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _measured_shift(clock: ShiftedClock) -> str:
    """Return the seconds by which a process with this clock is ahead; "" if it has none."""
    command = [sys.executable, "-c", "import time; print(time.time())"]
    completed = subprocess.run(command, env=clock.environ, capture_output=True, text=True, timeout=30, check=False)
    return f"{float(completed.stdout) - time.time():+.0f} s" if completed.returncode == 0 else ""
