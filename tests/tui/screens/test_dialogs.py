"""The dialogs: help, command palette, hex dump, quit and battery picker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.widgets import Button, Input

from agentgym_tui.app import Console
from agentgym_tui.commands import (
    APP_SCOPES,
    COMMANDS,
    QUESTIONS,
    SCREENS,
    AvailableCommand,
    Command,
    available_commands,
    commands_of,
    known_commands,
    scope_of,
)
from agentgym_tui.config import UiState, parse_settings
from agentgym_tui.presenters.cells import LIST_MARGIN, Cell
from agentgym_tui.screens.dialogs.forms import BatteryPicker
from agentgym_tui.screens.dialogs.help import CommandPalette, HelpDialog, search
from agentgym_tui.screens.dialogs.texts import ConfirmDialog, HexDumpDialog
from agentgym_tui.screens.live import LiveScreen
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.widgets.lists import LineList, WrappedText
from runner.client.node_client import ControlRequestError
from tests.support.console.fake_session import (
    FakeSession,
    bus_session,
    busy_session,
    empty_session,
    error_session,
    files_session,
)
from tests.support.console.key_presses import curated_files
from tests.support.console.pilot import (
    console_app,
    screen_text,
    toast_text,
    wait_for_no_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import NODE, batch_state, busy_store, live, node_list, progress

SIZE = (80, 24)


async def test_help_opens_on_a_screen_a_form_and_a_filter_and_leaves_what_was_typed() -> None:
    async with Console(busy_session()).run_test(size=(120, 50)) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("question_mark")
        await wait_for_text(
            pilot, "╭─ Help", "This screen", "run the selected environment once", "In lists", "esc closes"
        )
        await pilot.press("G")
        await wait_for_text(pilot, "Signs", "wheel")
        await pilot.press("escape")
        await wait_for_no_text(pilot, "╭─ Help")
        await pilot.press("R")
        await wait_for_text(pilot, "╭─ Run")
        repeat = pilot.app.screen.query_one("#repeat", Input)
        for focus, key in (("envs", "question_mark"), ("repeat", "f1"), ("repeat", "question_mark"), ("agent", "f1")):
            repeat.value = "12"
            pilot.app.screen.query_one(f"#{focus}").focus()
            await pilot.press(key)
            await wait_for_text(pilot, "╭─ Help", "This form", "start the run")
            assert "run all environments of a tier" not in screen_text(pilot.app)
            await pilot.press(key)
            await wait_for_no_text(pilot, "╭─ Help")
            assert repeat.value == "12", (focus, key)
        await pilot.press("escape", "2")
        await wait_for_text(pilot, "episodes")
        await pilot.press("slash", "question_mark", "a")
        assert pilot.app.screen.query_one("#filter", Input).value == "?a"
        await pilot.press("f1")
        await wait_for_text(pilot, "╭─ Help", "Clear filter")


async def test_the_key_bar_of_every_screen_says_whether_its_keys_fit() -> None:
    session, fits = busy_session(), set()
    async with Console(session).run_test(size=(60, 24)) as pilot:
        for width in (60, 80, 120, 200):
            await pilot.resize_terminal(width, 24)
            for key, scopes in (("1", ("run", "live")), ("2", ("episodes",)), ("3", ("events",)), ("6", ("runs",))):
                await pilot.press(key)
                await wait_until(pilot, lambda key=key: pilot.app.screen.query_one("KeyBar").size.width == width)  # type: ignore[misc]  # noqa: B023
                names = ("^p Commands",) if width > 60 else ()
                await wait_for_widget_text(pilot, "KeyBar", "? ", "q Quit", *names)
                shown = widget_text(pilot, "KeyBar")
                commands = [command for scope in scopes for command in commands_of(scope)]
                commands = [each for each in commands if each.keys and each.available.is_met(session)]
                does_not_fit = any(f" {command.title} " not in shown for command in commands)
                assert ("? More" in shown, "? Help" in shown) == (does_not_fit, not does_not_fit)
                fits.add((pilot.app.screen, does_not_fit))
    assert len({screen for screen, _ in fits}) == 4 and {does_not_fit for _, does_not_fit in fits} == {True, False}


async def test_the_palette_filters_and_runs_commands_by_keyboard_and_mouse() -> None:
    app = Console(session := busy_session())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        available = {each.command.id for each in available_commands(app, session)}
        for scope in ("live", "everywhere", "list"):
            missing = {command.id for command in COMMANDS if command.scope == scope} - available
            assert missing == ({"app.logs", "node.history"} if scope == "everywhere" else set()), scope
        await pilot.press("ctrl+p")
        await wait_for_text(pilot, "╭─ Commands", "run the selected environment once")
        await pilot.press(*"batt")
        await wait_for_no_text(pilot, "repeat the last run")
        await pilot.press("enter")
        await wait_for_text(pilot, "╭─ Battery")
        await pilot.press("escape", "colon", "down", "up", "down", "enter")
        await wait_for_text(pilot, "╭─ Run")
        await pilot.press("escape", "colon", "escape")
        await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "live")
        await pilot.press("colon", *"xyzxyz", "enter")
        assert isinstance(app.screen, CommandPalette)
        await pilot.press("escape", "colon", *"help")
        await wait_until(pilot, lambda: "Quit" not in screen_text(app).split("Commands")[1].split("╰")[0], "one match")
        await pilot.click("#commands", offset=(10, 0), times=2)
        await wait_until(pilot, lambda: isinstance(app.screen, HelpDialog), "help")
        await pilot.press("escape", "ctrl+z")
        await wait_until(pilot, lambda: "only a console in a terminal" in toast_text(pilot), "the reason")


async def test_the_palette_has_every_command_and_says_why_one_cannot_run_now() -> None:
    session = files_session(3)
    app = console_app(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "3 episodes")
        known = known_commands(app, session)
        screens = {*APP_SCOPES, *(screen.id for screen in SCREENS)}
        outside = {each.id for each in COMMANDS if scope_of(each.scope).where or each.scope in screens}
        assert {each.command.id for each in known} == outside
        await pilot.press("ctrl+p", *"failures")
        await wait_for_text(
            pilot, "▸F       Failures       how they failed", "F       Failures       on Results: press 7"
        )
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: "Failures: on Results: press 7" in toast_text(pilot), "the reason")
        await pilot.press("escape", "ctrl+p", *"stop node", "enter")
        await wait_until(pilot, lambda: "Stop node: these are files" in toast_text(pilot), "the requirement")
        await pilot.press(*"xyz")
        await wait_for_text(pilot, "No command has these words")
        await pilot.press("enter")
        assert isinstance(app.screen, CommandPalette)


@pytest.mark.parametrize(("settings", "next_theme"), [("", "nord"), ("theme: dracula", "dracula")])
async def test_a_theme_is_chosen_in_the_palette_and_kept_unless_the_settings_have_one(
    settings: str, next_theme: str
) -> None:
    ui_state, read = UiState(theme="gruvbox"), parse_settings(settings.encode())
    app = console_app(files_session(3), read, ui_state)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        assert app.theme == (read.theme if settings else "gruvbox")
        await pilot.press("ctrl+p", *"theme nord", "enter")
        await wait_until(pilot, lambda: app.theme == "nord", "the theme")
        assert ("another theme for the next start" in toast_text(pilot)) == bool(settings)
        await pilot.press("ctrl+p", *"settings", "enter")
        await wait_for_text(pilot, "╭─ Settings", "console.yaml", "nord", "agentgym-tui config --write")
    assert console_app(files_session(3), read, ui_state).theme == next_theme


def test_search_matches_all_words_and_ranks_names_first() -> None:
    app = Console(empty_session())
    available = [AvailableCommand(command, app) for command in COMMANDS]

    def matches(text: str) -> list[Command]:
        return [each.command for each in search(available, text)]

    assert matches("") == list(COMMANDS)
    assert matches("run selected")[0].id == "run.selected"
    assert matches("PAUSE")[0].id == "run.pause"
    assert matches("no such thing") == []


async def test_no_line_of_help_is_truncated_and_the_hex_dump_shows_bytes() -> None:
    app = Console(busy_session())
    async with app.run_test(size=(60, 20)) as pilot:
        await wait_for_text(pilot, "task 3")
        for size in ((60, 20), (80, 24), (120, 40), (200, 50)):
            await pilot.resize_terminal(*size)
            await pilot.press("question_mark")
            await wait_for_text(pilot, "╭─ Help")
            lines = app.screen.query_one("#help", WrappedText)
            texts = ["".join(cell.text for cell in lines.source.line(row, 0)) for row in range(len(lines.source))]
            assert max(map(len, texts)) <= lines.size.width - LIST_MARGIN
            assert "control characters were made visible" in " ".join(" ".join(texts).split())
            await pilot.press("escape")
        await pilot.resize_terminal(*SIZE)
        app.push_screen(HexDumpDialog("\x1b[2J" + "a" * 5000))
        await wait_for_text(pilot, "5,004 bytes", "first 4,096", "0000  1b 5b 32 4a 61", "aaaaaaaaaaaa  │")
        await pilot.press("G")
        await wait_for_text(pilot, "0ff0")
        await pilot.press("q")
        await wait_for_no_text(pilot, "5,004 bytes")


# Questions.


async def test_each_question_begins_on_its_harmless_answer_and_answers_with_the_focused_button() -> None:
    answers: list[str | None] = []
    app = Console(busy_session())
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")

        async def answer(*keys: str) -> str | None:
            app.push_screen(ConfirmDialog(scope, "Sure?", lambda: [[Cell("It may be lost.")]]), answers.append)
            await wait_for_text(pilot, "Sure?", "↑ ↓ tab choose · enter answers")
            await pilot.press(*keys)
            await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "the answer")
            return answers[-1]

        for scope in QUESTIONS:
            commands = commands_of(scope)
            harmless, *others = (each.action.split("'")[1] for each in commands)
            assert commands[0].keys == "escape,n" and {each.keys for each in commands[1:]} <= {"", "y"}
            assert await answer("enter") == harmless
            for n, other in enumerate(others, 1):
                assert await answer(*["down"] * n, "enter") == other
            if scope == "quit":
                assert [await answer(key) for key in ("escape", "n")] == [harmless] * 2
                assert await answer(*"abcdefghijklmopqrstuvwxzABDNQX", "left", "tab", "enter") == harmless
                for n, other in enumerate(others, 1):
                    assert [await answer(*[key] * n, "enter") for key in ("right", "tab")] == [other] * 2
                    assert commands[n].keys != "y" or await answer("y") == other


@pytest.mark.parametrize("make", [busy_session, curated_files])
async def test_enter_in_each_field_of_a_form_leads_to_its_first_button(make: Callable[[], FakeSession]) -> None:
    session = make()
    session.read_only = ""
    forms = {"R": "╭─ Run", "ctrl+o": "╭─ A model", "2 T": "╭─ Tags"} if make is busy_session else {"2 e": "╭─ Export"}
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        for keys, title in forms.items():
            await wait_until(pilot, lambda: app.accepts_keys)
            await pilot.press(*keys.split())
            await wait_for_text(pilot, title, "↑ ↓ tab move · ", "enter ", "esc ")
            form, buttons = app.screen, [*app.screen.query(Button)]
            for field in [each for each in form.focus_chain if not isinstance(each, Button)]:
                field.focus()
                await pilot.press("ctrl+s", "enter")
                await wait_until(pilot, lambda: app.focused is buttons[0], str(field))  # noqa: B023
            for widget in (*buttons[1:], form.focus_chain[0]):
                await pilot.press("right")
                await wait_until(pilot, lambda: app.focused is widget, str(widget))  # noqa: B023
            assert app.screen is form and not (session.fake_control.started or session.profiles)
            await pilot.press("escape")
            await wait_for_no_text(pilot, title)


# The quit dialog.


async def test_q_exits_at_once_when_no_episode_runs_or_the_node_is_lost() -> None:
    for session in (empty_session(), bus_session(), files_session(), error_session()):
        app = Console(session)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            await pilot.press("q")
            await wait_until(pilot, lambda app=app: not app.is_running, "the exit")  # type: ignore[misc]
        assert app.return_code == 0
        assert session.closed.is_set()
        assert session.fake_control.commands == []


async def test_quitting_cancels_a_battery_and_a_rejection_keeps_the_console_open() -> None:
    store = busy_store()
    store.apply_list(node_list(*[batch_state(n, "queued" if n else "running", battery_id="battery") for n in range(6)]))
    session = FakeSession(store)
    app = Console(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("ctrl+c")
        await wait_for_text(pilot, "Leave the console?", "1 episode running", "and 2 more")
        await pilot.click("#stay")
        await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "the live screen")
        assert session.fake_control.commands == []
        session.fake_control.refusal = ControlRequestError("cancel: no response", "press N")
        await pilot.press("q")
        await wait_for_text(pilot, "Leave the console?")
        await pilot.press("shift+tab", "enter")
        await wait_for_text(pilot, "cancel: no response", "press N")
        session.fake_control.refusal = None
        await pilot.press("q", "shift+tab", "enter")
        await wait_until(pilot, lambda: not app.is_running, "the end")
    assert session.fake_control.commands == [("cancel", None, None)]


@pytest.mark.parametrize("leave", [["y"], ["down", "enter"]])
async def test_staying_and_leaving_the_console_cancels_nothing(leave: list[str]) -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        for stay in ("escape", "n", "enter"):
            await pilot.press("q")
            await wait_for_text(pilot, "Leave the console?")
            await pilot.press(stay)
            await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "the live screen")
        await pilot.press("q")
        await wait_for_text(pilot, "Leave the console?")
        await pilot.press(*leave)
        await wait_until(pilot, lambda: not app.is_running, "the end")
    assert session.fake_control.commands == []


async def test_a_late_answer_is_ignored_and_quitting_after_the_node_is_lost_needs_no_decision() -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("b")
        await wait_until(pilot, lambda: isinstance(app.screen, BatteryPicker), "battery")
        battery = app.screen
        assert isinstance(battery, BatteryPicker)
        for answer in (battery.leave, battery.leave, battery.query_one("#tiers", LineList).action_choose):
            answer()  # the second and third come to a closed dialog
        await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "live")
        assert session.fake_control.started == []
        await pilot.press("q")
        await wait_for_text(pilot, "1 episode running, 7 remaining", "3/10 Wordle running")
        session.store.apply_events([live(progress(n_done=4, seq=1))])
        await wait_for_text(pilot, "6 remaining")
        session.store.set_link(BusLink("disconnected"))
        session.store.mark_node_lost(NODE)
        await wait_for_text(pilot, "Nothing is running")
        await pilot.press("shift+tab", "enter")
        await wait_until(pilot, lambda: not app.is_running, "the end")
    assert session.fake_control.commands == []
