"""Events of a foreground run: on a thread and loop of their own, so that no bus can slow what is played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from runner.batch.state_dir import Workspace
from runner.bus.address import BusAddress, address_of_node
from runner.cli.terminal import err
from runner.errors import catch_foreign
from runner.publish.event_recorder import EventRecorder
from runner.publish.live_publisher import LivePublisher
from runner.publish.publisher import Publisher, Sink
from runner.types import Item

DRAIN_S = 5.0
"""Seconds that the end of a run waits for its events to be delivered."""


class Outlet:
    """Delivers what the announcer adds, and live items, to the running node's broker and to the egress."""

    def __init__(self, recorder: EventRecorder, workspace: Workspace, egress: Callable[[], BusAddress | None]) -> None:
        """Begin to deliver; returns at once, whatever the buses do."""
        self._recorder = recorder
        self._workspace = workspace
        self._egress = egress
        self._ready = threading.Event()
        self._closing: Callable[[], object] = _nothing
        self._live: LivePublisher | None = None
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()
        self._ready.wait()

    def __call__(self, item: Item) -> None:
        """Take a live item; from any thread."""
        if self._live is not None:
            self._live(item)

    def close(self) -> None:
        """Wait some seconds until everything is delivered; what is not stays in the outbox."""
        self._recorder.flush()
        self._closing()
        self._thread.join(2 * DRAIN_S)

    def _serve(self) -> None:
        with catch_foreign(_tell):
            asyncio.run(self._deliver())
        self._ready.set()

    async def _deliver(self) -> None:
        closing, loop = asyncio.Event(), asyncio.get_running_loop()
        workspace, recorder = self._workspace, self._recorder
        sinks = [Sink("local", lambda: address_of_node(workspace.data_dir)), Sink("egress", self._egress)]
        publisher = Publisher(recorder.outbox, sinks, subjects=recorder.names.all(), name=workspace.node)
        self._live = live = LivePublisher(publisher.sink_connections, node=workspace.node, boot=workspace.boot)
        self._closing = partial(loop.call_soon_threadsafe, closing.set)
        self._ready.set()
        tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(live.run())]
        await closing.wait()
        await publisher.wait_until_drained(DRAIN_S)
        if n_waiting := await publisher.n_undelivered():
            err(
                f"{n_waiting} events could not be delivered yet; they wait in the outbox (see: agentgym-runner outbox)."
            )
        await live.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _nothing() -> None:
    """Nothing to close before the thread is ready."""


def _tell(exc: BaseException) -> None:
    err(f"Events are not delivered: {type(exc).__name__}: {exc}; they wait in the outbox.")
