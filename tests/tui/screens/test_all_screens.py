"""All screens: restored UI state, screenshots and the largest terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.widgets import Input

from agentgym_tui.config import UiState
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.screens.live import LiveScreen, live_shares
from agentgym_tui.state.query import Sorting
from tests.support.console.fake_session import (
    FakeSession,
    busy_session,
    files_session,
    session_with_messages,
    sortable_session,
    watching,
)
from tests.support.console.pilot import SIZE, by_name, console_app, row_keys, screen_text, wait_for_text, wait_until
from tests.support.console.samples import episode_id, hostile_store
from tests.support.network_references import svg_references

LARGEST = (300, 100)


async def test_a_screenshot_has_the_text_of_the_screen_and_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with console_app(FakeSession(hostile_store())).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "␛")
        await pilot.press(*by_name("app.screenshot"))
        await wait_for_text(pilot, "screenshot written to", ".svg")
        [screenshot] = files_in(tmp_path)
        assert (
            re.fullmatch(r"agentgym-\d{8}-\d{6}\.svg", screenshot.name) and screenshot.stat().st_mode & 0o777 == 0o600
        )
        text = screenshot.read_text()
        assert "␛" in text and "Environments" in text
        assert not has_unsafe_chars(text.replace("\xa0", " ")) and "<script" not in text
        assert svg_references(text) == []
        monkeypatch.chdir("/proc")
        await pilot.press(*by_name("app.screenshot"))
        await wait_for_text(pilot, "screenshot failed: /proc is not writable")


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_screen_filter_sorting_and_sizes_are_restored() -> None:
    ui_state = UiState("episodes", {"episodes": "maze"}, {"episodes": Sorting("reward")}, {"live.wide.left": 30})
    app = console_app(watching(sortable_session()), ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "2 match maze", "by reward ▲")
        assert app.screen.query_one(Input).display
        assert row_keys(app, "#episodes") == list(map(episode_id, [1, 4]))
        await pilot.press("escape", "1")
        await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "live")
    assert ui_state == UiState("live", {}, {"episodes": Sorting("reward")}, {"live.wide.left": 30})


@pytest.mark.parametrize(
    "ui_state",
    [
        UiState(
            "nowhere",
            {"x": "y"},
            {"episodes": Sorting("nothing"), "environments": Sorting("\x1b[2J")},
            {"z": 5, **{share.key: 99 for share in live_shares()}},
        ),
        UiState("events", {"events": "\x1b[2J"}, {"subjects": Sorting("\x1b")}, {"events.wide.tree": 99}),
    ],
)
async def test_invalid_ui_state_is_ignored(ui_state: UiState) -> None:
    app = console_app(busy_session(), ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("1")
        await wait_for_text(pilot, "task 3", "guess", "▌")
        assert all(pane.region.height > 1 for pane in app.screen.query("LivePane") if pane.display)
        await pilot.press("o", "2", "o")
        await wait_for_text(pilot, "episodes")
        assert not has_unsafe_chars(screen_text(app))


async def test_filter_and_subjects_of_the_events_are_restored() -> None:
    ui_state = UiState("events", {"events": "eu 3", "events.subjects": "orders.> bills"})
    session = watching(session_with_messages(*["orders.eu"] * 5, "bills"))
    app = console_app(session, ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "kept filter eu 3", "orders.> bills", '{"n": 3}')
        assert '{"n": 4}' not in screen_text(app)
        assert session.fake_events.opened[-1][0] == ("orders.>", "bills")
        assert app.screen.query_one("#filter", Input).value == "eu 3"
        await pilot.press("escape")
        await wait_for_text(pilot, '{"n": 4}')
        assert ui_state.filters == {"events.subjects": "orders.> bills"}
        await pilot.press("escape")
        await wait_until(
            pilot, lambda: session.fake_events.opened[-1][0] == (">",) and not ui_state.filters, "all subjects"
        )
        await pilot.press("u", *"zoo", "enter", "slash", *"x", "enter")
        await wait_until(
            pilot, lambda: ui_state.filters == {"events.subjects": "zoo", "events": "x"}, "the stored filters"
        )
    assert ui_state.screen == "events"


async def test_a_session_starts_on_the_stored_screen_only_if_it_watches_and_has_it() -> None:
    without_bus = watching(busy_session())
    without_bus.events = None
    for session, stored, text, shown in (
        (busy_session(), "episodes", "task 3", LiveScreen),
        (without_bus, "events", "task 3", LiveScreen),
        (files_session(), "live", "3 episodes", EpisodesScreen),
    ):
        ui_state = UiState(stored)
        async with console_app(session, ui_state=ui_state).run_test(size=SIZE) as pilot:
            await wait_for_text(pilot, text)
            assert isinstance(pilot.app.screen, shown)
        assert ui_state.screen == "live"


@pytest.mark.parametrize("text", ["no..pattern", "a " * 40, ". \t"])
async def test_an_invalid_stored_subject_pattern_shows_all_subjects(text: str) -> None:
    session = watching(session_with_messages("orders.eu"))
    async with console_app(session, ui_state=UiState("events", {"events.subjects": text})).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "orders.eu", "● live")
        assert session.fake_events.opened == [((">",), session.fake_events.opened[0][1])]
        assert not has_unsafe_chars(screen_text(pilot.app))


async def test_live_and_events_fill_the_largest_terminal() -> None:
    app = console_app(session_with_messages(*["orders.eu"] * 5))
    async with app.run_test(size=LARGEST) as pilot:
        await wait_for_text(pilot, "task 3", "guess", "following", "3/10")
        await wait_until(pilot, lambda: app.screen.query_one("#right").region.right == LARGEST[0], "the full width")
        assert "? Help" in screen_text(app).split("\n")[-1]
        await pilot.press("3")
        await wait_for_text(pilot, "● live", '{"n": 4}', "● Formatted")
        await wait_until(pilot, lambda: app.screen.query_one("#right").region.right == LARGEST[0], "the full width")
        assert "? Help" in screen_text(app).split("\n")[-1]
