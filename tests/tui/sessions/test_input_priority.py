from __future__ import annotations

import asyncio

from agentgym_tui.app.console import Console
from agentgym_tui.sessions.input_priority import InputPriority
from tests.support.console.fake_session import busy_session
from tests.support.console.pilot import wait_for_text, wait_until


class Counted(InputPriority):
    """Says what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def input_received(self) -> None:
        self.said.append("asked")
        super().input_received()

    def painted(self) -> None:
        self.said.append("answered")
        super().painted()


async def test_more_is_taken_in_once_a_person_has_an_answer() -> None:
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


async def test_it_is_taken_in_also_when_there_is_no_answer() -> None:
    priority = InputPriority()
    priority.input_received()
    priority.input_received()
    async with asyncio.timeout(5):
        await priority.wait_until_idle()


async def test_a_wheel_that_turns_on_keeps_nothing_out() -> None:
    priority = InputPriority()

    async def turn() -> None:
        while True:
            priority.input_received()
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await priority.wait_until_idle()
    turning.cancel()


async def test_a_key_is_a_question_and_the_next_drawing_its_answer() -> None:
    session = busy_session()
    session.input_priority = priority = Counted()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        await pilot.pause()
        priority.said.clear()
        await pilot.press("j")
        await wait_until(pilot, lambda: "asked" in priority.said, "the question")
        asked = priority.said.index("asked")
        await wait_until(pilot, lambda: "answered" in priority.said[asked:], "the answer")
        priority.said.clear()
        await pilot.hover("#steps")
        assert "asked" not in priority.said
