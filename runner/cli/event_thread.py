"""Delivery of the events of a foreground run, on a separate thread so that a slow bus does not delay the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from runner.batch.observers import SelectiveObserver
from runner.batch.workspace import Workspace
from runner.bus.address import BusAddress, address_of_node
from runner.cli.terminal import print_stderr
from runner.config import LiveTokens
from runner.errors import catch_foreign
from runner.publish.live_publisher import LivePublisher
from runner.publish.outbox import DeadLetter, EventRecorder
from runner.publish.publisher import Publisher, Sink

DRAIN_TIMEOUT_S = 5.0
"""Maximum seconds to wait at the end of a run for the delivery of its events."""


class EventThread:
    """Delivers recorded events and live items to the broker of a running node and to the egress bus.

    ``close`` adds the events of the run that a broker has refused for good to ``refused``.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        workspace: Workspace,
        egress: Callable[[], BusAddress | None],
        tokens: LiveTokens,
        refused: list[DeadLetter],
    ) -> None:
        self._recorder, self._workspace, self._egress, self._tokens = recorder, workspace, egress, tokens
        self._refused = refused
        self._ready = threading.Event()
        self._closing: Callable[[], object] = lambda: None
        self._live: LivePublisher | None = None
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def observers(self) -> list[SelectiveObserver]:
        """The observer that publishes live items; none if the thread could not start."""
        return [] if self._live is None else [self._live.observer]

    def close(self) -> None:
        """Wait up to twice ``DRAIN_TIMEOUT_S`` seconds for the delivery; undelivered events stay in the outbox."""
        self._closing()
        self._thread.join(2 * DRAIN_TIMEOUT_S)

    def _serve(self) -> None:
        failed = "Event delivery failed: {}: {}; events stay in the outbox.".format
        with catch_foreign(lambda exc: print_stderr(failed(type(exc).__name__, exc))):
            asyncio.run(self._deliver())
        self._ready.set()

    async def _deliver(self) -> None:
        closing, loop = asyncio.Event(), asyncio.get_running_loop()
        workspace, recorder = self._workspace, self._recorder
        sinks = [Sink("local", lambda: address_of_node(workspace.data_dir)), Sink("egress", self._egress)]
        start = workspace.clock.now()
        publisher = Publisher(recorder.outbox, sinks, subjects=recorder.names.all(), name=workspace.node)
        self._live = live = LivePublisher(
            publisher.sink_connections, node=workspace.node, boot=workspace.boot, tokens=self._tokens
        )
        publisher.register_sinks()
        self._closing = partial(loop.call_soon_threadsafe, closing.set)
        self._ready.set()
        tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(live.run())]
        await closing.wait()
        await publisher.wait_until_drained(DRAIN_TIMEOUT_S)
        if n_waiting := await publisher.n_undelivered():
            print_stderr(
                f"{n_waiting} events are not delivered yet; they stay in the outbox (see: agentgym-runner outbox)."
            )
        self._refused += await publisher.refused_since(start)
        await live.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
