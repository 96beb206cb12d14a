"""The Results screen, the matrix of tasks and attempts, and the comparison, by keyboard and mouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.screens.results import ResultsScreen
from agentgym_tui.state.episode_list import UnreadableFile
from runner.errors import StoreError
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession, empty_session
from tests.support.console.pilot import (
    by_name,
    console_app,
    console_pilot,
    row_keys,
    screen_text,
    toast_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.result_sessions import NEW, OLD, results_session
from tests.support.console.samples import ended, live, row, started

LIST, SUMMARY, DETAIL = "#results", "#summary", "#detail"
SIZE = (120, 40)


async def test_rates_matrix_episode_and_comparison_by_keyboard() -> None:
    app = console_app(results_session())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, LIST, "llama4-scout", "40-60%", "0.00768 USD", "baseline")
        await pilot.press("j", "j")
        await wait_for_widget_text(
            pilot, DETAIL, "48 success, 37 failure, 11 truncated", "rewards of 96 scored episodes"
        )
        await pilot.press("m")
        await wait_for_widget_text(
            pilot, SUMMARY, "12 tasks · 96 attempts", "tasks       12    12", "pass^k     50%   21%"
        )
        await pilot.press("j", "right", "right")
        await wait_for_widget_text(pilot, DETAIL, "task 1 · attempt 3 of 8 · - failure")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#heading", "Wordle task 1", "6 of 8")
        await pilot.press("n")  # only the attempts of the task follow
        await wait_for_widget_text(pilot, "#heading", "Wordle task 1", "7 of 8")
        await pilot.press("escape", "escape")
        await wait_for_widget_text(pilot, SUMMARY, "Results · 240 episodes")
        await pilot.press("v")
        await wait_for_widget_text(pilot, SUMMARY, "Results by batch")
        await pilot.press("j", "c", "k", "c")
        won = "react qwen35_9b ▲ 12 won · ▼ 0 lost · = 0 tied"
        await wait_for_widget_text(pilot, SUMMARY, won, "p < 0.001", "by more than chance")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, SUMMARY, "8 match env:Wordle agent:react")
        filters = app.ui_state.filters["episodes"]
        assert filters == f"env:Wordle agent:react models:qwen35_9b task:0 batch:{NEW},{OLD} data:upstream"
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "▲ 12 won")
        await pilot.press("2", "escape")
        await wait_for_widget_text(pilot, SUMMARY, "Episodes · 240 episodes")


async def test_keys_and_clicks_list_the_episodes_behind_the_numbers_of_a_row_and_of_an_attempt() -> None:
    app = console_app(results_session())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, LIST, "llama4-scout")
        for keys, n, term in (
            (["enter"], 48, ""),
            (by_name("results.errors"), 11, " outcome:error"),
            (by_name("results.success"), 11, " outcome:success"),
        ):
            await pilot.press("g", "j", *keys)
            await wait_for_widget_text(pilot, SUMMARY, f"240 episodes · {n} match")
            assert isinstance(app.screen, EpisodesScreen)
            filters = app.ui_state.filters["episodes"]
            assert filters == f"env:Wordle agent:react models:llama4-scout{term} data:upstream"
            await pilot.press("escape", "7")
            await wait_for_widget_text(pilot, LIST, "▸Wordle")
        column = widget_text(pilot, LIST).splitlines()[0].index("errors")
        await pilot.click(LIST, offset=(column + 2, 2), times=2)
        await wait_for_widget_text(pilot, SUMMARY, "11 match")
        assert "outcome:error" in app.ui_state.filters["episodes"]
        await pilot.press("escape", "7")
        await wait_for_widget_text(pilot, LIST, "▸Wordle")
        await pilot.press("g", "j", "m")
        await wait_for_widget_text(pilot, SUMMARY, "12 tasks · 48 attempts · 1 zero variance · 1 all truncated")
        start = widget_text(pilot, LIST).splitlines()[0].index("attempts")
        await pilot.click(LIST, offset=(start + 5, 2))
        await wait_for_widget_text(pilot, DETAIL, "task 1 · attempt 3 of 4")
        await pilot.click(LIST, offset=(start + 5, 2), times=2)
        await wait_for_widget_text(pilot, "#heading", "Wordle task 1")


async def test_marked_groups_are_sorted_and_filtered() -> None:
    app = console_app(results_session())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, LIST, "llama4-scout")
        await pilot.press("j", "m")
        await wait_for_widget_text(pilot, LIST, "zero, truncated")
        await pilot.press("o", "O", "o", "O")
        await wait_for_widget_text(pilot, SUMMARY, "by success ▲")
        await pilot.press("slash", *"#11", "enter")
        await wait_for_widget_text(pilot, SUMMARY, "1 match #11")
        assert row_keys(app, LIST) == ["11"]
        await pilot.press(*by_name("matrix.episodes"))
        await wait_for_widget_text(pilot, SUMMARY, "4 match")
        assert "task:11" in app.ui_state.filters["episodes"]
        await pilot.press("7", "escape")
        await wait_until(pilot, lambda: len(row_keys(app, LIST)) == 12, "all tasks")
        await pilot.press("slash", *"zzz", "escape", "escape")
        await wait_for_widget_text(pilot, SUMMARY, "Results · 240 episodes")


async def test_rows_are_filtered_and_sorted_and_two_are_marked_and_compared() -> None:
    app = console_app(results_session())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, LIST, "llama4-scout")
        await pilot.press("c", "j")
        await wait_for_widget_text(pilot, SUMMARY, "◆ compares with Maze tools qwen35_9b")
        await pilot.press("c")
        await wait_until(pilot, lambda: "only rows of the same environment" in toast_text(pilot), "the refusal")
        await pilot.press("k", "c")
        await wait_until(pilot, lambda: "◆" not in screen_text(pilot.app), "the end of the mark")
        await pilot.press("j", "j", "c", "v")
        await wait_for_widget_text(pilot, SUMMARY, "Results by batch")
        await pilot.press("g", "j", "j", "c")
        await wait_for_widget_text(pilot, SUMMARY, f"batch {NEW}", "all other batches", "▲ 12 won")
        await pilot.press("escape", "v")
        await wait_for_widget_text(pilot, SUMMARY, "Results · 240 episodes")
        await pilot.press("slash", *"react", "enter", *["o"] * 5)
        await wait_for_widget_text(pilot, SUMMARY, "2 match react", "esc clears", "by success ▼")
        best, other = widget_text(pilot, LIST).splitlines()[1:3]
        assert "qwen35_9b" in best and "llama4-scout" in other
        assert app.ui_state.filters["results"] == "react"
        await pilot.press("escape")
        await wait_until(pilot, lambda: len(row_keys(app, LIST)) == 4, "all rows")
        await pilot.press("slash", *"zzz")
        await wait_for_widget_text(pilot, "#nothing", "No result matches zzz")


async def test_results_follow_the_episodes_that_end_and_the_cursor_stays() -> None:
    session = results_session()
    stored = session.fake_library.stored
    session.fake_library.stored = stored[:48]
    async with console_pilot(session) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, SUMMARY, "48 episodes")
        assert isinstance(pilot.app.screen, ResultsScreen)
        session.fake_library.stored = stored
        session.store.apply_events([live(started(8), ended(8, 1))])
        await wait_for_widget_text(pilot, SUMMARY, "240 episodes")
        await wait_until(pilot, lambda: "▸Wordle react qwen35_9b" in " ".join(widget_text(pilot, LIST).split()))
        await pilot.press("m")
        await wait_for_widget_text(pilot, SUMMARY, "96 attempts")
        session.fake_library.stored = [*stored, row(900, agent="react", model="qwen35_9b", task_index=0)]
        session.store.apply_events([live(started(9), ended(9, 1))])
        await wait_for_widget_text(pilot, SUMMARY, "97 attempts")


async def test_without_episodes_the_screen_says_so_and_keys_do_nothing() -> None:
    session = empty_session()
    session.fake_library.stored = []
    async with console_pilot(session) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, "#nothing", "No results yet.")
        await pilot.press("enter", "m", "c", "F", "v", "ctrl+r")
        await wait_for_widget_text(pilot, SUMMARY, "Results by batch · 0 episodes")
        assert isinstance(pilot.app.screen, ResultsScreen)


async def test_a_library_or_a_file_that_cannot_be_read_is_named_above_results_and_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = results_session()
    session.fake_library.unreadable = [UnreadableFile(Path("/srv/x.json"), "damaged")]
    source = session.fake_library.result_source

    def fail() -> Any:  # noqa: ANN401
        raise StoreError("the index is locked \x1b[2J")

    monkeypatch.setattr(session.fake_library, "result_source", fail)
    async with console_pilot(session) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, SUMMARY, "✗ the index is locked ␛[2J")
        monkeypatch.setattr(session.fake_library, "result_source", source)
        await pilot.press("ctrl+r")
        await wait_for_widget_text(pilot, SUMMARY, "240 episodes")
        await wait_until(pilot, lambda: "locked" not in widget_text(pilot, SUMMARY), "the end of the failure")
        await wait_for_widget_text(pilot, SUMMARY, "✗ 1 file cannot be read and is not counted; Episodes lists them")
        await pilot.press("F")
        await wait_for_widget_text(pilot, SUMMARY, "failed episode", "✗ 1 file cannot be read")


async def test_unsafe_names_are_made_safe_and_left_out_of_the_filter() -> None:
    session = FakeSession()
    session.fake_library.stored = [row(1, env="Ma\x1b[2Jze", agent="re act", model="a|b", outcome=Outcome.ERROR)]
    app = console_app(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("7")
        await wait_for_text(pilot, "⚠ Ma␛")
        await pilot.press("X")
        await wait_for_text(pilot, "1b 5b 32 4a")
        await pilot.press("escape")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, SUMMARY, "1 episode · 1 match")
        assert app.ui_state.filters["episodes"] == 'agent:"re act" models:"a|b" data:upstream'
