from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual.widgets import Input

from agentgym_tui.app.console import Console
from agentgym_tui.sessions import input_priority
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

    def input_handled(self) -> None:
        self.calls.append("input_handled")
        super().input_handled()

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
    priority.input_handled()
    priority.painted()
    async with asyncio.timeout(5):
        await waiting


async def test_a_paint_before_all_input_is_handled_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_priority, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(input_priority, "MAX_TOTAL_WAIT_S", 60.0)
    priority = InputPriority()
    priority.input_received()
    waiting = asyncio.create_task(priority.wait_until_idle())
    priority.painted()
    priority.input_received()
    priority.input_handled()
    priority.painted()
    await asyncio.sleep(0)
    assert not waiting.done()
    priority.input_handled()
    priority.painted()
    async with asyncio.timeout(5):
        await waiting


async def test_a_key_that_is_never_handled_delays_no_later_paint() -> None:
    priority = InputPriority()
    priority.input_received()
    async with asyncio.timeout(5):
        await priority.wait_until_idle()
    priority.input_received()
    priority.input_handled()
    priority.painted()
    waiting = asyncio.create_task(priority.wait_until_idle())
    await asyncio.sleep(0)
    assert waiting.done()


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
        await wait_until(pilot, lambda: "input_handled" in priority.calls[received:], "the handled input")
        handled = priority.calls.index("input_handled")
        await wait_until(pilot, lambda: "painted" in priority.calls[handled:], "the paint")
        priority.calls.clear()
        await pilot.hover("#steps")
        assert "input_received" not in priority.calls


async def test_a_draw_while_a_key_is_handled_applies_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    session = busy_session()
    session.input_priority = priority = InputPriority()
    run_action, waits = Console.run_action, list[bool]()

    async def draw_and_run(console: Console, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401 - Textual's arguments
        waiting = asyncio.create_task(priority.wait_until_idle())
        console.post_display_hook()  # as if messages that came before the key were drawn now
        await asyncio.sleep(0)
        waits.append(not waiting.done())
        await waiting
        return await run_action(console, *args, **kwargs)

    monkeypatch.setattr(Console, "run_action", draw_and_run)
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        await pilot.press("2")
        await wait_until(pilot, lambda: bool(waits), "the action")
    assert waits[0]


async def test_typed_text_is_handled_once_its_field_has_it() -> None:
    session = busy_session()
    values: list[str] = []

    class ReadingPriority(InputPriority):
        def input_handled(self) -> None:
            values.extend(field.value for field in pilot.app.screen.query(Input) if field.has_focus)
            super().input_handled()

    session.input_priority = ReadingPriority()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        await pilot.press("2", "slash")
        await wait_until(pilot, lambda: isinstance(pilot.app.focused, Input), "the field")
        values.clear()
        await pilot.press("a", "b")
        await wait_until(pilot, lambda: len(values) == 2, "both letters")
    assert values == ["a", "ab"]
