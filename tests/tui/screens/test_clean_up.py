"""Selection, archive and delete in Episodes, by keyboard, on a real state directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from agentgym_tui.sessions.library import StateDirLibrary
from runner.types import Outcome
from runner.util.files import file_lock
from tests.support.console.fake_session import FakeSession, curating_session, files_session
from tests.support.console.pilot import (
    console_pilot,
    filter_by,
    toast_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.episodes import record_episodes

LIST, SUMMARY = "#episodes", "#summary"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[FakeSession]:
    """A session on a state directory with twelve failed episodes of Maze and three of Wordle, all delivered."""
    failed = {"outcome": Outcome.FAILURE, "success": False}
    record_episodes(tmp_path, 12, env="Maze", end=failed)
    record_episodes(tmp_path, 3, env="Wordle")
    with curating_session(tmp_path) as session:
        yield session


def stored(session: FakeSession) -> set[str]:
    assert session.data_dir is not None
    return {path.stem for path in session.data_dir.glob("runs/*/*.json")}


async def show_episodes(pilot: Pilot[None], n: int) -> None:
    await pilot.press("2")
    await wait_for_widget_text(pilot, SUMMARY, f"{n} episodes")


async def test_all_of_a_query_are_deleted_after_a_warning(session: FakeSession, tmp_path: Path) -> None:
    other = StateDirLibrary(lambda: tmp_path)
    assert len(other.rows()) == 15
    assert not other.has_changed()
    async with console_pilot(session) as pilot:
        await show_episodes(pilot, 15)
        await pilot.press("D")  # without a selection, the episode under the cursor is meant
        await wait_for_text(pilot, "Delete 1 episode?")
        await pilot.press("enter")  # the answer that does nothing has the focus
        await wait_until(pilot, lambda: type(pilot.app.screen).__name__ == "EpisodesScreen")
        assert len(stored(session)) == 15
        await pilot.press("space")
        await filter_by(pilot, "env:maze outcome:failure")
        await wait_for_widget_text(pilot, SUMMARY, "●1 selected, 1 of them not shown")
        await pilot.press("ctrl+a", "ctrl+a", "space", "k", "space")
        await wait_for_widget_text(pilot, SUMMARY, "●1 selected, 1 of them not shown")
        await pilot.press("escape", "g", "space")
        await wait_until(pilot, lambda: "selected" not in widget_text(pilot, SUMMARY))
        await filter_by(pilot, "env:maze outcome:failure")
        await pilot.press("ctrl+a")
        await wait_for_widget_text(pilot, SUMMARY, "●12 selected")
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "15 episodes · ●12 selected")
        await pilot.press("D")
        await wait_for_text(pilot, "Delete 12 episodes?", "this is final")
        assert len(stored(session)) == 15
        await pilot.press("y")
        await wait_for_text(pilot, "12 episodes deleted")
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes")
        assert other.has_changed()
        assert len(other.rows()) == 3
    other.close()
    assert len(stored(session)) == 3


async def test_what_cannot_be_done_is_said(session: FakeSession, tmp_path: Path) -> None:
    async with console_pilot(session) as pilot:
        await show_episodes(pilot, 15)
        with file_lock(tmp_path / "prune.lock", create=True):
            await pilot.press("D")
            await wait_for_text(pilot, "Delete 1 episode?")
            await pilot.press("y")
            await wait_until(pilot, lambda: "is being pruned by another process" in toast_text(pilot))
        record_episodes(tmp_path, 1, env="TextCraft")  # its event waits for a node
        await pilot.press("ctrl+r")
        await wait_for_widget_text(pilot, LIST, "TextCraft")
        await pilot.press("g", "A")
        await wait_for_text(pilot, "no episode can be archived now", "1 stays: event not delivered")


async def test_opened_files_are_only_read() -> None:
    async with console_pilot(files_session(3)) as pilot:
        await show_episodes(pilot, 3)
        for key, why in zip("ADT", (*["these episodes are only read"] * 2, "nothing can be started"), strict=True):
            await pilot.press(key)
            await wait_for_text(pilot, why)
            assert type(pilot.app.screen).__name__ == "EpisodesScreen"
