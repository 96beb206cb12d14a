"""Publisher: delivers every durable event of a state directory to every sink, across all outages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from runner.errors import StoreError
from runner.events.subjects import DURABLE
from runner.publish.delivery import DEFAULT_DELIVERY, DeliveryOptions
from runner.publish.outbox import LOCAL, DeadLetter, Outbox
from runner.publish.outbox_drain import OutboxDrain
from runner.publish.sink import OnState, Sink, SinkConnection, SinkState, sink_key

logger = logging.getLogger(__name__)

MAINTENANCE_INTERVAL_S = 60.0
DRAINED_POLL_S = 0.02

__all__ = ["Publisher", "Sink", "SinkState"]


class Publisher:
    """Delivers events to all sinks concurrently; an outage of one sink does not affect the others.

    An event is delivered when the stream that keeps its subject has acknowledged it. When no stream keeps the subject
    (the broker has no JetStream, or its streams have other subjects), it is delivered when the server has processed it;
    then only current subscribers get it.

    Args:
        sinks: the sinks, with different names.
    """

    def __init__(
        self,
        outbox: Outbox,
        sinks: Sequence[Sink],
        on_state: OnState | None = None,
        *,
        subjects: Iterable[str] = DURABLE,
        name: str = "agentgym-runner",
        options: DeliveryOptions = DEFAULT_DELIVERY,
    ) -> None:
        self._outbox = outbox
        self._on_state = on_state
        self.sink_connections = [SinkConnection(sink, client_name=name, on_state=self._on_sink_state) for sink in sinks]
        durable = tuple(subjects)
        self._drains = [OutboxDrain(each, outbox, durable, options) for each in self.sink_connections]

    @property
    def states(self) -> list[SinkState]:
        return [sink_connection.state for sink_connection in self.sink_connections]

    async def run(self) -> None:
        self._outbox.index.on_write = partial(self._on_add, asyncio.get_running_loop())
        try:
            async with asyncio.TaskGroup() as tasks:
                for sink_connection, drain in zip(self.sink_connections, self._drains, strict=True):
                    tasks.create_task(sink_connection.run())
                    tasks.create_task(drain.run())
                tasks.create_task(self._maintain_outbox())
        finally:
            self._outbox.index.on_write = None

    async def wait_until_drained(self, timeout_s: float, *, stall_timeout_s: float = math.inf) -> bool:
        """Wait until no event is pending for a reachable sink; returns whether that happened.

        Ignored are sinks without an address, and sinks to which every attempt to connect has failed; their events stay
        in the outbox. Waiting also stops after ``stall_timeout_s`` seconds without any delivery.
        """
        clock = asyncio.get_running_loop().time
        fewest, progress_at = math.inf, clock()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._outbox.register_sinks, *self._sink_keys())
                while n := await asyncio.to_thread(self._outbox.n_pending, self._reachable_sink_keys()):
                    if n < fewest:
                        fewest, progress_at = n, clock()
                    elif clock() - progress_at > stall_timeout_s:
                        return False
                    await asyncio.sleep(DRAINED_POLL_S)  # another process may be draining
        except TimeoutError:
            return False
        except StoreError as exc:
            logger.warning("the outbox cannot be used; its events wait for the next start: %s", exc)
            return False
        return True

    async def refused_since(self, start: datetime) -> list[DeadLetter]:
        """Return the events that a sink has refused for good since then."""
        letters = await asyncio.to_thread(self._outbox.dead_letters)
        return [letter for letter in letters if letter.at >= start and letter.sink in self._sink_keys()]

    async def n_undelivered(self) -> int:
        """Return the largest number of pending events of any sink.

        The node's own broker does not count while it is unreachable.
        """
        counted = (
            sink_connection
            for sink_connection in self.sink_connections
            if sink_connection.sink.name != LOCAL or not sink_connection.is_unreachable
        )
        keys = [key for sink_connection in counted if (key := sink_key(sink_connection.sink)) is not None]
        return max([await asyncio.to_thread(self._outbox.n_pending, [key]) for key in keys], default=0)

    def _sink_keys(self) -> list[str]:
        return [key for sink_connection in self.sink_connections if (key := sink_key(sink_connection.sink)) is not None]

    def _reachable_sink_keys(self) -> list[str]:
        reachable = (sink_connection for sink_connection in self.sink_connections if not sink_connection.is_unreachable)
        return [key for sink_connection in reachable if (key := sink_key(sink_connection.sink)) is not None]

    def _on_add(self, loop: asyncio.AbstractEventLoop) -> None:
        if not all(drain.added.is_set() for drain in self._drains):  # otherwise they are about to read it
            with contextlib.suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for drain in self._drains:
            drain.added.set()

    def _on_sink_state(self, state: SinkState) -> None:
        logger.log(logging.INFO if state.cause is None else logging.WARNING, "sink %s", _state_line(state))
        if self._on_state is not None:
            self._on_state(state)

    async def _maintain_outbox(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._outbox.register_sinks, *self._sink_keys())
                await asyncio.to_thread(self._outbox.prune)
            except StoreError as exc:
                logger.warning("the maintenance of the outbox failed: %s", exc)
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)


def _state_line(state: SinkState) -> str:
    return f"{state.sink} is {state.status}" + (f": {state.cause}" if state.cause else "")
