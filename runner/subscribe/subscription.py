"""Following a bus: history and what comes now by one iterator, which outlives outages and says what it missed.

Where a stream keeps a subject it is read from there. Where none does, or reading is not allowed, messages are taken
as they pass and a notice says so. A follower changes nothing on the bus.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from nats.js.api import StreamInfo

from runner.bus.connection import NatsConnection
from runner.bus.errors import BusError
from runner.events.subjects import DurableNames
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.core_listener import CoreListener
from runner.subscribe.merge_by_time import TimeOrderedBuffer
from runner.subscribe.messages import BusMessage, Notice, Since, SubscriptionItem
from runner.subscribe.position import Position, n_left
from runner.subscribe.stream_lookup import StreamsUnavailable, find_streams, is_readable, work_queue_notice
from runner.subscribe.stream_reader import API_TIMEOUT_S, BUS_ERRORS, POLL_S, StreamReader, wait_until_connected
from runner.subscribe.subject_patterns import common, covered_by_any

__all__ = ["BusMessage", "DurableNames", "Notice", "RawMessage", "Since", "Subscription", "SubscriptionItem"]

LOOK_AGAIN_S: Final = 2.0
LOOK_SOON_S: Final = 0.8
"""How often streams are looked for while a subject has none."""

IDLE_S: Final = 0.4
"""How often the connection is looked at: rarely enough for a follower to cost nothing while nothing happens."""

REST_S: Final = 1.0
"""The same where streams keep all that is wanted: their readers look for themselves."""

PATIENCE: Final = 2
"""How often they are asked for in vain before a follower makes do without."""


class Subscription:
    """Everything on some subjects of a bus, for ``async with`` and in it ``async for``.

    Each event comes once. What streams keep waits there for a slow reader; of what no stream keeps at most
    ``capacity`` messages and ``max_bytes`` wait here, the others are counted in a notice.

    Args:
        connection: may come and go; stays open.
        patterns: subjects, with wildcards.
        since: where the history of each stream begins.
        names: the subjects of the durable events.
        capacity: messages that wait here.
        max_bytes: and what they take.
        in_time_order: what several streams keep comes by its times, not as it arrives.
    """

    def __init__(
        self,
        connection: NatsConnection,
        *,
        patterns: Sequence[str],
        since: Since,
        names: DurableNames | None = None,
        capacity: int = 10_000,
        max_bytes: int = 64 << 20,
        in_time_order: bool = False,
    ) -> None:
        """Follow from ``__aenter__`` on."""
        self._connection = connection
        self._patterns = [p for p in dict.fromkeys(patterns) if not covered_by_any(set(patterns) - {p}, p)]
        self._since = since
        self._began = datetime.now(UTC)
        buffer = TimeOrderedBuffer if in_time_order else DedupBuffer
        self._buffer = buffer(names or DurableNames(), capacity=capacity, max_bytes=max_bytes)
        self._listener = CoreListener(connection, self._buffer)
        self._readers: dict[str, tuple[StreamReader, asyncio.Task[None]]] = {}
        self._positions: dict[str, Position] = {}
        self._forbidden: set[str] = set()
        self._missing: set[str] = set()
        self._silences = 0
        self._told: set[str] = set()
        self._uncovered: set[str] = set()
        self._queues: list[StreamInfo] = []
        self._is_new = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Start to follow."""
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._watch_connection())]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._buffer.end())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await _end([*self._tasks, *(task for _, task in self._readers.values())])
        await self._listener.close()

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> SubscriptionItem:
        """The next message or notice; waits for it."""
        if (seen := await self._buffer.next_item()) is not None:
            return seen
        raise self._ended()

    async def next_batch(self, limit: int = 500) -> list[SubscriptionItem]:
        """What is there already, at least one; waits for it. Raises ``StopAsyncIteration`` as ``__anext__`` does."""
        seen = [await anext(self)]
        while len(seen) < limit and (more := self._buffer.next_ready()) is not None:
            seen.append(more)
        return seen

    async def next_raw(self, limit: int = 500, *, max_bytes: float = math.inf) -> list[RawMessage | Notice]:
        """As ``some``, but as it came: not decoded, and what comes twice is there twice.

        Args:
            limit: how many at most.
            max_bytes: after so many bytes none is added.
        """
        if not await self._buffer.wait_filled():
            raise self._ended()
        came: list[RawMessage | Notice] = []
        while len(came) < limit and max_bytes > 0 and (item := self._buffer.pop()) is not None:
            came.append(item)
            max_bytes -= item.size if isinstance(item, RawMessage) else 0
        return came

    def decode(self, message: RawMessage) -> BusMessage | None:
        """What a message that came as it was says; None when it was there before."""
        return self._buffer.decode(message)

    async def count_waiting(self) -> int:
        """Messages that wait: here, and in streams after what was read of them, there also those not wanted.

        Raises:
            nats.errors.Error, OSError: when the bus is away.
        """
        js = self._connection.client.jetstream(timeout=API_TIMEOUT_S)
        positions = {name: each for name, each in self._positions.items() if name not in self._forbidden}
        return await n_left(js, positions) + self._buffer.n_waiting

    def _ended(self) -> Exception:
        """What to raise when nothing will come any more; raises what made it so."""
        for task in self._tasks:
            if task.done():
                task.result()
        return StopAsyncIteration()

    async def _follow(self) -> None:
        generation = -1
        while True:
            await wait_until_connected(self._connection)
            if generation != self._connection.generation:
                generation = self._connection.generation
                self._forbidden.clear()
            try:
                await self._cover()
            except BUS_ERRORS:
                await asyncio.sleep(POLL_S)
            else:
                await self._until_changed(generation)

    async def _cover(self) -> None:
        """Have a reader for each stream that keeps what is wanted, and listen to the rest."""
        reason = await self._start_readers()
        held = [subject for reader, _ in self._readers.values() for subject in reader.subjects]
        uncovered = [pattern for pattern in self._patterns if not covered_by_any(held, pattern)]
        await self._listener.listen(uncovered, held)
        for info in self._queues:
            self._tell(work_queue_notice(info.config.name or ""))
        kept = [*held, *(subject for info in self._queues for subject in info.config.subjects or [])]
        for pattern in uncovered:
            if reason or (pattern in self._uncovered and not covered_by_any(kept, pattern)):
                self._tell(Notice(kind="no_history", text=f"{pattern}: {reason or _why(pattern, kept)}"))
        self._is_new = not self._uncovered.issuperset(uncovered)
        self._uncovered = set(uncovered)
        for pattern in self._patterns:
            if (error := self._connection.permission_error(pattern)) is not None:
                self._tell(Notice(kind="permission", text=str(error)))

    async def _start_readers(self) -> str | None:
        """Returns why no streams can be found, None when they can."""
        try:
            found = await find_streams(self._connection, self._patterns)
        except StreamsUnavailable as exc:
            if exc.forbidden:
                self._tell(Notice(kind="permission", text=str(exc)))
            return f"{exc}; only what comes from now on is shown"
        except BUS_ERRORS:
            self._silences += 1
            if self._silences < PATIENCE or not self._connection.connected:
                raise
            return "this bus does not say what it keeps; only what comes from now on is shown"
        self._silences = 0
        self._tell_removed(self._missing - {info.config.name for info in found})
        self._queues = [info for info in found if not is_readable(info)]
        read = [info for info in found if is_readable(info)]
        if not self._positions:
            self._tell_ahead([info.state.last_seq for info in read])
        for info in read:
            name = info.config.name or ""
            if name in self._readers or name in self._forbidden:
                continue
            self._buffer.add_stream(name, info.state.last_seq)
            position = self._positions.setdefault(name, Position.initial(self._since, info, self._began))
            reader = StreamReader(self._connection, info, self._patterns, position, self._buffer)
            self._readers[name] = (reader, asyncio.create_task(reader.run()))
        return None

    async def _until_changed(self, generation: int) -> None:
        """Wait until a reader ended, or until streams are to be looked for again."""
        look_again = asyncio.get_running_loop().time() + (LOOK_SOON_S if self._is_new else LOOK_AGAIN_S)
        while self._connection.generation == generation:
            await _first_of([task for _, task in self._readers.values()], IDLE_S if self._listener.patterns else REST_S)
            if self._ended_reader() or not self._connection.connected:
                return
            if self._listener.patterns and asyncio.get_running_loop().time() > look_again:
                return

    def _ended_reader(self) -> bool:
        """Whether a reader has ended; it is forgotten then."""
        ended = [(name, task) for name, (_, task) in self._readers.items() if task.done()]
        for name, task in ended:
            del self._readers[name]
            self._buffer.remove_stream(name)
            try:
                task.result()
            except BusError as exc:
                self._forbidden.add(name)
                self._tell(Notice(kind="permission", text=f"stream {name} cannot be read: {exc}"))
            else:
                self._missing.add(name)
        return bool(ended)

    def _tell_removed(self, names: set[str]) -> None:
        """Say which streams that were read are gone; a server that starts again has them back in a moment."""
        self._missing.clear()
        for name in sorted(names):
            self._buffer.notify(Notice(kind="removed", text=f"stream {name} is there no more"), name)

    def _tell_ahead(self, newest: list[int]) -> None:
        """Say that the history that is asked for lies ahead in all streams."""
        if isinstance(self._since, int) and newest and max(newest) + 1 < self._since:
            ahead = f"no stream has come to #{self._since} yet, the furthest is at #{max(newest)}"
            self._tell(Notice(kind="no_history", text=f"{ahead}; what comes next is shown"))

    def _tell(self, notice: Notice) -> None:
        """Say a thing once."""
        if notice.text not in self._told:
            self._told.add(notice.text)
            self._buffer.notify(notice)

    async def _watch_connection(self) -> None:
        """Say what becomes of the connection."""
        told, reconnects = "connected", self._reconnects()
        while True:
            state = self._connection.state
            now = self._reconnects()
            if state.status == "connected" and (told != "connected" or now != reconnects):
                self._buffer.notify(Notice(kind="reconnected", text=self._reconnected(cut_told=told == "disconnected")))
                reconnects = now
            elif state.status == "stalled" and told != "stalled":
                self._buffer.notify(Notice(kind="lost_server", text=state.reason or "the server does not answer"))
            elif state.status not in ("connected", "stalled") and told in ("connected", "stalled"):
                self._buffer.notify(Notice(kind="disconnected", text=state.reason or "not connected"))
            told = state.status
            await asyncio.sleep(IDLE_S if told == "connected" else POLL_S)

    def _reconnected(self, *, cut_told: bool) -> str:
        reason = "" if cut_told or not self._connection.last_loss else f" ({self._connection.last_loss})"
        missing = "; meanwhile messages that no stream keeps may have passed" if self._listener.patterns else ""
        return f"connected again{reason}{missing}"

    def _reconnects(self) -> tuple[int, int]:
        generation = self._connection.generation
        return (generation, self._connection.client.stats["reconnects"] if generation else 0)


async def _first_of(tasks: list[asyncio.Task[None]], timeout_s: float) -> None:
    """Wait until one of the tasks has ended, but not for longer than that."""
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(timeout_s)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel until it works: ``wait_for``, which the client uses, may swallow a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=POLL_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # was raised where it mattered


def _why(pattern: str, held: list[str]) -> str:
    if any(common(pattern, subject) for subject in held):
        return "no stream keeps all of it; of the rest only what comes from now on is shown"
    return "no stream keeps it; only what comes from now on is shown"
