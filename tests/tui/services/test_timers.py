"""Timers survive a process that is suspended at any moment: nothing that was due is lost."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from agentgym_tui.state.nodes import BusLink
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import empty_session
from tests.support.console.log_consoles import log_line, log_lines, logs_pilot
from tests.support.console.pilot import SMALL, console_pilot, wait_for_text, wait_for_widget_text, wait_until
from tests.support.console.samples import START

N_CHANGES = 12
SUSPENDED_S = 0.5
"""Longer than any redraw interval."""


@pytest.fixture(autouse=True)
def random_suspensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Textual's clock jump at half of the readings, at random, as if the process had been suspended."""
    rng, suspended_s = random.Random(7), [0.0]

    def get_time() -> float:
        suspended_s[0] += SUSPENDED_S * rng.randrange(2)
        return time.monotonic() + suspended_s[0]

    monkeypatch.setattr("textual._time.get_time", get_time)


async def test_changes_messages_and_the_size_of_the_terminal_are_shown() -> None:
    session = empty_session()
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#status", "Live")
        for number in range(N_CHANGES):
            session.store.set_link(BusLink("failed", f"cause {number}."))
            await wait_for_text(pilot, f"cause {number}.")
        await pilot.press("3")
        await wait_until(pilot, lambda: bool(session.fake_events.opened))
        for number in range(N_CHANGES):
            session.fake_events.publish(
                RawMessage("orders", {}, b'{"order": %d}' % number, "ORDERS", number + 1, START, 0)
            )
            await wait_for_text(pilot, f'{{"order": {number}}}')
        await pilot.press("1")
        await wait_for_widget_text(pilot, "#status", "Live")
        for number in range(N_CHANGES):
            width = SMALL[0] + number
            await pilot.resize_terminal(width, 24)
            await wait_until(pilot, lambda width=width: pilot.app.screen.query_one("#status").size.width == width)  # type: ignore[misc]


@pytest.mark.long
async def test_lines_appended_to_a_log_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(log_lines(3))
    async with logs_pilot(path) as pilot:
        await pilot.press("G")
        for number in range(3, 3 + N_CHANGES):
            with path.open("a") as log:
                log.write(log_line(number, kind=f"kind{number}"))
            await wait_for_text(pilot, f"kind{number}")
