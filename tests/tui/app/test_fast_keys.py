"""Keys that come faster than screens do: the next one is there before the last one was answered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app.console import Console
from agentgym_tui.config.settings import Settings, parse_settings
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.screens.dialogs.run_form import RunForm
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.sessions.start_form import FORM_FIELDS
from agentgym_tui.widgets.form_controls import CheckList
from agentgym_tui.widgets.table import SortableTable
from tests.support.console.fake_session import FakeSession, busy_session
from tests.support.console.log_consoles import logs_app
from tests.support.console.pilot import wait_for_text, wait_until
from tests.support.console.samples import episode_id

KEYS = ["enter", "escape", "1", "2", "tab", "y", "Y", "z", "X", "R", "b", "j", "slash", "w", "J", "t", "n", "p"]
KEYS += ["3", "o", "s", "c", "question_mark", "ctrl+p", "colon", "e", "x", "space", "v", "down", "end", "a"]


def type_at_once(pilot: Pilot[None], keys: list[str]) -> None:
    for key in keys:
        pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def run_form(pilot: Pilot[None]) -> RunForm:
    await wait_for_text(pilot, "Transcript")
    await pilot.press("R")
    await wait_for_text(pilot, "╭─ Run")
    assert isinstance(pilot.app.screen, RunForm)
    return pilot.app.screen


@pytest.mark.parametrize("seed", range(3))
async def test_no_order_of_keys_ends_the_console(seed: int) -> None:
    dice = random.Random(seed)
    async with Console(busy_session()).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "Transcript")
        for _ in range(60):
            type_at_once(pilot, dice.choices(KEYS, k=dice.choice([2, 3, 8])))
            await pilot.pause()
        for _ in range(6):
            await pilot.press("escape")
        await pilot.press("1")
        await wait_for_text(pilot, "Live ·")


@pytest.mark.parametrize("gone_after", [0, 1, 2])
async def test_a_screen_may_be_left_before_it_is_there(gone_after: int) -> None:
    session = busy_session()
    async with Console(session).run_test(size=(80, 24)) as pilot:
        await wait_for_text(pilot, "Transcript")
        for _ in range(3):
            pilot.app.push_screen(EpisodeScreen(session, episode_id(3)))
            for _ in range(gone_after):
                await pilot.pause(0)
            pilot.app.pop_screen()
        await wait_for_text(pilot, "Environments")


async def test_the_console_may_be_left_at_once() -> None:
    async with Console(FakeSession()).run_test(size=(80, 24)) as pilot:
        pilot.app.exit(return_code=0)
    assert pilot.app.return_code == 0


async def test_what_is_typed_right_after_tab_goes_where_the_focus_goes() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        form = await run_form(pilot)
        type_at_once(pilot, ["tab", "tab", "tab", "2", "0", "0"])
        await wait_until(pilot, lambda: form.query_one("#repeat", Input).value == "200", "what was typed")


@pytest.mark.parametrize(
    ("there", "key", "field"),
    [("2", "slash", "filter"), ("3", "slash", "filter"), ("3", "s", "entry"), ("3", "J", "entry")],
)
async def test_words_may_come_with_the_key_that_asks_for_them(there: str, key: str, field: str) -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press(there)
        await wait_until(pilot, lambda: bool(pilot.app.screen.query(f"#{field}")), "a field")
        await pilot.pause()
        type_at_once(pilot, [key, *"nexJ"])
        await wait_until(pilot, lambda: pilot.app.screen.query_one(f"#{field}", Input).value == "nexJ", "the words")


@pytest.mark.parametrize(("key", "field"), [("slash", "filter"), ("J", "entry")])
async def test_words_may_come_with_the_key_that_asks_for_them_in_a_log(key: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\nnexJ\n")
    async with logs_app(tmp_path / "a.log").run_test(size=(80, 24)) as pilot:
        await wait_for_text(pilot, "nexJ")
        await wait_until(pilot, lambda: bool(pilot.app.screen.query(f"#{field}")), "a field")
        await pilot.pause()
        type_at_once(pilot, [key, *"nexJ"])
        await wait_until(pilot, lambda: pilot.app.screen.query_one(f"#{field}", Input).value == "nexJ", "the words")


async def test_a_key_typed_right_after_another_part_was_asked_for_is_for_that_part() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await wait_until(pilot, lambda: bool(pilot.app.screen.query("#subjects")), "a tree")
        await pilot.pause()
        tree = pilot.app.screen.query_one("#subjects", SortableTable)
        type_at_once(pilot, ["t", "o"])
        await wait_until(pilot, lambda: tree.has_focus, "the tree")
        await wait_until(pilot, lambda: tree.sorting is not None, "another order of it")


async def test_a_key_of_ones_own_asks_for_words_at_once() -> None:
    app = Console(busy_session(), parse_settings(b"keymap: {episodes.filter: f}"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await wait_for_text(pilot, "f Filter")
        type_at_once(pilot, [*"fnext", "slash"])
        await wait_until(pilot, lambda: app.screen.query_one("#filter", Input).value.startswith("next"), "the words")


@pytest.mark.parametrize("there", ["2", "3"])
async def test_no_words_leave_no_empty_line_above_a_list(there: str) -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press(there)
        await wait_until(pilot, lambda: bool(pilot.app.screen.query("#filter")), "a field")
        await pilot.pause()
        field = pilot.app.screen.query_one("#filter", Input)
        await pilot.press("slash")
        await wait_until(pilot, lambda: field.has_focus and field.display, "the field")
        await pilot.press("space", "enter")
        await wait_until(pilot, lambda: not field.display and not field.has_focus, "the field is gone")


EDITED = [
    ([*"12", "backspace", "5"], "15"),
    ([*"abc", "backspace", "backspace", "d"], "ad"),
    ([*"old", "ctrl+a", "ctrl+k", *"new"], "new"),
    ([*"old", "ctrl+u", *"new"], "new"),
    ([*"word", "home", "x", "end", "y", "left", "z"], "xwordzy"),
    ([*"bc", "left", "left", "a", "delete"], "ac"),
]


@pytest.mark.parametrize(("keys", "text"), EDITED)
@pytest.mark.parametrize(
    ("there", "key", "field"), [("2", "slash", "filter"), ("3", "J", "entry"), ("2", "colon", "words")]
)
async def test_keys_that_edit_act_in_their_order(there: str, key: str, field: str, keys: list[str], text: str) -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        await pilot.press(there)
        await wait_until(pilot, lambda: bool(pilot.app.screen.query("#filter")), "a screen")
        await pilot.pause()
        await pilot.press(key)
        await wait_until(pilot, lambda: pilot.app.focused is not None and pilot.app.focused.id == field, "the field")
        type_at_once(pilot, keys)
        await wait_until(pilot, lambda: pilot.app.screen.query_one(f"#{field}", Input).value == text, text)


async def test_keys_that_leave_a_field_of_the_form_come_in_their_order() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        form = await run_form(pilot)
        await pilot.press("tab", "tab", "tab")
        fields = [form.query_one(f"#{field.id}", Input) for field in FORM_FIELDS]
        await wait_until(pilot, lambda: fields[0].has_focus, "the first field")
        type_at_once(
            pilot,
            ["ctrl+a", "ctrl+k", *"23", "backspace", "4", "down", "ctrl+u", *"56", "tab", "up", "7", "8", "backspace"],
        )
        await wait_until(pilot, lambda: [field.value for field in fields[:2]] == ["24", "7"], "both")


async def test_keys_of_a_dialog_are_for_the_part_they_were_pressed_in() -> None:
    async with Console(busy_session()).run_test(size=(80, 24)) as pilot:
        form = await run_form(pilot)
        field = form.query_one(f"#{FORM_FIELDS[0].id}", Input)
        type_at_once(
            pilot, ["space", "j", "j", "space", *["tab"] * 3, *"12", "shift+tab", "shift+tab", "tab", "tab", "3"]
        )
        await wait_until(pilot, lambda: field.value == "3", "what was typed last")
        assert form.query_one(CheckList).chosen == {2}


async def test_what_is_typed_right_after_the_words_is_for_the_rows_that_were_found() -> None:
    app = Console(busy_session(), Settings(), UiState("events"))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: bool(app.screen.query("#filter")), "a screen")
        await pilot.pause()
        type_at_once(pilot, ["slash", *"live", "enter", "v", "slash", *"er", "enter", "t"])
        await wait_until(pilot, lambda: app.screen.query_one("#filter", Input).value == "er", "the words")
        await wait_for_text(pilot, "● Raw")
        await wait_until(pilot, lambda: app.focused is not None and app.focused.id == "subjects", "the tree")
