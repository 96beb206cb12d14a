from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.commands import COMMANDS, available_commands
from agentgym_tui.screens.dialogs.texts import HexDumpDialog
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.line_browser import EventsScreen
from agentgym_tui.widgets.lists import Table
from agentgym_tui.widgets.payload_view import TextView
from runner.events.codec import encode
from runner.events.subjects import EPISODE_COMPLETED
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, files_session
from tests.support.console.pilot import (
    console_pilot,
    filter_by,
    toast_text,
    type_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import HOSTILE, START, completed, episode_id

ULID = "01KA0000000000000000000000"


def order(n: int, subject: str = "orders.eu.new") -> RawMessage:
    return RawMessage(subject, {"shop": f"s{n}"}, b'{"order": %d}' % n, "ORDERS", n, START + timedelta(seconds=n), 0)


def session_with_items(*items: RawMessage | Notice) -> FakeSession:
    session = busy_session()
    session.fake_events.initial = list(items)
    return session


@asynccontextmanager
async def events_pilot(session: FakeSession, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Pilot[None]]:
    async with console_pilot(session, size) as pilot:
        await pilot.press("3")
        await wait_until(pilot, lambda: bool(session.fake_events.opened) and bool(widget_text(pilot, "#summary")))
        yield pilot


def events_screen(pilot: Pilot[None]) -> EventsScreen:
    assert isinstance(pilot.app.screen, EventsScreen)
    return pilot.app.screen


async def test_messages_and_notices_are_listed_paused_and_read_on_after_another_screen_without_loss() -> None:
    session = session_with_items(order(1), Notice(kind="gap", text="3 left", count=3), order(2))
    async with events_pilot(session) as pilot:
        available = {each.command.id for each in available_commands(pilot.app, session)}
        assert available >= {command.id for command in COMMANDS if command.scope == "events"}
        await wait_for_widget_text(pilot, "#messages", "orders.eu.new", '{"order": 2}', "― 3 left")
        await wait_for_widget_text(pilot, "#summary", "2 messages", "3 in gaps", "● live")
        await wait_for_widget_text(pilot, "#subjects", "▾ orders", "new", "2")
        await wait_for_widget_text(pilot, "#payload", '"order": 2')
        await pilot.press("escape")  # there is no filter, so nothing is subscribed again
        session.fake_events.publish(order(3, "other"))
        await wait_for_widget_text(pilot, "#payload", '"order": 3')
        await wait_for_widget_text(pilot, "#subjects", "other")
        await wait_for_widget_text(pilot, "#messages", '{"order": 1}', '{"order": 2}')
        await pilot.press("space")
        await wait_for_widget_text(pilot, "#summary", "‖ paused")
        session.fake_events.publish(*(order(n) for n in range(4, 30)))
        await wait_for_widget_text(pilot, "#summary", "26 waiting")
        assert '{"order": 4}' not in widget_text(pilot, "#messages")
        await pilot.press("space")
        await wait_for_widget_text(pilot, "#messages", '{"order": 29}', '{"order": 28}')
        await wait_for_widget_text(pilot, "#summary", "29 messages", "● live")
        reader = events_screen(pilot).reader
        await pilot.press("1")
        await wait_until(pilot, lambda: reader.suspended)
        session.fake_events.publish(order(30), order(31))
        await pilot.press("3")
        await wait_for_widget_text(pilot, "#messages", '{"order": 30}', '{"order": 31}')
        assert len(session.fake_events.opened) == 1


async def test_the_rate_of_new_messages_is_shown_and_none_while_the_history_is_replayed() -> None:
    session = session_with_items()
    async with events_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#summary", "● live")
        at = datetime.now(UTC) - timedelta(seconds=30)
        session.fake_events.publish(*(RawMessage("orders", {}, b"", "S", n, at, 500 - n) for n in range(400)))
        await wait_for_widget_text(pilot, "#summary", "400 messages", "replaying history")
        session.fake_events.publish(*(RawMessage("orders", {}, b"", "S", n, at, 500 - n) for n in range(400, 501)))
        await wait_for_widget_text(pilot, "#summary", "501 messages · lag 0")
        assert "/s" not in widget_text(pilot, "#subjects")
        session.fake_events.publish(*(order(n) for n in range(500)))
        await wait_for_widget_text(pilot, "#summary", "/s", "1,001 messages")
        await wait_for_widget_text(pilot, "#subjects", "/s", "500")


async def test_a_filter_and_subject_patterns_select_messages_and_escape_shows_all() -> None:
    session = session_with_items(order(1), order(22), order(3, "bills"))
    async with events_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#messages", '{"order": 3}')
        await filter_by(pilot, "ORDERS 22")
        await wait_for_widget_text(pilot, "#summary", "matches ORDERS 22")
        assert '{"order": 1}' not in widget_text(pilot, "#messages")
        assert events_screen(pilot).query_one("#messages", Table).has_focus
        await pilot.press("slash")
        await type_text(pilot, " none")
        await wait_for_widget_text(pilot, "#nothing", "No message matches")
        await pilot.press("enter", "escape")
        await wait_for_widget_text(pilot, "#messages", '{"order": 1}', '{"order": 3}')
        assert [patterns for patterns, _ in session.fake_events.opened] == [(">",)]
        await pilot.press("u")
        await type_text(pilot, "bills.* orders.>", "enter")
        await wait_until(pilot, lambda: session.fake_events.opened[-1][0] == ("bills.*", "orders.>"))
        await wait_for_widget_text(pilot, "#summary", "bills.* orders.>")
        await pilot.press("u")
        await type_text(pilot, "no..pattern", "enter")
        await wait_until(pilot, lambda: "is not a valid subject pattern" in toast_text(pilot))
        await pilot.press("u", "x", "escape")
        assert len(session.fake_events.opened) == 2
        await pilot.press("escape")
        await wait_until(pilot, lambda: session.fake_events.opened[-1][0] == (">",))


async def test_enter_on_a_branch_of_the_tree_subscribes_its_pattern() -> None:
    session = session_with_items(order(1), order(2, "orders.us"), order(3, "bills"), order(4, "a*.b>c"))
    async with events_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#subjects", "▾ orders", "eu", "us", "bills")
        await pilot.press("t", "g", "j", "j", "j")
        assert events_screen(pilot).query_one("#subjects", Table).key == "orders"
        await pilot.press("left")
        await wait_for_widget_text(pilot, "#subjects", "▹ orders (2)")
        await pilot.press("right", "enter")
        await wait_until(pilot, lambda: session.fake_events.opened[-1][0] == ("orders.>",))
        await wait_for_widget_text(pilot, "#subjects", "bills")
        await pilot.press("g", "j", "enter")
        await wait_until(pilot, lambda: "is not a valid subject pattern" in toast_text(pilot))
        await pilot.press("t")
        assert events_screen(pilot).query_one("#messages", Table).has_focus


async def test_a_jump_shows_history_that_is_read_on_while_scrolling() -> None:
    session = session_with_items(*(order(n) for n in range(1, 1_501)))
    async with events_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#summary", "1,500 messages")
        await pilot.press("J")
        await type_text(pilot, "12", "enter")
        await wait_for_widget_text(pilot, "#summary", "◂ history", "500 messages")
        assert session.fake_events.opened[-1][1] == 12
        await wait_for_widget_text(pilot, "#payload", '"order": 1')
        await pilot.pause()
        assert "500 messages" in widget_text(pilot, "#summary")
        await pilot.press(*["pagedown"] * 20)
        await wait_for_widget_text(pilot, "#summary", "1,000 messages")
        cursor = events_screen(pilot).table.cursor
        await pilot.press("space")
        await wait_for_widget_text(pilot, "#summary", "‖ paused")
        await pilot.press("space")
        await wait_for_widget_text(pilot, "#summary", "◂ history", "1,000 messages")
        assert events_screen(pilot).table.cursor == cursor
        await pilot.press("G")
        await wait_for_widget_text(pilot, "#summary", "● live", "1,500 messages")
        await wait_for_widget_text(pilot, "#payload", '"order": 1500')


async def test_a_jump_accepts_a_past_time_and_rejects_the_future_and_other_text() -> None:
    session = session_with_items(order(1))
    async with events_pilot(session) as pilot:
        await pilot.press("J")
        await type_text(pilot, "2999-01-01 10:00", "enter")
        await wait_until(pilot, lambda: "is in the future" in toast_text(pilot))
        assert len(session.fake_events.opened) == 1
        await pilot.press("escape", "J")
        await type_text(pilot, "-10m", "enter")
        await wait_for_widget_text(pilot, "#summary", "◂ history")
        since = session.fake_events.opened[-1][1]
        assert isinstance(since, timedelta) and timedelta(minutes=10) <= since < timedelta(minutes=11)
        await pilot.press("J")
        await type_text(pilot, "never", "enter")
        await wait_until(pilot, lambda: "not a sequence or a time" in toast_text(pilot))
        assert len(session.fake_events.opened) == 2
        prompt = events_screen(pilot).query_one("#entry", Input)
        assert prompt.has_focus and prompt.value == "never"  # to be corrected
        assert "enter Apply" in widget_text(pilot, "KeyBar") and "q Quit" not in widget_text(pilot, "KeyBar")


async def test_all_messages_of_the_episode_of_a_message_of_a_screen_and_of_the_watched_one() -> None:
    named = [RawMessage("x", {}, b'{"episode_id":"%s"}' % episode_id(n).encode(), "S", 1, START) for n in (1, 3)]
    last = RawMessage(EPISODE_COMPLETED, {}, encode(completed(1, episode_id=ULID)), "S", 1, START)
    session = session_with_items(order(1), *named, last)
    async with console_pilot(session) as pilot:
        await wait_for_text(pilot, "task 3")
        for n in (3, 1):
            if n == 1:
                await pilot.app.push_screen(EpisodeScreen(session, episode_id(1)))
                await wait_for_widget_text(pilot, "#heading", "Wordle")
            await pilot.press("B")
            await wait_for_widget_text(pilot, "#summary", f"episode {episode_id(n)}")
            await wait_for_widget_text(pilot, "#payload", episode_id(n))
            assert "order" not in widget_text(pilot, "#messages")
        await pilot.press("escape")
        await wait_for_widget_text(pilot, "#messages", "Wordle success", '{"order": 1}')
        await filter_by(pilot, "completed")
        await pilot.press("B")
        await wait_for_widget_text(pilot, "#summary", f"episode {ULID}", "● live")
        assert "matches" not in widget_text(pilot, "#summary")
        await wait_for_widget_text(pilot, "#messages", "Wordle success")
        assert "order" not in widget_text(pilot, "#messages")
        since = session.fake_events.opened[-1][1]
        assert isinstance(since, timedelta) and since > timedelta(days=1)
        session.fake_events.initial = [order(1)]
        await pilot.press("escape")
        await wait_for_widget_text(pilot, "#messages", '{"order": 1}')
        await pilot.press("B")
        await wait_until(pilot, lambda: "names no episode" in toast_text(pilot))


async def test_without_an_episode_or_a_message_keys_say_so() -> None:
    session = empty_session()
    async with console_pilot(session) as pilot:
        await wait_for_text(pilot, "Nothing is running yet")
        await pilot.press("B")
        await wait_until(pilot, lambda: "no episode selected" in toast_text(pilot))
        await pilot.press("3")
        await wait_for_widget_text(pilot, "#nothing", "No messages yet on >")
        await pilot.press("y")
        await wait_until(pilot, lambda: "nothing to copy" in toast_text(pilot))


async def test_a_message_is_shown_in_four_views_and_copied_and_its_text_is_never_markup() -> None:
    session = session_with_items(RawMessage("s", {"shop": "7"}, b'{"a":"\x1b[2J"}', "S", 4, START))
    async with events_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#payload", "␛[2J")
        for text in ('{"a":"␛[2J"}', "7b 22 61 22", "shop: 7"):
            await pilot.press("v")
            await wait_for_widget_text(pilot, "#payload", text)
        await pilot.press("v", "v")
        await pilot.press("y")
        await wait_until(pilot, lambda: pilot.app.clipboard == '{"a":"␛[2J"}')
        await pilot.press("Y")
        await wait_until(pilot, lambda: pilot.app.clipboard == '{"a":"\x1b[2J"}')
        await pilot.click("#tabs", offset=(3, 0))
        await pilot.press("enter")
        assert events_screen(pilot).query_one("#payload", TextView).has_focus
        await pilot.press("X")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, HexDumpDialog))
        await pilot.press("escape")
        session.fake_events.publish(RawMessage(HOSTILE.replace("\ud800", ""), {}, HOSTILE.encode("utf-8", "replace")))
        await wait_for_widget_text(pilot, "#messages", "⚠")
        await pilot.press("J")
        await type_text(pilot, "[/]", "enter")
        await wait_until(pilot, lambda: "not a sequence" in toast_text(pilot))
        assert isinstance(pilot.app, Console)


async def test_each_pane_is_zoomed_and_restored() -> None:
    panes = {"": "#messages", "tab": "#payload", "t": "#subjects", "shift+tab": "#subjects"}
    async with events_pilot(session_with_items(order(1))) as pilot:
        await wait_for_widget_text(pilot, "#messages", "orders")
        screen = events_screen(pilot)
        for width, height in ((120, 40), (80, 24)):
            if width < 110:
                del panes["shift+tab"]  # the tree is hidden
            await pilot.resize_terminal(width, height)
            for key, selector in panes.items():
                screen.query_one("#messages").focus()
                await pilot.press(*filter(None, (key, "z")))
                await wait_until(pilot, lambda: width >= screen.query_one(selector).size.width > width - 4)  # noqa: B023
                others = {"#messages", "#payload", "#subjects"} - {selector}
                assert not any(screen.query_one(other).size for other in others)
                await pilot.press("z")
                await wait_until(pilot, lambda: bool(screen.query_one("#messages").size))


async def test_a_files_session_has_neither_events_nor_a_machine_and_without_a_log_no_logs() -> None:
    session = files_session()
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#summary", "3 episodes")
        for key in ("3", "5"):
            pilot.app.clear_notifications()
            await pilot.press(key)
            await wait_until(pilot, lambda: "files have no bus" in toast_text(pilot))
        available = {each.command.id for each in available_commands(pilot.app, session)}
        assert "app.episodes" in available and "app.events" not in available
        assert "Events" not in widget_text(pilot, "KeyBar")
        await pilot.press("4")
        await wait_until(pilot, lambda: "no log is open" in toast_text(pilot))
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#heading", "Wordle")
        await pilot.press("B")
        await wait_until(
            pilot, lambda: "files have no bus" in toast_text(pilot) and isinstance(pilot.app.screen, EpisodeScreen)
        )
