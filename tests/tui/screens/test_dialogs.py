"""The dialogs: help, command palette, hex dump, quit and battery picker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

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
from agentgym_tui.sessions.node import ControlRequestError
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.widgets.lists import LineList, WrappedText
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
    console_pilot,
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


async def test_help_lists_the_keys_of_the_screen_and_closes() -> None:
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


async def test_help_opens_from_the_run_form_and_leaves_its_entries() -> None:
    async with Console(busy_session()).run_test(size=(120, 50)) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("R")
        await wait_for_text(pilot, "╭─ Run")
        for n, (focus, key) in enumerate(product(("envs", "repeat", "agent"), ("question_mark", "f1"))):
            pilot.app.screen.query_one("#repeat", Input).value = str(12 + n)
            pilot.app.screen.query_one(f"#{focus}").focus()
            await pilot.press(key)
            await wait_for_text(pilot, "╭─ Help", "This form", "start the run")
            assert "run all environments of a tier" not in screen_text(pilot.app)
            await pilot.press(key)
            await wait_for_no_text(pilot, "╭─ Help")
            assert pilot.app.screen.query_one("#repeat", Input).value == str(12 + n), (focus, key)


async def test_a_question_mark_is_typed_into_a_filter_and_f1_opens_the_help() -> None:
    async with Console(busy_session()).run_test(size=(120, 50)) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("2")
        await wait_for_text(pilot, "episodes")
        await pilot.press("slash", "question_mark", "a")
        assert pilot.app.screen.query_one("#filter", Input).value == "?a"
        await pilot.press("f1")
        await wait_for_text(pilot, "╭─ Help", "Clear filter")


@pytest.mark.parametrize("width", [80, 120, 200])
async def test_the_key_bar_shows_help_palette_and_quit_on_every_screen(width: int) -> None:
    screens = set()
    async with Console(busy_session()).run_test(size=(width, 24)) as pilot:
        for key in ("1", "2", "3", "6"):
            await pilot.press(key)
            await wait_for_widget_text(pilot, "KeyBar", "? ", "^p Commands", "q Quit")
            screens.add(pilot.app.screen)
    assert len(screens) == 4


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize(
    ("key", "scopes"), [("1", ("run", "live")), ("2", ("episodes",)), ("3", ("events",)), ("6", ("runs",))]
)
async def test_the_key_bar_says_whether_keys_of_the_screen_do_not_fit(
    width: int, key: str, scopes: tuple[str, ...]
) -> None:
    session = busy_session()
    async with Console(session).run_test(size=(width, 24)) as pilot:
        await pilot.press(key)
        await wait_for_widget_text(pilot, "KeyBar", "? ", "q Quit")
        shown = widget_text(pilot, "KeyBar")
        commands = [command for scope in scopes for command in commands_of(scope)]
        commands = [each for each in commands if each.keys and each.available.is_met(session)]
        does_not_fit = any(f" {command.title} " not in shown for command in commands)
        assert ("? More" in shown, "? Help" in shown) == (does_not_fit, not does_not_fit)


async def test_all_commands_of_each_scope_of_the_live_screen_are_available() -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        available = {each.command.id for each in available_commands(app, session)}
        for scope in ("live", "everywhere", "list"):
            missing = {command.id for command in COMMANDS if command.scope == scope} - available
            assert missing == ({"app.logs", "node.history"} if scope == "everywhere" else set()), scope


async def test_the_palette_filters_and_runs_commands() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("ctrl+p")
        await wait_for_text(pilot, "╭─ Commands", "run the selected environment once")
        await pilot.press(*"batt")
        await wait_for_no_text(pilot, "repeat the last run")
        await pilot.press("enter")
        await wait_for_text(pilot, "╭─ Battery")
        await pilot.press("escape", "colon", "down", "up", "down", "enter")
        await wait_for_text(pilot, "╭─ Run")
        await pilot.press("escape", "colon", "escape")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen), "live")


async def test_a_double_click_in_the_palette_runs_a_command_and_enter_without_a_match_does_nothing() -> None:
    async with Console(empty_session()).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("colon", *"xyzxyz", "enter")
        assert isinstance(pilot.app.screen, CommandPalette)
        await pilot.press("escape", "colon", *"help")
        await wait_until(
            pilot, lambda: "Quit" not in screen_text(pilot.app).split("Commands")[1].split("╰")[0], "one match"
        )
        await pilot.click("#commands", offset=(10, 0), times=2)
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, HelpDialog), "help")


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


async def test_a_console_without_a_terminal_cannot_be_suspended() -> None:
    async with console_pilot(empty_session()) as pilot:
        await pilot.press("ctrl+z")
        await wait_until(pilot, lambda: "only a console in a terminal" in toast_text(pilot), "the reason")


def test_search_matches_all_words_and_ranks_names_first() -> None:
    app = Console(empty_session())
    available = [AvailableCommand(command, app) for command in COMMANDS]

    def matches(text: str) -> list[Command]:
        return [each.command for each in search(available, text)]

    assert matches("") == list(COMMANDS)
    assert matches("run selected")[0].id == "run.selected"
    assert matches("PAUSE")[0].id == "run.pause"
    assert matches("no such thing") == []


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 50)])
async def test_no_line_of_help_is_truncated(size: tuple[int, int]) -> None:
    app = Console(busy_session())
    async with app.run_test(size=size) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "╭─ Help")
        lines = app.screen.query_one("#help", WrappedText)
        texts = ["".join(cell.text for cell in lines.source.line(row, 0)) for row in range(len(lines.source))]
        assert max(map(len, texts)) <= lines.size.width - LIST_MARGIN
        assert "control characters were made visible" in " ".join(" ".join(texts).split())


async def test_the_hex_dump_shows_bytes_and_closes() -> None:
    app = Console(busy_session())
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        app.push_screen(HexDumpDialog("\x1b[2J" + "a" * 5000))
        await wait_for_text(pilot, "5,004 bytes", "first 4,096", "0000  1b 5b 32 4a 61", "aaaaaaaaaaaa  │")
        await pilot.press("G")
        await wait_for_text(pilot, "0ff0")
        await pilot.press("q")
        await wait_for_no_text(pilot, "5,004 bytes")


# Questions.


@pytest.mark.parametrize("scope", QUESTIONS)
async def test_each_question_begins_on_its_harmless_answer_and_answers_with_the_focused_button(scope: str) -> None:
    commands = commands_of(scope)
    harmless, *others = (each.action.split("'")[1] for each in commands)
    assert commands[0].keys == "escape,n" and {each.keys for each in commands[1:]} <= {"", "y"}
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

        assert [await answer(key) for key in ("enter", "escape", "n")] == [harmless] * 3
        assert await answer(*"abcdefghijklmopqrstuvwxzABDNQX", "left", "tab", "enter") == harmless
        for n, other in enumerate(others, 1):
            assert [await answer(*[key] * n, "enter") for key in ("down", "right", "tab")] == [other] * 3
            assert commands[n].keys != "y" or await answer("y") == other


@pytest.mark.parametrize(
    ("keys", "title"),
    [(("R",), "╭─ Run"), (("ctrl+o",), "╭─ A model"), (("2", "T"), "╭─ Tags"), (("2", "e"), "╭─ Export")],
)
async def test_enter_in_each_field_of_a_form_leads_to_its_first_button(keys: Sequence[str], title: str) -> None:
    session = curated_files() if "e" in keys else busy_session()
    session.read_only = ""
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: app.accepts_keys)
        await pilot.press(*keys)
        await wait_for_text(pilot, title, "↑ ↓ tab move · ", "enter ", "esc ")
        form, buttons = app.screen, [*app.screen.query(Button)]
        for field in [each for each in form.focus_chain if not isinstance(each, Button)]:
            field.focus()
            await pilot.press("ctrl+s", "enter")
            await wait_until(pilot, lambda: app.focused is buttons[0], str(field))
        for widget in (*buttons[1:], form.focus_chain[0]):
            await pilot.press("right")
            await wait_until(pilot, lambda: app.focused is widget, str(widget))  # noqa: B023
        assert app.screen is form and not (session.fake_control.started or session.profiles)


# The quit dialog.


async def test_q_exits_at_once_when_no_episode_runs() -> None:
    for session in (empty_session(), bus_session(), files_session()):
        app = Console(session)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            await pilot.press("q")
        assert app.return_code == 0
        assert session.closed.is_set()


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q", "q"])
@pytest.mark.parametrize(
    ("stays", "answer", "cancelled"),
    [((), ("up", "enter"), True), (("escape", "n", "enter"), ("y",), False), ((), ("down", "enter"), False)],
)
async def test_quitting_opens_a_dialog_while_episodes_run(
    key: str, stays: Sequence[str], answer: Sequence[str], cancelled: bool
) -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        for each in (*((stay,) for stay in stays), answer):
            await pilot.press(key)
            await wait_for_text(pilot, "Leave the console?", "1 episode running, 7 remaining", "3/10 Wordle running")
            await pilot.press(*each)
            if each != answer:
                await wait_until(pilot, lambda: isinstance(app.screen, LiveScreen), "the live screen")
                assert session.fake_control.commands == []
        await wait_until(pilot, lambda: not app.is_running, "the exit")
    assert session.fake_control.commands == ([("cancel", None, None)] if cancelled else [])


async def test_the_quit_dialog_has_buttons() -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("q")
        await wait_for_text(pilot, "Leave the console?")
        await pilot.click("#stay")
        await wait_for_no_text(pilot, "Leave the console?")
        await pilot.press("q")
        await wait_for_text(pilot, "Leave the console?")
        await pilot.press("shift+tab", "enter")
        await wait_until(pilot, lambda: not app.is_running, "the end")
    assert session.fake_control.commands == [("cancel", None, None)]


async def test_quitting_cancels_a_battery_and_a_rejection_keeps_the_console_open() -> None:
    store = busy_store()
    store.apply_list(node_list(*[batch_state(n, "queued" if n else "running", battery_id="battery") for n in range(6)]))
    session = FakeSession(store)
    app = Console(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        session.fake_control.refusal = ControlRequestError("cancel: no response", "press N")
        await pilot.press("q")
        await wait_for_text(pilot, "Leave the console?", "and 2 more")
        await pilot.press("shift+tab", "enter")
        await wait_for_text(pilot, "cancel: no response", "press N")
        session.fake_control.refusal = None
        await pilot.press("q", "shift+tab", "enter")
        await wait_until(pilot, lambda: not app.is_running, "the end")
    assert session.fake_control.commands == [("cancel", None, None)]


async def test_quitting_after_the_node_is_lost_needs_no_decision() -> None:
    for session in (error_session(), busy_session()):
        app = Console(session)
        async with app.run_test(size=SIZE) as pilot:
            await wait_for_text(pilot, "task 3")
            await pilot.press("q")
            if not session.store.all_nodes_lost:
                await wait_for_text(pilot, "1 episode running, 7 remaining")
                session.store.apply_events([live(progress(n_done=4, seq=1))])
                await wait_for_text(pilot, "6 remaining")
                session.store.set_link(BusLink("disconnected"))
                session.store.mark_node_lost(NODE)
                await wait_for_text(pilot, "Nothing is running")
                await pilot.press("shift+tab", "enter")
            await wait_until(pilot, lambda app=app: not app.is_running, "the end")  # type: ignore[misc]
        assert session.fake_control.commands == []


async def test_a_second_answer_to_a_closed_dialog_is_ignored() -> None:
    session = busy_session()
    async with Console(session).run_test(size=SIZE) as pilot:
        await pilot.press("b")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, BatteryPicker), "battery")
        battery = pilot.app.screen
        assert isinstance(battery, BatteryPicker)
        battery.leave()
        battery.leave()
        battery.query_one("#tiers", LineList).action_choose()
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen), "live")
        assert session.fake_control.started == []
