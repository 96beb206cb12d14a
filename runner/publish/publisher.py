"""The publisher: brings every durable event of a state directory to every sink, however often they go away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial

from runner.errors import StoreError
from runner.events.subjects import DURABLE
from runner.publish.outbox import LOCAL, Outbox
from runner.publish.outbox_drain import OutboxDrain
from runner.publish.sink import OnState, Sink, SinkConnection, SinkState, sink_key

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 60.0
LOOK_S = 0.02

__all__ = ["Publisher", "Sink", "SinkState"]


class Publisher:
    """Sends to all sinks at the same time; an outage of one changes nothing for the others.

    An event has arrived at a sink when the stream that keeps its subject has acknowledged it. Where no stream keeps it
    (a broker without JetStream, or one whose streams are about other subjects) it has arrived when the server has read
    it: those who listen then get it, those who come later do not.

    Args:
        outbox: where events wait; any thread and any process may add to it.
        sinks: with different names.
        on_state: told of each change of a sink's state, in the event loop.
        subjects: those of the durable events.
        name: shown by the servers.
    """

    def __init__(
        self,
        outbox: Outbox,
        sinks: Sequence[Sink],
        on_state: OnState | None = None,
        *,
        subjects: Iterable[str] = DURABLE,
        name: str = "agentgym-runner",
    ) -> None:
        """From now on events wait for these sinks, as far as they have an address; nothing is sent before ``run``.

        Raises:
            StoreError: when the outbox cannot be used.
        """
        self._outbox = outbox
        self._on_state = on_state or _ignore
        self.sink_connections = [SinkConnection(sink, client_name=name, on_state=self._tell) for sink in sinks]
        outbox.register_sinks(*self._places())
        wanted = tuple(subjects)
        self._drains = [OutboxDrain(sink_connection, outbox, wanted) for sink_connection in self.sink_connections]

    @property
    def states(self) -> list[SinkState]:
        """How the sinks are doing."""
        return [sink_connection.state for sink_connection in self.sink_connections]

    async def run(self) -> None:
        """Publish until cancelled."""
        self._outbox.on_add = partial(self._added, asyncio.get_running_loop())
        try:
            async with asyncio.TaskGroup() as tasks:
                for sink_connection, drain in zip(self.sink_connections, self._drains, strict=True):
                    tasks.create_task(sink_connection.run())
                    tasks.create_task(drain.run())
                tasks.create_task(self._keep_house())
        finally:
            self._outbox.on_add = None

    async def wait_until_drained(self, timeout_s: float, *, stall_timeout_s: float = math.inf) -> bool:
        """Wait until nothing waits for any sink that could be reached; returns whether that came true.

        Sinks without an address, and such as could not be reached from the start, are not waited for: what is meant for
        them is kept, and sent the next time. So is what waits when nothing has arrived anywhere for ``stall_timeout_s``.
        """
        clock = asyncio.get_running_loop().time
        fewest, since = math.inf, clock()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._outbox.register_sinks, *self._places())
                while n := await asyncio.to_thread(self._outbox.n_pending, self._awaited()):
                    if n < fewest:
                        fewest, since = n, clock()
                    elif clock() - since > stall_timeout_s:
                        return False
                    await asyncio.sleep(LOOK_S)  # another process may be at it
        except TimeoutError:
            return False
        return True

    async def n_undelivered(self) -> int:
        """How many events wait for other brokers, and for the own one if that is there."""
        away = (
            sink_connection
            for sink_connection in self.sink_connections
            if sink_connection.sink.name != LOCAL or not sink_connection.is_unreachable
        )
        places = [place for sink_connection in away if (place := sink_key(sink_connection.sink)) is not None]
        return max([await asyncio.to_thread(self._outbox.n_pending, [place]) for place in places], default=0)

    def _places(self) -> list[str]:
        return [
            place for sink_connection in self.sink_connections if (place := sink_key(sink_connection.sink)) is not None
        ]

    def _awaited(self) -> list[str]:
        reachable = (sink_connection for sink_connection in self.sink_connections if not sink_connection.is_unreachable)
        return [place for sink_connection in reachable if (place := sink_key(sink_connection.sink)) is not None]

    def _added(self, loop: asyncio.AbstractEventLoop) -> None:
        """From any thread; the loop may have ended in the meantime."""
        if not all(drain.added.is_set() for drain in self._drains):  # else they will look anyway
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for drain in self._drains:
            drain.added.set()

    def _tell(self, state: SinkState) -> None:
        logger.log(logging.INFO if state.cause is None else logging.WARNING, "sink %s", _line(state))
        self._on_state(state)

    async def _keep_house(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._outbox.register_sinks, *self._places())
                await asyncio.to_thread(self._outbox.prune)
            except StoreError as exc:
                logger.warning("the outbox could not be tidied up: %s", exc)
            await asyncio.sleep(HOUSEKEEPING_S)


def _ignore(state: SinkState) -> None:
    """Nobody asked."""


def _line(state: SinkState) -> str:
    return f"{state.sink} is {state.status}" + (f": {state.cause}" if state.cause else "")
