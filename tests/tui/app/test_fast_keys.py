"""Keys typed faster than screens react to them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.config import Settings, UiState, parse_settings
from agentgym_tui.screens.dialogs.forms import RunForm
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.list_screen import FilterInput
from agentgym_tui.sessions.run_commands import FORM_FIELDS
from agentgym_tui.widgets.inputs import CheckList
from agentgym_tui.widgets.lists import Table
from tests.support.console.fake_session import FakeSession, busy_session, watching
from tests.support.console.key_presses import running_battery, screen_name
from tests.support.console.log_consoles import logs_app
from tests.support.console.pilot import by_name, wait_for_text, wait_until
from tests.support.console.samples import episode_id

pytestmark = pytest.mark.long

KEYS = ["enter", "escape", "1", "2", "tab", "y", "Y", "z", "X", "R", "b", "j", "slash", "w", "J", "t", "n", "p"]
KEYS += ["3", "o", "s", "c", "question_mark", "ctrl+p", "colon", "e", "x", "space", "v", "down", "end", "a"]


def send_keys(pilot: Pilot[None], keys: list[str]) -> None:
    for key in keys:
        pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def open_run_form(pilot: Pilot[None]) -> RunForm:
    await wait_for_text(pilot, "Transcript")
    await pilot.press("R")
    await wait_for_text(pilot, "╭─ Run")
    assert isinstance(pilot.app.screen, RunForm)
    return pilot.app.screen


@pytest.mark.parametrize("seed", range(3))
async def test_random_keys_do_not_crash_the_console(seed: int) -> None:
    dice = random.Random(seed)
    async with Console(busy_session()).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        for _ in range(60):
            send_keys(pilot, dice.choices(KEYS, k=dice.choice([2, 3, 8])))
            await pilot.pause()
        for _ in range(6):
            await pilot.press("escape")
        await pilot.press("1")
        await wait_for_text(pilot, "Live ·")


@pytest.mark.parametrize("n_pauses", [0, 1, 2])
async def test_a_screen_can_be_popped_before_it_is_mounted(n_pauses: int) -> None:
    session = busy_session()
    async with Console(session).run_test(size=(80, 24)) as pilot:
        await wait_for_text(pilot, "Transcript")
        for _ in range(3):
            pilot.app.push_screen(EpisodeScreen(session, episode_id(3)))
            for _ in range(n_pauses):
                await pilot.pause(0)
            pilot.app.pop_screen()
        await wait_for_text(pilot, "Environments")


@pytest.mark.parametrize("key", ["2", "3", "5", "6", "7", "q", "R", "ctrl+o", "question_mark"])
async def test_the_console_can_exit_while_a_screen_or_dialog_opens(key: str) -> None:
    for n_turns in range(6):  # from the key to the mounted widgets
        async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            opened = pilot.app.screen.active_bindings[key]
            pilot.app.call_later(pilot.app.run_action, opened.binding.action, opened.node)
            for _ in range(n_turns):
                await asyncio.sleep(0)
            pilot.app.exit()


async def test_the_console_can_exit_before_it_is_mounted() -> None:
    async with Console(FakeSession()).run_test(size=(80, 24)) as pilot:
        pilot.app.exit(return_code=0)
    assert pilot.app.return_code == 0


@pytest.mark.parametrize("forwarded", [False, True])
async def test_a_key_that_arrives_after_the_last_screen_closed_is_dropped(forwarded: bool) -> None:
    app = Console(busy_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await open_run_form(pilot)
    key = events.Key("8", "8")
    if forwarded:
        key._set_forwarded()
    assert not app.screen_stack
    await app.on_event(key)
    assert app._exception is None


@pytest.mark.parametrize(
    ("keys", "commands", "screen"),
    [
        (["q", "up", "enter"], ["cancel"], "LiveScreen"),
        (["x", "up", "enter"], ["cancel"], "LiveScreen"),
        (["colon", *"quit", "enter", "up", "enter"], ["cancel"], "LiveScreen"),
        (["colon", *"cancel", "enter", "up", "enter"], ["cancel"], "LiveScreen"),
        (["colon", *"cancel", "enter", "escape", "q"], [], "quit"),
        (["6", *by_name("runs.cancel_all"), "y"], ["cancel"], "RunsScreen"),
        (["6", *by_name("runs.cancel_all"), "n", "1", "R", "escape", "2"], [], "EpisodesScreen"),
        (["R", "question_mark", "escape", "escape", "3"], [], "EventsScreen"),
    ],
)
async def test_a_key_typed_ahead_acts_on_the_dialog_that_the_key_before_it_opens(
    keys: list[str], commands: list[str], screen: str
) -> None:
    session = running_battery()
    app = Console(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "task 4")
        send_keys(pilot, keys)
        await wait_until(
            pilot,
            lambda: (
                screen_name(app) == screen and [command for command, _, _ in session.fake_control.commands] == commands
            ),
            screen,
        )


@pytest.mark.parametrize("keys", [["b", "enter"], ["colon", *"how", "enter"], ["R"]])
async def test_keys_typed_ahead_fill_in_the_form_that_opens_in_several_steps(keys: list[str]) -> None:
    app = Console(busy_session())
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        send_keys(pilot, [*keys, "tab", "tab", "tab", "7"])
        await wait_until(
            pilot, lambda: any(each.value == "7" for each in app.screen.query("#repeat").results(Input)), "the text"
        )


async def test_keys_keep_their_order_when_one_of_them_takes_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = FilterInput.action_leave

    async def leave_slowly(field: FilterInput) -> None:
        await asyncio.sleep(1.5)  # as on a busy machine
        leave(field)

    monkeypatch.setattr(FilterInput, "action_leave", leave_slowly)
    app = Console(busy_session())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await wait_until(pilot, lambda: bool(app.screen.query("#filter")), "a field")
        send_keys(pilot, ["slash", "t", "enter", "enter", "d"])
        await wait_until(pilot, lambda: app.focused is not None and app.focused.id == "json", "the file")


@pytest.mark.parametrize(
    ("screen_key", "key", "field"),
    [("2", "slash", "filter"), ("3", "slash", "filter"), ("3", "u", "entry"), ("3", "J", "entry")],
)
async def test_text_typed_right_after_the_key_of_a_field_is_entered(screen_key: str, key: str, field: str) -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press(screen_key)
        await wait_until(pilot, lambda: bool(pilot.app.screen.query(f"#{field}")), "a field")
        await pilot.pause()
        send_keys(pilot, [key, *"nexJ"])
        await wait_until(pilot, lambda: pilot.app.screen.query_one(f"#{field}", Input).value == "nexJ", "the text")


@pytest.mark.parametrize(("key", "field"), [("slash", "filter"), ("J", "entry")])
async def test_text_typed_right_after_the_key_of_a_log_field_is_entered(key: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\nnexJ\n")
    async with logs_app(tmp_path / "a.log").run_test(size=(80, 24)) as pilot:
        await wait_for_text(pilot, "nexJ")
        await wait_until(pilot, lambda: bool(pilot.app.screen.query(f"#{field}")), "a field")
        await pilot.pause()
        send_keys(pilot, [key, *"nexJ"])
        await wait_until(pilot, lambda: pilot.app.screen.query_one(f"#{field}", Input).value == "nexJ", "the text")


async def test_a_key_typed_right_after_a_focus_key_goes_to_the_newly_focused_pane() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await wait_until(pilot, lambda: bool(pilot.app.screen.query("#subjects")), "a tree")
        await pilot.pause()
        tree = pilot.app.screen.query_one("#subjects", Table)
        send_keys(pilot, ["t", "o"])
        await wait_until(pilot, lambda: tree.has_focus, "the tree")
        await wait_until(pilot, lambda: tree.sorting is not None, "the sorted tree")


async def test_text_typed_right_after_a_remapped_filter_key_is_entered() -> None:
    app = Console(busy_session(), parse_settings(b"keymap: {episodes.filter: i}"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await wait_for_text(pilot, "i Filter")
        send_keys(pilot, [*"inext", "slash"])
        await wait_until(pilot, lambda: app.screen.query_one("#filter", Input).value.startswith("next"), "the text")


EDITS = [
    ([*"12", "backspace", "5"], "15"),
    ([*"abc", "backspace", "backspace", "d"], "ad"),
    ([*"old", "ctrl+a", "ctrl+k", *"new"], "new"),
    ([*"old", "ctrl+u", *"new"], "new"),
    ([*"word", "home", "x", "end", "y", "left", "z"], "xwordzy"),
    ([*"bc", "left", "left", "a", "delete"], "ac"),
]


@pytest.mark.parametrize(
    ("screen_key", "key", "field"), [("2", "slash", "filter"), ("3", "J", "entry"), ("2", "colon", "words")]
)
async def test_editing_keys_act_in_order(screen_key: str, key: str, field: str) -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press(screen_key)
        await wait_until(pilot, lambda: bool(pilot.app.screen.query("#filter")), "a screen")
        await pilot.pause()
        await pilot.press(key)
        await wait_until(pilot, lambda: pilot.app.focused is not None and pilot.app.focused.id == field, "the field")
        for keys, text in EDITS:
            pilot.app.screen.query_one(f"#{field}", Input).value = ""
            send_keys(pilot, keys)
            await wait_until(pilot, lambda: pilot.app.screen.query_one(f"#{field}", Input).value == text, text)  # noqa: B023


async def test_editing_and_focus_keys_in_the_run_form_act_in_order() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        form = await open_run_form(pilot)
        await pilot.press("tab", "tab", "tab")
        fields = [form.query_one(f"#{field.id}", Input) for field in FORM_FIELDS]
        await wait_until(pilot, lambda: fields[0].has_focus, "the first field")
        send_keys(
            pilot,
            [
                "ctrl+a",
                "ctrl+k",
                *"23",
                "backspace",
                "4",
                "down",
                "ctrl+u",
                *"56",
                "tab",
                "up",
                "7",
                "8",
                "backspace",
                "9",
            ],
        )
        await wait_until(pilot, lambda: [field.value for field in fields[:2]] == ["24", "79"], "both")


async def test_each_key_in_a_dialog_acts_on_the_control_focused_at_its_turn() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        form = await open_run_form(pilot)
        field = form.query_one(f"#{FORM_FIELDS[0].id}", Input)
        send_keys(pilot, ["space", "j", "j", "space", *["tab"] * 3, *"12", "shift+tab", "shift+tab", "tab", "tab", "3"])
        await wait_until(pilot, lambda: field.value == "3", "the last text")
        assert form.query_one(CheckList).chosen == {2}


async def test_keys_typed_right_after_a_filter_act_on_the_filtered_list() -> None:
    app = Console(watching(busy_session()), Settings(), UiState("events"))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: bool(app.screen.query("#filter")), "a screen")
        await pilot.pause()
        send_keys(pilot, ["slash", *"live", "enter", "v", "slash", *"er", "enter", "t"])
        await wait_until(pilot, lambda: app.screen.query_one("#filter", Input).value == "er", "the filter")
        await wait_for_text(pilot, "● Raw")
        await wait_until(pilot, lambda: app.focused is not None and app.focused.id == "subjects", "the tree")
