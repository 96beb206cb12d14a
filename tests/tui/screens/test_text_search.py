"""``text:`` in the filter of Episodes, on real files and on a state directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agentgym_tui.app import Console
from agentgym_tui.sessions.library import StateDirLibrary, TextSearch
from agentgym_tui.sessions.session import FileSession
from tests.support.console.fake_session import FakeSession
from tests.support.console.pilot import wait_for_widget_text, widget_text
from tests.tui.screens.test_compare import record

SUMMARY, EPISODES = "#summary", "#episodes"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    record(folder, ("go up", "a wall above you"), ("go left", "a red door"))
    record(folder, ("go up", "a blue door"), ("open", "the door is LOCKED"), ("open", "a locked, door"))
    record(folder, ("go up", "nothing"))
    return folder


async def test_words_of_the_texts_filter_opened_files(data_dir: Path, tmp_path: Path) -> None:
    session = FileSession([data_dir], tmp_path / "cache")
    async with Console(session).run_test(size=(120, 24)) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes")
        await pilot.press("slash", *"text:door")
        await wait_for_widget_text(pilot, SUMMARY, "2 match text:door")
        await pilot.press(*"x")
        await wait_for_widget_text(pilot, SUMMARY, "0 match text:doorx")
        await pilot.press("escape", "slash", *'text:"locked door"')
        await wait_for_widget_text(pilot, SUMMARY, '1 match text:"locked door"')
        await pilot.press("escape", "slash", *"-text:door rounds<9")
        await wait_for_widget_text(pilot, SUMMARY, "1 match -text:door rounds<9")
        assert "are searched" not in widget_text(pilot, SUMMARY)
    assert not (data_dir / "text.sqlite").exists()
    assert list((tmp_path / "cache").glob("*/text.sqlite"))


async def test_an_incomplete_index_is_built_in_the_background(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_tui.sessions.library.FEW", 0)
    session = FakeSession()
    library = session.library = StateDirLibrary(lambda: data_dir)
    allowed = threading.Event()

    def build() -> None:
        if allowed.is_set():
            TextSearch.build(library.texts)

    monkeypatch.setattr(library.texts, "build", build)
    async with Console(session).run_test(size=(120, 24)) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes")
        await pilot.press("slash", *"text:door")
        await wait_for_widget_text(pilot, SUMMARY, "0 match text:door", "0 of 3 episodes are searched")
        assert library.texts.needs("text:door")  # so that the same words, typed again, are looked up again
        allowed.set()
        await wait_for_widget_text(pilot, SUMMARY, "2 match text:door")
        assert "are searched" not in widget_text(pilot, SUMMARY)
        assert not library.texts.needs("text:door")
    library.close()
    assert (data_dir / "text.sqlite").exists()
