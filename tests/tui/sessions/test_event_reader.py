from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from agentgym_tui.sessions import event_reader
from agentgym_tui.sessions.event_reader import MAX_MESSAGES, READ_AHEAD, EventReader
from agentgym_tui.state.event_log import EventLog, EventMessage
from agentgym_tui.state.event_query import EventQuery
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import FakeEvents
from tests.support.console.samples import START


class Reading:
    """A reader of a bus that says what a test wants; ``until`` waits for its news."""

    def __init__(self, log: EventLog | None = None) -> None:
        self.bus = FakeEvents()
        self.log = EventLog() if log is None else log
        self._news = asyncio.Event()
        self.reader = EventReader(self.bus, self.log, self._news.set, now=lambda: START)

    def say(self, *numbers: int) -> None:
        self.bus.say(*(RawMessage("a", {}, b"x", "S", n, START) for n in numbers))

    @property
    def numbers(self) -> list[int | None]:
        return [entry.sequence for entry in self.log.shown if isinstance(entry, EventMessage)]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def nothing_more(self) -> None:
        """All that may happen has happened: the reader has had several turns."""
        for _ in range(5):
            await asyncio.sleep(event_reader.GATHER_S)


@asynccontextmanager
async def reading(view: EventQuery, log: EventLog | None = None) -> AsyncIterator[Reading]:
    made = Reading(log)
    made.reader.set_query(view)
    task = asyncio.create_task(made.reader.run())
    try:
        while not made.bus.opened:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "BACKLOG_INTERVAL_S", 0.01)
    monkeypatch.setattr(event_reader, "GATHER_S", 0.01)


async def test_what_is_asked_for_is_opened() -> None:
    async with reading(EventQuery(("a.>",), START - timedelta(minutes=3))) as read:
        assert read.bus.opened == [(("a.>",), timedelta(minutes=3))]


async def test_a_pause_loses_nothing_and_says_what_waits() -> None:
    async with reading(EventQuery()) as read:
        read.say(1, 2)
        await read.until(lambda: read.numbers == [1, 2])
        read.reader.paused = True
        read.reader.update()
        read.say(3)
        await read.nothing_more()
        read.say(4, 5)
        await read.until(lambda: read.reader.n_waiting == 3)
        assert read.numbers == [1, 2]
        read.reader.paused = False
        read.reader.update()
        await read.until(lambda: read.numbers == [1, 2, 3, 4, 5])
        assert read.reader.n_waiting is None


async def test_nobody_looking_is_a_pause() -> None:
    async with reading(EventQuery()) as read:
        read.reader.suspended = True
        read.reader.update()
        read.say(1)
        await read.nothing_more()
        assert read.numbers == [] and read.reader.n_waiting is None
        read.reader.suspended = False
        read.reader.update()
        await read.until(lambda: read.numbers == [1])


async def test_what_somebody_looks_at_does_not_go() -> None:
    async with reading(EventQuery(), EventLog(max_entries=3)) as read:
        read.reader.following = False
        read.say(1, 2, 3)
        await read.until(lambda: read.numbers == [1, 2, 3])
        read.say(4, 5)
        await read.nothing_more()
        assert read.numbers == [1, 2, 3] and not read.reader.is_reading
        read.reader.following = True
        read.reader.update()
        await read.until(lambda: read.numbers == [3, 4, 5])


async def test_a_history_is_read_as_far_as_one_looks() -> None:
    async with reading(EventQuery(start=1, is_history=True)) as read:
        assert read.bus.opened[-1] == ((">",), 1)
        read.say(*range(1, 3 * MAX_MESSAGES + 1))
        await read.until(lambda: len(read.numbers) == MAX_MESSAGES)
        await read.nothing_more()
        assert len(read.numbers) == MAX_MESSAGES >= READ_AHEAD
        read.reader.read_to(READ_AHEAD)
        await read.nothing_more()
        assert len(read.numbers) == MAX_MESSAGES
        read.reader.read_to(0)
        await read.until(lambda: len(read.numbers) == 2 * MAX_MESSAGES)
        await read.nothing_more()
        assert read.numbers == list(range(1, 2 * MAX_MESSAGES + 1))
