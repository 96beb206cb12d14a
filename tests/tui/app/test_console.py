"""The console: command table, modes, session and redraws."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from agentgym_tui.app import Console
from agentgym_tui.commands import COMMANDS, bindings, display_keys
from agentgym_tui.config import parse_settings
from agentgym_tui.screens.base import ConsoleScreen, DialogScreen
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.screens.live import LiveScreen
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, files_session
from tests.support.console.pilot import screen_text, wait_for_no_text, wait_for_text, wait_until
from tests.support.console.samples import FakeClock, ended, heartbeat, hostile_store, live

SIZE = (80, 24)


# Commands and keys.


def test_command_ids_are_unique_and_keys_are_unique_in_each_scope() -> None:
    assert len({command.id for command in COMMANDS}) == len([*COMMANDS])
    for scope in {command.scope for command in COMMANDS}:
        keys = [
            key for command in COMMANDS if command.scope == scope for key in (command.keys or command.id).split(",")
        ]
        assert len(set(keys)) == len(keys), scope
        ids = dict.fromkeys(binding.id for binding in bindings(scope))  # a command of a text field has two bindings
        assert list(ids) == [c.id for c in COMMANDS if c.scope == scope]


def test_display_keys_are_readable() -> None:
    keys = display_keys("question_mark,ctrl+p,pagedown,escape,j")
    assert keys == ["?", "^p", "page down", "esc", "j"]


async def test_a_key_that_the_user_took_from_a_command_of_a_text_field_no_longer_runs_it() -> None:
    settings = parse_settings(b"keymap: {filter.clear: ctrl+l, episodes.clear: ctrl+l}")
    async with Console(files_session(), settings).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "3 episodes")
        await pilot.press("slash", *"zzz")
        await wait_for_text(pilot, "0 match zzz")
        await pilot.press("escape")
        await pilot.pause()
        await wait_for_text(pilot, "0 match zzz")
        await pilot.press("ctrl+l")
        await wait_for_no_text(pilot, "match zzz")


# Modes.


async def test_keys_1_and_2_switch_screens_which_show_what_changed_meanwhile_and_are_styled_when_they_return() -> None:
    session, shown = busy_session(), list[events.ScreenResume]()

    def note(message: Message) -> None:
        if isinstance(message, events.ScreenResume):
            shown.append(message)

    async with Console(session).run_test(size=SIZE, message_hook=note) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("2")
        await wait_for_text(pilot, "/ Filter")
        assert not any(event.refresh_styles for event in shown)
        session.store.apply_events([live(ended(3, 4))])
        await pilot.press("1")
        await wait_for_text(pilot, "✓ success", "Transcript")
        assert shown[-1].refresh_styles
        await pilot.press("1")
        assert isinstance(pilot.app.screen, LiveScreen)
        await pilot.press("2", "enter")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodeScreen), "an episode")
        await pilot.press("2")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen), "the list again")


# The session.


async def test_the_session_runs_after_the_first_paint_and_is_closed_at_exit() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "Welcome")
        async with asyncio.timeout(5):
            await session.running.wait()
        assert not session.closed.is_set()
    assert session.closed.is_set()
    assert session.store.on_change is None


async def test_a_failing_session_ends_the_console() -> None:
    session = empty_session()
    session.failure = ZeroDivisionError("a defect")
    with pytest.raises(ZeroDivisionError):
        async with Console(session).run_test(size=SIZE) as pilot:
            await wait_until(pilot, lambda: not pilot.app.is_running, "the end")
    assert session.closed.is_set()


async def test_an_unrequested_cancellation_of_the_session_ends_the_console() -> None:
    session = empty_session()
    session.failure = asyncio.CancelledError()
    with pytest.raises(RuntimeError, match="ended by itself"):
        async with Console(session).run_test(size=SIZE) as pilot:
            await wait_until(pilot, lambda: not pilot.app.is_running, "the end")
    assert session.closed.is_set()


async def test_changes_are_batched_into_at_most_ten_redraws_per_second() -> None:
    session = busy_session()
    clock = FakeClock()
    app = Console(session, now=clock)
    drawn_versions: list[int] = []
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        draw = screen.draw

        def draw_and_count(store: RunStore) -> None:
            drawn_versions.append(store.version)
            draw(store)

        screen.draw = draw_and_count  # type: ignore[method-assign]
        clock.at += 1
        for n in range(50):
            session.store.set_link(BusLink("connected", address=f"b{n}"))
        await wait_for_text(pilot, "b49")
        assert len(drawn_versions) == 1
        session.store.apply_events([live(heartbeat())])
        await pilot.pause()
        assert len(drawn_versions) == 1


async def test_the_first_node_is_drawn_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession(RunStore())
    for name in ("MIN_INTERVAL_S", "MAX_INTERVAL_S"):
        monkeypatch.setattr(f"agentgym_tui.services.{name}", 60.0)
    async with Console(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "Welcome")
        session.store.set_link(BusLink("connecting"))  # waits for the next redraw
        session.store.apply_events([live(heartbeat())])
        await wait_for_text(pilot, "node pmoves-4090 · node pmoves-4090")


async def test_a_node_is_marked_lost_in_time_although_a_notice_ends_later() -> None:
    store = RunStore(lost_after_s=0.2)
    store.add_notice("a notice for a minute")
    async with Console(FakeSession(store)).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "a notice for a minute")
        store.apply_events([live(heartbeat())])
        await wait_for_text(pilot, "✗ node lost")


async def test_a_silent_node_is_marked_lost_without_another_event() -> None:
    clock = FakeClock()
    async with Console(busy_session(clock), now=clock).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "task 3")
        clock.at += 6
        await wait_for_text(pilot, "✗ node lost")


async def test_changes_below_a_dialog_are_drawn() -> None:
    session = busy_session()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "127.0.0.1:4222")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "╭─ Help")
        session.store.set_link(BusLink("connected", address="elsewhere"))
        await wait_for_text(pilot, "elsewhere")


async def test_no_screen_draws_control_characters() -> None:
    session = FakeSession(hostile_store(), read_only="\x1b[2J[/]")
    session.title = "\x1b]0;x\x07[/]"
    keys = "question_mark escape R escape b escape colon escape r x X escape"
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "␛")
        for width, height in (SIZE, (60, 20)):
            await pilot.resize_terminal(width, height)
            for key in keys.split():
                await pilot.press(key)
                text = screen_text(pilot.app)
                assert not {"\x1b", "\x9b", "\u202e", "\u200b", "\x00", "\ud800"} & set(text)
        assert "␛" in text


class Text(ConsoleScreen[None]):
    DEFAULT_CSS = "Text Static { height: 3; }"

    def compose(self) -> ComposeResult:
        yield Static("text")


async def test_what_changed_just_before_a_dialog_opened_is_laid_out_below_it() -> None:
    async with Console(busy_session()).run_test(size=SIZE) as pilot:
        await pilot.app.push_screen(Text())
        text = pilot.app.screen.query_one(Static)
        text.styles.height = 7
        await pilot.app.push_screen(DialogScreen[None]())
        await wait_until(pilot, lambda: text.size.height == 7, "the layout of the screen below")
