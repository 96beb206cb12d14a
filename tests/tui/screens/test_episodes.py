from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.nodes import READING_FILES, BusLink
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.widgets.lists import Table
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession, bus_session, busy_session, empty_session, files_session
from tests.support.console.pilot import console_pilot, wait_for_text, wait_for_widget_text, wait_until, widget_text
from tests.support.console.samples import HOSTILE, ended, episode_id, live, row, started, timestep

LIST, SUMMARY = "#episodes", "#summary"


def session_with_rows(n: int, **fields: Any) -> FakeSession:  # noqa: ANN401
    session = empty_session()
    session.fake_library.stored = [row(number, **fields) for number in range(n)]
    return session


async def test_running_episodes_are_listed_while_the_library_is_slow_and_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, gate = busy_session(), threading.Event()
    session.fake_library.stored = [
        row(1, outcome=Outcome.ERROR, error_type="EnvironmentFault"),
        row(2),
        row(7, env="Maze"),
    ]
    rows = session.fake_library.rows

    def slow_rows() -> Any:  # noqa: ANN401
        assert gate.wait(20)
        return rows()

    monkeypatch.setattr(session.fake_library, "rows", slow_rows)
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "reading …")
        assert "▶ running" in widget_text(pilot, LIST)
        gate.set()
        await wait_for_widget_text(pilot, SUMMARY, "5 episodes · ▶ 1 running")
        await wait_until(pilot, lambda: "reading" not in widget_text(pilot, SUMMARY))
        lines = widget_text(pilot, LIST).splitlines()
        assert lines[0].split()[:5] == ["started", "▼", "environment", "task", "outcome"]
        await pilot.press("g")
        lines = widget_text(pilot, LIST).splitlines()
        assert lines[1].startswith("▸")
        assert "Maze" in lines[1]
        assert "▶ running" in lines[2]
        assert "! error: EnvironmentFau" in lines[4]
        monkeypatch.setattr(session.fake_library, "rows", lambda: session.fake_library.load(HOSTILE))
        await pilot.press("ctrl+r")
        await wait_for_widget_text(pilot, SUMMARY, "✗ there is no episode", "running")
        assert not has_unsafe_chars(widget_text(pilot, SUMMARY))


async def test_the_library_is_read_again_after_an_episode_and_on_request_and_the_cursor_stays() -> None:
    session = session_with_rows(5)
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "5 episodes")
        assert pilot.app.screen.query_one(Table).key == episode_id(4), "the newest"
        await pilot.press("j", "j")
        session.store.apply_events([live(started(8), timestep(8))])
        await wait_for_widget_text(pilot, SUMMARY, "6 episodes · ▶ 1 running")
        session.fake_library.stored.append(row(9))
        session.store.apply_events([live(ended(8, 2, outcome=Outcome.FAILURE))])
        await wait_for_widget_text(pilot, LIST, "✗ failure")
        await wait_for_widget_text(pilot, SUMMARY, "7 episodes")
        session.fake_library.stored.append(row(10))
        await pilot.press("ctrl+r")
        await wait_for_widget_text(pilot, SUMMARY, "8 episodes")
        assert pilot.app.screen.query_one(Table).key == episode_id(2)


async def test_the_list_is_filtered_while_typing_and_escape_shows_all() -> None:
    session = session_with_rows(12)
    session.fake_library.stored += [row(20, env="Maze"), row(21, env="Maze", outcome=Outcome.FAILURE)]
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "14 episodes")
        await pilot.press("G", "slash", *"maze")
        await wait_for_widget_text(pilot, SUMMARY, "2 match maze")
        await pilot.press("space", *"failure", "enter")
        await wait_for_widget_text(pilot, SUMMARY, "1 match maze failure")
        assert pilot.app.screen.query_one(Table).key == episode_id(21)
        assert pilot.app.focused is pilot.app.screen.query_one(Table)
        await pilot.press("escape")
        await wait_until(pilot, lambda: "match" not in widget_text(pilot, SUMMARY))
        assert not pilot.app.screen.query_one(Input).display
        await pilot.press("slash", *"zzz")
        await wait_for_widget_text(pilot, "#nothing", "No episode matches zzz")
        await pilot.press("escape")
        await wait_for_widget_text(pilot, LIST, "Maze")
        assert pilot.app.focused is pilot.app.screen.query_one(Table)
        for key in ("down", "tab"):  # leave the field and keep the filter
            await pilot.press("slash", *"#20", key)
            await wait_for_widget_text(pilot, SUMMARY, "1 match #20")
            assert pilot.app.focused is pilot.app.screen.query_one(Table)
            assert pilot.app.screen.query_one(Input).display
            await pilot.press("escape")
            await wait_until(pilot, lambda: "match" not in widget_text(pilot, SUMMARY))
        await pilot.press("slash", "space", "enter")  # an empty filter is hidden
        await wait_until(pilot, lambda: not pilot.app.screen.query_one(Input).display)
        assert pilot.app.focused is pilot.app.screen.query_one(Table)


async def test_keys_are_text_in_the_filter_and_what_is_pasted_is_made_safe() -> None:
    async with console_pilot(session_with_rows(1, env="\x1b[2J")) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, LIST, "␛[2J")
        await pilot.press("X")
        await wait_for_text(pilot, "1b 5b 32 4a")
        await pilot.press("escape", "slash", *"qXN?12")
        field = pilot.app.screen.query_one(Input)
        assert field.value == "qXN?12"
        field.value = ""
        for typed in ("\u0301", "\u0915", "\u093f", "e", "\u0301", "\u0302"):
            field.insert_text_at_cursor(typed)
        assert field.value == "◌\u0301\u0915\u093fe\u0301\u0302"
        field.insert_text_at_cursor("\u0303" * 9)
        assert field.value.endswith("e\u0301\u0302(+9 marks)")
        assert not has_unsafe_chars(field.value)
        field.value = ""
        field.insert_text_at_cursor(HOSTILE * 50)
        field.insert_text_at_cursor("\x1b]0;x\x07")
        await pilot.pause()
        assert 0 < len(field.value) <= MAX_CHARS
        assert not has_unsafe_chars(field.value)
        assert not has_unsafe_chars(widget_text(pilot, SUMMARY) + widget_text(pilot, "#nothing"))


async def test_an_episode_is_opened_by_key_or_mouse_and_escape_returns_to_the_list() -> None:
    session = session_with_rows(5)
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "5 episodes")
        await pilot.press("j", "enter")
        for first in (2, 3):
            await wait_for_widget_text(pilot, "#heading", f"{first} of 5")
            assert isinstance(pilot.app.screen, EpisodeScreen)
            await pilot.press("n", "n")
            await wait_for_widget_text(pilot, "#heading", f"{first + 2} of 5")
            await pilot.press("escape")
            await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen))
            assert pilot.app.screen.query_one(Table).key == episode_id(3 - first)
            await pilot.click(LIST, offset=(5, 3), times=2)


async def test_a_list_is_not_called_empty_while_files_are_read_and_unreadable_ones_have_their_reason() -> None:
    session = files_session(0)
    session.store.set_link(READING_FILES)
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, SUMMARY, "0 episodes", "reading …")
        assert not pilot.app.screen.query_one("#nothing").display
        session.fake_library.unreadable = [UnreadableFile(Path("/srv/\x1b[2J.json"), "no JSON: \x1b]0;x\x07")]
        session.fake_library.stored = [row(1)]
        session.store.apply_stored(session.fake_library.stored)
        await wait_for_widget_text(pilot, SUMMARY, "1 episode", "reading …")
        session.store.set_link(BusLink("none", "files"))
        await wait_until(pilot, lambda: "reading" not in widget_text(pilot, SUMMARY))
        await wait_for_widget_text(pilot, SUMMARY, "1 episode · ✗ 1 file cannot be read")
        await wait_for_widget_text(pilot, LIST, "␛[2J.json: no JSON")
        await pilot.press("G", "enter")
        await wait_for_widget_text(pilot, "#transcript", "/srv/␛[2J.json", "no JSON")
        await wait_for_widget_text(pilot, "#heading", "✗ cannot be shown", "2 of 2")


async def test_a_library_is_read_once_more_as_soon_as_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    session = files_session(1)
    session.store.set_link(READING_FILES)
    rows, is_slow = session.fake_library.rows, [True]

    def slow_rows() -> Any:  # noqa: ANN401
        if is_slow:
            is_slow.clear()
            threading.Event().wait(1)
        return rows()

    monkeypatch.setattr(session.fake_library, "rows", slow_rows)
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, SUMMARY, "1 episode", "reading …")
        session.fake_library.stored.append(row(1))
        session.store.apply_stored(session.fake_library.stored)
        session.store.set_link(BusLink("none", "files"))
        await wait_for_widget_text(pilot, SUMMARY, "2 episodes")  # not after ten times the duration of the first read


async def test_rows_of_the_cache_can_be_used_until_their_files_are_read() -> None:
    session = files_session(0)
    session.fake_library.first_rows = [row(number) for number in (3, 2, 1)]
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes", "reading …")
        await pilot.press("j")
        table = pilot.app.screen.query_one(Table)
        assert table.key == episode_id(2)
        session.fake_library.stored = [row(number) for number in (2, 3, 4)]
        session.store.apply_stored(session.fake_library.rows())
        session.store.set_link(BusLink("none", "files"))
        await wait_until(pilot, lambda: "reading" not in widget_text(pilot, SUMMARY))
        assert (table.key, table.cursor, len(table.source)) == (episode_id(2), 2, 3)


async def test_a_folder_without_episodes_is_shown_as_empty_once_read(tmp_path: Path) -> None:
    session, links = FileSession([tmp_path]), list[BusLink]()
    session.store.on_change = lambda: links.append(session.store.link)
    await session.run()
    assert links[0] == READING_FILES
    assert links[-1] != READING_FILES
    async with Console(FileSession([tmp_path])).run_test(size=(120, 40)) as pilot:
        await wait_for_widget_text(pilot, "#nothing", "No episodes yet", "files only")
        await pilot.press("enter")  # there is nothing to open
        assert isinstance(pilot.app.screen, EpisodesScreen)


async def test_an_episode_of_another_tool_says_what_its_file_lacks(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    async with Console(FileSession([path])).run_test(size=(80, 24)) as pilot:
        await wait_for_widget_text(pilot, SUMMARY, "1 episode")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#heading", "which lacks: times", "unknown, unscored")
        heading = pilot.app.screen.query_one("#heading")
        assert heading.size.height == 4
        assert f"reward {UNKNOWN}" in widget_text(pilot, "#heading")


async def test_a_watched_bus_without_episodes_shows_an_empty_list() -> None:
    session = FakeSession(read_only="watching only: nothing can be started")
    session.library = None
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#nothing", "No episodes yet", "watching only")


async def test_a_watched_bus_lists_the_episodes_it_carried_and_has_no_results() -> None:
    async with console_pilot(bus_session()) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "4 episodes · ▶ 1 running")
        await pilot.press("ctrl+r")
        await wait_for_widget_text(pilot, LIST, "▶ running")
        await pilot.press("7")
        await wait_for_text(pilot, "a watched bus has no stored episodes")
