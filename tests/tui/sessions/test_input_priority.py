from __future__ import annotations

import asyncio

from agentgym_tui.app.console import Console
from agentgym_tui.sessions.input_priority import InputPriority
from tests.support.console.fake_session import busy_session
from tests.support.console.pilot import wait_for_text, wait_until


class RecordedPriority(InputPriority):
    """Records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def input_received(self) -> None:
        self.calls.append("input_received")
        super().input_received()

    def painted(self) -> None:
        self.calls.append("painted")
        super().painted()


async def test_waiting_ends_when_the_input_is_painted() -> None:
    priority = InputPriority()
    async with asyncio.timeout(5):
        await priority.wait_until_idle()
    priority.input_received()
    waiting = asyncio.create_task(priority.wait_until_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    priority.painted()
    async with asyncio.timeout(5):
        await waiting


async def test_waiting_ends_even_when_nothing_is_painted() -> None:
    priority = InputPriority()
    priority.input_received()
    priority.input_received()
    async with asyncio.timeout(5):
        await priority.wait_until_idle()


async def test_continuous_input_blocks_nothing() -> None:
    priority = InputPriority()

    async def scroll() -> None:
        while True:
            priority.input_received()
            await asyncio.sleep(0)

    scrolling = asyncio.create_task(scroll())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await priority.wait_until_idle()
    scrolling.cancel()


async def test_a_key_counts_as_input_until_the_next_paint_and_a_mouse_move_does_not() -> None:
    session = busy_session()
    session.input_priority = priority = RecordedPriority()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        await pilot.pause()
        priority.calls.clear()
        await pilot.press("j")
        await wait_until(pilot, lambda: "input_received" in priority.calls, "the input")
        received = priority.calls.index("input_received")
        await wait_until(pilot, lambda: "painted" in priority.calls[received:], "the paint")
        priority.calls.clear()
        await pilot.hover("#steps")
        assert "input_received" not in priority.calls
