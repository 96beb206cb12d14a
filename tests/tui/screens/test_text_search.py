"""``text:`` in the filter of Episodes, the lines that it finds and the keys through them, on real files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.pilot import Pilot

from agentgym_tui.app import Console
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.sessions.library import StateDirLibrary, TextSearch
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.widgets.transcript import Transcript
from tests.support.console.fake_session import FakeSession
from tests.support.console.pilot import filter_by, screen_text, wait_for_widget_text, wait_until, widget_text
from tests.support.console.samples import HOSTILE
from tests.tui.screens.test_compare import record

SUMMARY, HITS = "#summary", "#hits"


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """Ids of three episodes, the newest first; the second one has no door."""
    long = "\n".join(["you see a wall"] * 60)
    played = (
        (("go up", "a wall above you"), ("go left", f"{long}\na red door {HOSTILE}")),
        (("go up", "nothing"),),
        (("go up", "a blue door"), ("open the door", "it is LOCKED")),
    )
    return [record(tmp_path, *steps).episode_id for steps in played][::-1]


def line_under_cursor(pilot: Pilot[None]) -> str:
    transcript = pilot.app.screen.query_one("#transcript", Transcript)
    if transcript.cursor >= len(transcript.source):
        return ""
    return "".join(cell.text for cell in transcript.source.line(transcript.cursor, 100)).strip()


def marked_texts(view: Transcript) -> list[str]:
    """Return the drawn texts of the line under the cursor whose background is not that of the line."""
    drawn = next(strip for strip in view.render_lines(view.size.region) if "a red door" in strip.text)
    parts = [(segment.text, segment.style and segment.style.bgcolor) for segment in drawn if segment.text.strip()]
    (line,) = {background for text, background in parts if text.endswith("a red ")}
    return [text for text, background in parts if background != line]


async def test_found_lines_are_listed_and_gone_through(tmp_path: Path, ids: list[str]) -> None:
    async with Console(FileSession([tmp_path])).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes")
        await filter_by(pilot, "text:door")
        await wait_for_widget_text(pilot, SUMMARY, "2 match text:door")
        await pilot.press("L")
        await wait_for_widget_text(pilot, SUMMARY, "3 lines", "2 episodes read", "3 passages")
        await wait_for_widget_text(pilot, HITS, "a blue door", "open the door", "a red door")
        assert not has_unsafe_chars(screen_text(pilot.app))
        await pilot.press("enter")
        await wait_until(pilot, lambda: line_under_cursor(pilot) == "a blue door", "the first line")
        await pilot.press("n")
        await wait_until(pilot, lambda: line_under_cursor(pilot) == "open the door", "the action of the next step")
        await pilot.press("n")
        await wait_until(pilot, lambda: line_under_cursor(pilot).startswith("a red door"), "the other episode")
        assert widget_text(pilot, "#transcript").count("a red door") == 1
        await pilot.press("n")
        await wait_until(pilot, lambda: "this is the last line" in screen_text(pilot.app), "a toast")
        await pilot.press("N")
        await wait_until(pilot, lambda: line_under_cursor(pilot) == "open the door", "the line before")
        await pilot.press("escape", "escape")
        await wait_for_widget_text(pilot, SUMMARY, "2 match text:door")
        await pilot.resize_terminal(120, 40)
        await pilot.press("G", "enter")
        await wait_until(pilot, lambda: line_under_cursor(pilot).startswith("a red door"), "its line")
        found = pilot.app.screen.query_one("#transcript", Transcript)
        assert marked_texts(found) == ["door"]
        await pilot.press("escape", "escape")
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes")
        await pilot.press("L")
        await wait_until(pilot, lambda: "add words of a text to the filter" in screen_text(pilot.app), "a toast")


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
