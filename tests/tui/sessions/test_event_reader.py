from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from agentgym_tui.sessions import event_reader
from agentgym_tui.sessions.event_reader import MAX_MESSAGES, READ_AHEAD, EventReader
from agentgym_tui.state.event_log import EventLog, EventMessage, EventQuery
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import FakeEvents
from tests.support.console.samples import START

INTERVAL_S = 0.01


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_S", "BACKLOG_INTERVAL_S"):
        monkeypatch.setattr(event_reader, name, INTERVAL_S)


class ReadingSession:
    """An event reader on a fake bus; ``wait_until`` waits for its changes."""

    def __init__(self, log: EventLog | None = None) -> None:
        self.bus = FakeEvents()
        self.log = EventLog() if log is None else log
        self._changed = asyncio.Event()
        self.reader = EventReader(self.bus, self.log, self._changed.set, now=lambda: START)

    def publish(self, *numbers: int) -> None:
        self.bus.publish(*(RawMessage("a", {}, b"x", "S", n, START) for n in numbers))

    @property
    def numbers(self) -> list[int | None]:
        return [entry.sequence for entry in self.log.shown if isinstance(entry, EventMessage)]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def settle(self) -> None:
        """Give the reader the time of several intervals."""
        for _ in range(5):
            await asyncio.sleep(INTERVAL_S)


@asynccontextmanager
async def reading(query: EventQuery, log: EventLog | None = None) -> AsyncIterator[ReadingSession]:
    read = ReadingSession(log)
    read.reader.set_query(query)
    task = asyncio.create_task(read.reader.run())
    try:
        while not read.bus.opened:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0)
        yield read
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_pause_loses_nothing_and_counts_unread_messages() -> None:
    async with reading(EventQuery(("a.>",), START - timedelta(minutes=3))) as read:
        assert read.bus.opened == [(("a.>",), timedelta(minutes=3))]
        read.publish(1, 2)
        await read.wait_until(lambda: read.numbers == [1, 2])
        read.reader.paused = True
        read.reader.update()
        read.publish(3)
        await read.settle()
        read.publish(4, 5)
        await read.wait_until(lambda: read.reader.n_waiting == 3)
        assert read.numbers == [1, 2]
        read.reader.paused = False
        read.reader.update()
        await read.wait_until(lambda: read.numbers == [1, 2, 3, 4, 5])
        assert read.reader.n_waiting is None


async def test_a_suspended_reader_reads_nothing() -> None:
    async with reading(EventQuery()) as read:
        read.reader.suspended = True
        read.reader.update()
        read.publish(1)
        await read.settle()
        assert read.numbers == [] and read.reader.n_waiting is None
        read.reader.suspended = False
        read.reader.update()
        await read.wait_until(lambda: read.numbers == [1])


async def test_a_full_log_evicts_nothing_until_it_is_followed() -> None:
    async with reading(EventQuery(), EventLog(max_entries=3)) as read:
        read.reader.following = False
        read.publish(1, 2, 3)
        await read.wait_until(lambda: read.numbers == [1, 2, 3])
        read.publish(4, 5)
        await read.settle()
        assert read.numbers == [1, 2, 3] and not read.reader.is_reading
        read.reader.following = True
        read.reader.update()
        await read.wait_until(lambda: read.numbers == [3, 4, 5])


async def test_a_history_is_read_only_slightly_beyond_the_selected_entry() -> None:
    async with reading(EventQuery(start=1, is_history=True)) as read:
        assert read.bus.opened[-1] == ((">",), 1)
        read.publish(*range(1, 3 * MAX_MESSAGES + 1))
        await read.wait_until(lambda: len(read.numbers) == MAX_MESSAGES)
        await read.settle()
        assert len(read.numbers) == MAX_MESSAGES >= READ_AHEAD
        read.reader.read_to(READ_AHEAD)
        await read.settle()
        assert len(read.numbers) == MAX_MESSAGES
        read.reader.read_to(0)
        await read.wait_until(lambda: len(read.numbers) == 2 * MAX_MESSAGES)
        await read.settle()
        assert read.numbers == list(range(1, 2 * MAX_MESSAGES + 1))
