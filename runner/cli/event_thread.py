"""Delivery of the events of a foreground run, on a separate thread so that a slow bus does not delay the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from runner.batch.workspace import Workspace
from runner.bus.address import BusAddress, address_of_node
from runner.cli.terminal import print_stderr
from runner.config import LiveTokens
from runner.errors import catch_foreign
from runner.publish.live_publisher import LivePublisher
from runner.publish.outbox import DeadLetter, EventRecorder
from runner.publish.publisher import Publisher, Sink
from runner.util.display_text import pluralize

DRAIN_TIMEOUT_S = 5.0
"""Maximum seconds to wait at the end of a run for the delivery of its events."""


class EventThread(threading.Thread):
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
        super().__init__(name="events", daemon=True)
        sinks = [Sink("local", lambda: address_of_node(workspace.data_dir)), Sink("egress", egress)]
        self._publisher = publisher = Publisher(
            recorder.outbox, sinks, subjects=recorder.names.all(), name=workspace.node
        )
        connections = publisher.sink_connections
        self._live = LivePublisher(connections, node=workspace.node, boot=workspace.boot, tokens=tokens)
        self.observer = self._live.observer
        self._started_at, self._refused = workspace.clock.now(), refused
        self._closing = threading.Event()
        publisher.register_sinks()
        self.start()

    def close(self) -> None:
        """Wait up to twice ``DRAIN_TIMEOUT_S`` seconds for the delivery; undelivered events stay in the outbox."""
        self._closing.set()
        self.join(2 * DRAIN_TIMEOUT_S)

    def run(self) -> None:
        failed = "Events are no longer delivered ({}: {}); the next run or node sends them.".format
        with catch_foreign(lambda exc: print_stderr(failed(type(exc).__name__, exc))):
            asyncio.run(self._deliver())

    async def _deliver(self) -> None:
        tasks = [asyncio.create_task(self._publisher.run()), asyncio.create_task(self._live.run())]
        await asyncio.to_thread(self._closing.wait)
        await self._publisher.wait_until_drained(DRAIN_TIMEOUT_S)
        if n_waiting := await self._publisher.n_undelivered():
            print_stderr(
                f"{pluralize(n_waiting, 'event')} not delivered yet; the next run or node sends what waits "
                "(agentgym-runner outbox shows it)."
            )
        self._refused += await self._publisher.refused_since(self._started_at)
        await self._live.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
