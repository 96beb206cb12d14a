"""The filter of each list takes queries: rows, errors that keep the rows, completion, and the last queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.config import UiState
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.sessions.session import FileSession
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession
from tests.support.console.key_presses import hostile_event, running_battery, two_logs
from tests.support.console.pilot import (
    by_name,
    console_app,
    console_pilot,
    row_keys,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.result_sessions import results_session
from tests.support.console.samples import HOSTILE, row

LIST, SUMMARY, NOTE = "#episodes", "#summary", "#filter-note"


def episodes_session() -> FakeSession:
    session = FakeSession()
    session.fake_library.stored = [
        row(0, env="Maze", agent="react", reward=0.2),
        row(1, env="Maze", agent="oracle", outcome=Outcome.ERROR),
        row(2, env="Wordle", agent="react", model="a b", reward=3.0),
        row(3, env=HOSTILE, agent="react", reward=3.0),
    ]
    return session


def filter_of(pilot: Pilot[None]) -> Input:
    return pilot.app.screen.query_one("#filter", Input)


async def test_a_query_selects_rows_and_one_with_an_error_keeps_them() -> None:
    app = console_app(episodes_session())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "slash")
        await wait_for_widget_text(pilot, NOTE, "env:", "outcome:", "reward>")
        filter_of(pilot).insert_text_at_cursor("env:maze -agent:oracle")
        await wait_until(pilot, lambda: len(row_keys(app, LIST)) == 1, "the episode")
        filter_of(pilot).insert_text_at_cursor(" roundz>3")
        await wait_for_widget_text(pilot, NOTE, "✗ at character 24: there is no field roundz (did you mean rounds)")
        assert len(row_keys(app, LIST)) == 1
        await pilot.press("enter")
        await wait_for_widget_text(pilot, NOTE, "✗ at character 24")
        assert app.ui_state.filters["episodes"] == "env:maze -agent:oracle"
        assert not app.ui_state.queries
        await wait_until(pilot, lambda: filter_of(pilot).has_focus, "the query is corrected before keys are commands")
        await pilot.press("x")
        assert filter_of(pilot).value == "env:maze -agent:oracle roundz>3x"
        await pilot.press(*["backspace"] * 10, "enter")
        await wait_until(pilot, lambda: not pilot.app.screen.query_one(NOTE).display, "no note")
        assert app.ui_state.queries == {"episodes": ["env:maze -agent:oracle"]}


async def test_fields_are_completed_earlier_queries_return_and_one_is_saved_under_a_name() -> None:
    app = console_app(episodes_session())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "slash", *"mod", "tab")
        assert filter_of(pilot).value == "model:"
        await wait_for_widget_text(pilot, NOTE, '"a b"', "✗ at character 1: model: needs a value")
        await pilot.press(*"a", "tab", "enter")
        assert filter_of(pilot).value == 'model:"a b"'
        await wait_until(pilot, lambda: len(row_keys(app, LIST)) == 1, "the episode")
        await pilot.press("escape", "slash", *"rew")
        await wait_until(pilot, lambda: filter_of(pilot).value == "rew", "the text")
        await pilot.press("right", *"2", "enter")
        await wait_for_widget_text(pilot, SUMMARY, "2 match reward>2")
        await pilot.press("slash", "up")
        assert filter_of(pilot).value == 'model:"a b"'
        await pilot.press("down")
        assert filter_of(pilot).value == "reward>2"
        await pilot.press("down")
        await wait_until(pilot, lambda: not filter_of(pilot).has_focus, "the list")
        await pilot.press("escape", "slash", *"env:maze", *by_name("queries.open"))
        await wait_for_widget_text(pilot, "#note", "a name saves env:maze")
        await pilot.press(*"mazes", "enter")
        await wait_until(pilot, lambda: bool(app.ui_state.saved_queries), "the saved query")
        assert app.ui_state.saved_queries == {"episodes": {"mazes": "env:maze"}}
        await pilot.press("escape")
        await wait_until(pilot, lambda: len(row_keys(app, LIST)) == 4, "all episodes")
        await pilot.press("Q")
        await wait_for_widget_text(pilot, "#queries", "mazes", "env:maze")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, SUMMARY, "2 match env:maze")
        await pilot.press("escape", "Q")
        await wait_for_widget_text(pilot, "#note", "a name removes its saved query")
        await pilot.press("shift+tab", *"mazes", "enter")
        await wait_until(pilot, lambda: app.ui_state.saved_queries == {"episodes": {}}, "the removal")


@pytest.mark.parametrize(
    ("session", "key", "query", "summary"),
    [
        (results_session, "7", "agent:react success>0.4", "match agent:react success>0.4"),
        (running_battery, "6", "env:maze", "match env:maze"),
        (hostile_event, "3", "-kind:token since:2000-01-01", "matches -kind:token"),
        (two_logs, "4", "kind:none -error", "matches kind:none -error"),
    ],
)
async def test_every_list_takes_queries_and_its_help_lists_the_fields(
    session: Callable[[], FakeSession],
    key: str,
    query: str,
    summary: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # for the logs that the session opens
    async with console_pilot(session(), size=(120, 40)) as pilot:
        await pilot.press(key)
        await wait_until(pilot, lambda: bool(pilot.app.screen.query("#filter")), "the filter")
        await pilot.press("slash")
        filter_of(pilot).insert_text_at_cursor(query)
        await wait_for_widget_text(pilot, SUMMARY, summary)
        filter_of(pilot).insert_text_at_cursor(" nosuch:1")
        await wait_for_widget_text(pilot, NOTE, "there is no field nosuch")
        assert not has_unsafe_chars(widget_text(pilot, NOTE))
        await wait_for_widget_text(pilot, SUMMARY, summary)
        await pilot.press("escape", "question_mark")
        await wait_until(
            pilot, lambda: "Queries in the filter" in "\n".join(map(str, _help_rows(pilot.app))), "the fields"
        )


async def test_a_kept_query_of_notes_is_used_once_the_notes_are_known() -> None:
    session = episodes_session()
    session.fake_library.noted = {session.fake_library.stored[2].episode_id: "look again"}
    app = console_app(session, ui_state=UiState(filters={"episodes": "note:again"}))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "4 episodes · 1 match note:again")
        assert row_keys(app, LIST) == [session.fake_library.stored[2].episode_id]
        assert not pilot.app.screen.query_one(NOTE).display


async def test_the_first_screen_may_have_a_kept_filter(tmp_path: Path) -> None:
    app = Console(FileSession([tmp_path], tmp_path / "cache"), ui_state=UiState(filters={"episodes": "env:maze"}))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: filter_of(pilot).value == "env:maze")


def _help_rows(app: object) -> list[str]:
    assert isinstance(app, Console)
    source = app.screen.query_one("#help").source  # type: ignore[attr-defined]
    return ["".join(cell.text for cell in source.line(index, 80)) for index in range(len(source))]
