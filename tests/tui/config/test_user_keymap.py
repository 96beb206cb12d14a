"""Custom keys work on every screen and are shown wherever keys are shown."""

from __future__ import annotations

from textual.widgets import Input

from agentgym_tui.config import Settings, parse_settings
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.screens.live import LiveScreen
from tests.support.console.fake_session import busy_session, empty_session, session_with_messages
from tests.support.console.key_presses import focused_id
from tests.support.console.pilot import SIZE, console_app, wait_for_no_text, wait_for_text, wait_until

CUSTOM_KEYS = b"""keymap: {run.battery: f4, app.episodes: [I, f5], list.down: f6, episodes.filter: d, app.help: f7,
  list.left: left, quit.leave: f2}"""


async def test_custom_keys_work_and_are_shown_everywhere() -> None:
    settings = parse_settings(CUSTOM_KEYS)
    assert settings.problems == ()
    app = console_app(busy_session(), settings)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3", "f4 Battery", "f7 More")
        await pilot.press("b")
        assert isinstance(app.screen, LiveScreen)
        await pilot.press("f4")
        await wait_for_text(pilot, "╭─ Battery")
        await pilot.press("escape", "f7")
        await wait_for_text(pilot, "╭─ Help", "  f4 ")
        await pilot.press("escape", "colon", *"battery")
        await wait_for_text(pilot, "╭─ Commands", "f4      Battery")
        await pilot.press("escape", "q")
        await wait_for_text(pilot, "Quit (f2)")
        await pilot.press("escape", "f5")
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodesScreen), "episodes")
        await pilot.press("d", *"dIe1")
        assert app.screen.query_one(Input).value == "dIe1"


NAMED_KEYS = b"""keymap: {list.bottom: f10, list.choose: f3, dialog.close: f4, form.start: f5, checks.toggle: f6,
  form.close: f7, episode.trace: f11, episode.transcript: f8}"""


async def test_titles_and_dialogs_show_custom_keys() -> None:
    app = console_app(busy_session(), settings := parse_settings(NAMED_KEYS))
    assert settings.problems == ()
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("b")
        await wait_for_text(pilot, "f3 runs · f4 closes")
        await pilot.press("f4", "R")
        await wait_for_text(pilot, "↑ ↓ tab move · f6 checks · ^a all · f5 to Start · f7 closes")
        await pilot.press("f7", "tab", "k")
        await wait_for_text(pilot, "not following (f10)")
        await pilot.press("f3")
        await wait_for_text(pilot, "● Transcript f8", "○ Trace f11", "○ Data d")


EVENT_KEYS = b"""keymap: {events.pause: f6, events.go_to: i, events.subject: S, entry.take: f7, entry.leave: f8,
  events.filter: f9, filter.leave: f10, filter.clear: f11, events.tree: T, table.sort: f12,
  events.view: V, palette.close: f4}"""


async def test_custom_keys_work_on_the_events_screen_and_in_its_input_fields() -> None:
    settings = parse_settings(EVENT_KEYS)
    assert settings.problems == ()
    session = session_with_messages("orders.eu", "bills", "bills")
    app = console_app(session, settings)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("3")
        await wait_for_text(pilot, "orders", "f6 Pause", "f9 Filter", "S Subject", "i Jump", "● Formatted V", "○ Raw V")
        await pilot.press("f6")
        await wait_for_text(pilot, "‖ paused")
        await pilot.press("f6", "i")
        await wait_until(pilot, lambda: focused_id(app) == "entry", "an input field")
        await pilot.press("f8", "S")
        await wait_until(pilot, lambda: focused_id(app) == "entry", "an input field")
        session.fake_events.initial = []
        await pilot.press(*"iS", "f7")
        await wait_until(pilot, lambda: session.fake_events.opened[-1][0] == ("iS",), "another subject")
        await wait_for_text(pilot, "  i    goes back in the stream history", "  S    selects subjects")
        await pilot.press("f9", *"S", "f10")
        await wait_for_text(pilot, "matches S")
        await pilot.press("f9", "f11")
        await wait_for_no_text(pilot, "matches S")
        await pilot.press("T")
        await wait_until(pilot, lambda: focused_id(app) == "subjects", "the tree")
        await pilot.press("f12")
        await wait_for_text(pilot, "▼count")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "╭─ Help", "f6               Pause", "i                Jump")
        await pilot.press("escape", "colon", *"jump")
        await wait_for_text(pilot, "╭─ Commands", "i       Jump", "f4 closes")


async def test_ignored_settings_are_listed_at_the_start() -> None:
    settings = Settings(problems=tuple(f"problem {n}" for n in range(8)))
    async with console_app(empty_session(), settings).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "console.yaml, ignored settings", "problem 0", "! shows all")
        await pilot.press("exclamation_mark")
        await wait_for_text(pilot, "console.yaml, ignored settings", "problem 4", "and 3 more")
