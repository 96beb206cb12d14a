"""One history: runs a cluster under the schedule of a seed, and records it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runner.events.subjects import DURABLE
from tests.history.clients import NATS_ERRORS, ControlClient, FindLogin, LiveSubscriber, StreamReader, create_stream
from tests.history.cluster import NODE, Cluster, credential, run_cluster
from tests.history.consoles import ConsoleWatcher
from tests.history.faults import FaultInjector
from tests.history.observers import FileScanner, ResourceProbe
from tests.history.promises.bounds import N_IDLE
from tests.history.records import Begin, End, Recorder
from tests.history.schedule import MAX_CONCURRENCY, SERVERS, Schedule
from tests.history.viewers import EventViewer
from tests.history.workload import Workload

START_TIMEOUT_S, SETTLE_TIMEOUT_S, DELIVERY_TIMEOUT_S = 60.0, 300.0, 60.0
IDLE_TIMEOUT_S = 30.0
QUIET_S = 2.0
CANCEL_S = 1.0
"""Seconds after which an observer that still runs is cancelled again."""
PULSE_S, PULSE_TIMEOUT_S, LIST_S = 0.3, 1.0, 2.0
_BASE_DISK_MIB, _DISK_MIB_PER_S = 128, 0.5


@dataclass(frozen=True)
class Recorders:
    """Opens the file of each observer in the folder of the history."""

    folder: Path

    def open(self, name: str) -> Recorder:
        return Recorder(self.folder / f"{name}.jsonl")


async def record_history(folder: Path, schedule: Schedule, *, mutation: str | None = None) -> None:
    """Run the schedule and write its history into ``folder``."""
    recorders = Recorders(folder)
    main = recorders.open("main")
    main.write(
        Begin(
            seed=schedule.seed, node=NODE, sinks=["own", "foreign"], servers=dict(SERVERS), concurrency=MAX_CONCURRENCY
        )
    )
    disk_mib = _BASE_DISK_MIB + round(_DISK_MIB_PER_S * schedule.duration_s)
    async with run_cluster(folder, main, disk_mib=disk_mib, mutation=mutation) as cluster:
        await _Run(cluster, schedule, recorders, main).run()
    main.write(End())


class _Run:
    """The observers and the driver of a history."""

    def __init__(self, cluster: Cluster, schedule: Schedule, recorders: Recorders, main: Recorder) -> None:
        self._cluster = cluster
        self._schedule = schedule
        own: FindLogin = lambda: credential(cluster.data_dir)  # noqa: E731
        self._foreign: FindLogin = lambda: (f"nats://127.0.0.1:{cluster.foreign_port}", "", "")
        self._client = ControlClient(NODE, own, recorders.open("control"))
        self._pulse_client = ControlClient(NODE, own, recorders.open("pulse"), timeout_s=PULSE_TIMEOUT_S)
        self._workload = Workload(self._client)
        self._console = ConsoleWatcher(cluster, recorders.open("console"))
        self._viewer = EventViewer(cluster, main, recorders.open("viewer"))
        self._faults = FaultInjector(cluster, self._console, main)
        self._scanner = FileScanner(cluster.data_dir, recorders.open("files"))
        self._readers = {
            "own": StreamReader("own", own, recorders.open("own_stream")),
            "foreign": StreamReader("foreign", self._foreign, recorders.open("foreign_stream")),
        }
        self._live = [
            LiveSubscriber("own", own, recorders.open("own_live")),
            LiveSubscriber("foreign", self._foreign, recorders.open("foreign_live")),
        ]
        self._probe = ResourceProbe(self._processes, lambda: self._is_calm, recorders.open("probes"))
        self._has_started = False

    @property
    def _is_calm(self) -> bool:
        quiet = self._faults.n_active == 0 and time.monotonic() - self._faults.last_end_at > QUIET_S
        return self._has_started and quiet and self._workload.is_idle

    def _processes(self) -> dict[str, int]:
        viewers = {"console": self._console.pid, "viewer": self._viewer.process.pid}
        return self._cluster.processes() | {name: pid for name, pid in viewers.items() if pid is not None}

    async def run(self) -> None:
        await _until(partial(_created, self._foreign), START_TIMEOUT_S)
        self._cluster.node.start()
        readers = [each.run for each in self._readers.values()]
        observers = (
            self._pulse,
            self._list,
            self._console.run,
            self._viewer.run,
            self._scanner.run,
            self._probe.run,
            *readers,
            *(each.run for each in self._live),
        )
        async with _background(*observers):
            await _until(self._answers, START_TIMEOUT_S)
            self._has_started = True
            await _until(self._was_idle, IDLE_TIMEOUT_S)
            await self._follow_schedule()
            await self._workload.settle(time.monotonic() + SETTLE_TIMEOUT_S)
            await self._wait_for_delivery()
        await self._finish()

    async def _follow_schedule(self) -> None:
        begin = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for request in self._schedule.requests:
                tasks.create_task(_at(begin + request.at_s, partial(self._workload.send, request)))
            for fault in self._schedule.faults:
                tasks.create_task(_at(begin + fault.at_s, partial(self._faults.inject, fault)))

    async def _pulse(self) -> None:
        while True:
            await self._pulse_client.call("health")
            await asyncio.sleep(PULSE_S)

    async def _list(self) -> None:
        while True:
            await self._workload.refresh()
            await asyncio.sleep(LIST_S)

    async def _was_idle(self) -> bool:
        """Whether the idle processes were probed often enough to compare them with a later or an earlier time."""
        return self._probe.n_idle > N_IDLE

    async def _answers(self) -> bool:
        return await self._workload.refresh()

    async def _wait_for_delivery(self) -> None:
        """Wait until both streams have the events of all files and ended batches, then for a quiet moment."""
        with contextlib.suppress(TimeoutError):
            await _until(self._is_delivered, DELIVERY_TIMEOUT_S)
        with contextlib.suppress(TimeoutError):
            await _until(self._was_idle, IDLE_TIMEOUT_S)

    async def _is_delivered(self) -> bool:
        ended = {b["batch_id"] for b in self._workload.batches if b["status"] in ("completed", "cancelled")}
        expected = {f"episode:{each}" for each in self._scanner.episode_ids} | {f"batch:{each}" for each in ended}
        return all(expected <= reader.ids for reader in self._readers.values())

    async def _finish(self) -> None:
        await self._workload.refresh()
        for reader in self._readers.values():
            await _until(reader.finish, START_TIMEOUT_S)
        self._cluster.node.kill(signal.SIGTERM)
        await self._cluster.node.wait_for_end()
        self._scanner.scan(every=True)
        self._scanner.scan_journals()
        self._keep_state()

    def _keep_state(self) -> None:
        """Keep the databases and logs of the node as evidence; its disk vanishes with the cluster."""
        ignore = shutil.ignore_patterns("runs", "nats")
        shutil.copytree(self._cluster.data_dir, self._cluster.folder / "data", ignore=ignore)


async def _created(find_login: FindLogin) -> bool:
    try:
        await create_stream(find_login, list(DURABLE))
    except NATS_ERRORS:
        return False
    return True


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - other processes decide when it holds
            await asyncio.sleep(0.2)


async def _at(at: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    await action()


@asynccontextmanager
async def _background(*runs: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run the observers during the block; the end of one of them is an error."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in runs]
        try:
            yield
        finally:
            await _cancel(set(tasks))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: nats-py swallows a cancellation that coincides with an answer."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_S)
