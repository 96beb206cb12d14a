from __future__ import annotations

import pytest
from textual.pilot import Pilot

from tests.support.console.fake_session import empty_session
from tests.support.console.pilot import console_app, wait_for_text
from tests.support.console.result_sessions import results_session
from tests.support.console.snapshots import LOOKS, SIZES, RunBefore, SnapCompare

pytestmark = pytest.mark.usefixtures("utc")


def after_keys(*steps: tuple[str, str], theme: str = "textual-dark") -> RunBefore:
    """Return a function that presses a key and waits for the text of each step."""

    async def run_before(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        for key, text in steps:
            await pilot.press(key)
            await wait_for_text(pilot, text)
        await pilot.pause()

    return run_before


ROW = (("7", "llama4-s"), ("j", "rewards of 37"), ("j", "rewards of 96"))


@LOOKS
def test_results(snap_compare: SnapCompare, size: tuple[int, int], theme: str) -> None:
    run_before = after_keys(*ROW[:2], ("c", "◆ compares"), ROW[2], theme=theme)
    assert snap_compare(console_app(results_session()), terminal_size=size, run_before=run_before)


@SIZES
def test_matrix(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    steps = (("m", "48 attempts"), ("j", "task 1 ·"), ("right", "attempt 2 of 4"))
    run_before = after_keys(*ROW[:2], *steps)
    assert snap_compare(console_app(results_session()), terminal_size=size, run_before=run_before)


def test_comparison(snap_compare: SnapCompare) -> None:
    run_before = after_keys(*ROW[:2], ("c", "◆ compares"), ROW[2], ("c", "sign test"))
    assert snap_compare(console_app(results_session()), run_before=run_before)


def test_results_by_batch(snap_compare: SnapCompare) -> None:
    run_before = after_keys(ROW[0], ("v", "by batch"), ("j", "rewards of 37"))
    assert snap_compare(console_app(results_session()), terminal_size=(200, 50), run_before=run_before)


def test_no_results(snap_compare: SnapCompare) -> None:
    session = empty_session()
    session.fake_library.stored = []
    run_before = after_keys(("7", "No results yet."))
    assert snap_compare(console_app(session), run_before=run_before)
