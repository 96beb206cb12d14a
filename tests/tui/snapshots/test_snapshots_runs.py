from __future__ import annotations

import pytest
from textual.pilot import Pilot

from tests.support.console.fake_session import empty_session, ended_session, mixed_session
from tests.support.console.pilot import console_app, wait_for_text
from tests.support.console.snapshots import TABLE_SIZES, SnapCompare

pytestmark = pytest.mark.usefixtures("utc")


@TABLE_SIZES
def test_runs_of_each_kind(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await wait_for_text(pilot, "battery of 2")
        await pilot.press("enter", "j", "enter")
        await wait_for_text(pilot, "· task 3", "▸ SQLGym")
        await pilot.pause()

    assert snap_compare(console_app(mixed_session()), terminal_size=size, run_before=run_before)


def test_no_runs(snap_compare: SnapCompare) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await wait_for_text(pilot, "Nothing has run yet.")
        await pilot.pause()

    assert snap_compare(console_app(empty_session()), run_before=run_before)


@TABLE_SIZES
def test_summary_of_a_battery(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await wait_for_text(pilot, "M shows the summary")
        await pilot.press("M")
        await wait_for_text(pilot, "Summary · battery of 3", "Maze")
        await pilot.pause()

    assert snap_compare(console_app(ended_session()), terminal_size=size, run_before=run_before)
