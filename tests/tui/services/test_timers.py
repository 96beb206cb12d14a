"""A console that other processes hold up at any moment: what it was going to do it does."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from agentgym_tui.state.models import BusLink
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import empty_session
from tests.support.console.log_consoles import log_line, log_lines, logs_pilot
from tests.support.console.pilot import SMALL, console_pilot, wait_for_text, wait_for_widget_text, wait_until
from tests.support.console.samples import START

TIMES = 12
HELD_UP_S = 0.5
"""Longer than anything waits until it is drawn."""


@pytest.fixture(autouse=True)
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as not the process had no turn between one look of a timer at the clock and the next."""
    chance, lost = random.Random(7), [0.0]

    def look() -> float:
        lost[0] += HELD_UP_S * chance.randrange(2)
        return time.monotonic() + lost[0]

    monkeypatch.setattr("textual._time.get_time", look)


async def test_what_changes_is_drawn() -> None:
    session = empty_session()
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#status", "Live")
        for number in range(TIMES):
            session.store.set_link(BusLink("failed", f"cause {number}."))
            await wait_for_text(pilot, f"cause {number}.")


async def test_it_takes_the_size_of_its_terminal() -> None:
    async with console_pilot(empty_session()) as pilot:
        await wait_for_widget_text(pilot, "#status", "Live")
        for number in range(TIMES):
            width = SMALL[0] + number
            await pilot.resize_terminal(width, 24)
            await wait_until(pilot, lambda width=width: pilot.app.screen.query_one("#status").size.width == width)  # type: ignore[misc]


async def test_messages_of_a_bus_are_shown() -> None:
    session = empty_session()
    async with console_pilot(session) as pilot:
        await pilot.press("3")
        await wait_until(pilot, lambda: bool(session.fake_events.opened))
        for number in range(TIMES):
            session.fake_events.publish(RawMessage("orders", {}, b'{"order": %d}' % number, "ORDERS", number + 1, START, 0))
            await wait_for_text(pilot, f'{{"order": {number}}}')


async def test_what_is_added_to_a_log_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(log_lines(3))
    async with logs_pilot(path) as pilot:
        await pilot.press("G")
        for number in range(3, 3 + TIMES):
            with path.open("a") as log:
                log.write(log_line(number, kind=f"kind{number}"))
            await wait_for_text(pilot, f"kind{number}")
