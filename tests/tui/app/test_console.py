"""What holds on all screens: the modes, the dialogs, leaving, and when something is drawn."""

from __future__ import annotations

import asyncio

import pytest

from agentgym_tui.app.console import Console
from agentgym_tui.commands.availability import AvailableCommand, available_commands
from agentgym_tui.commands.keymap import COMMANDS, Command, bindings, display_keys
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.screens.dialogs.battery_picker import BatteryPicker
from agentgym_tui.screens.dialogs.command_palette import CommandPalette, search
from agentgym_tui.screens.dialogs.help import HelpDialog
from agentgym_tui.screens.dialogs.hex_dump import HexDumpDialog
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.screens.episodes.screen import EpisodesScreen
from agentgym_tui.screens.live.screen import LiveScreen
from agentgym_tui.sessions.protocols import ControlRequestError
from agentgym_tui.state.models import BusLink
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import WrappedText
from tests.support.console.fake_session import (
    FakeSession,
    bus_session,
    busy_session,
    empty_session,
    error_session,
    files_session,
)
from tests.support.console.samples import (
    NODE,
    FakeClock,
    batch_id,
    batch_state,
    busy_store,
    ended,
    heartbeat,
    hostile_store,
    live,
    node_list,
    progress,
)
from tests.support.console.screens import gone, screen_text, shown, until

SIZE = (80, 24)


# The table of keys.


def test_ids_are_unique_and_keys_of_a_place_too() -> None:
    assert len({command.id for command in COMMANDS}) == len(COMMANDS)
    for place in {command.scope for command in COMMANDS}:
        keys = [key for command in COMMANDS if command.scope == place for key in command.keys.split(",")]
        assert len(set(keys)) == len(keys), place
        ids = dict.fromkeys(binding.id for binding in bindings(place))  # what is typed into has its keys twice
        assert list(ids) == [c.id for c in COMMANDS if c.scope == place]


async def test_each_command_can_be_found_once() -> None:
    async with Console(busy_session()).run_test(size=SIZE) as pilot:
        for key, name in (("2", "/ Filter"), ("3", "s Subject")):
            await pilot.press(key)
            await shown(pilot, name)
            ids = [each.command.id for each in available_commands(pilot.app)]
            assert len(ids) == len(set(ids)) > 20


def test_keys_as_people_read_them() -> None:
    keys = display_keys("question_mark,ctrl+p,pagedown,escape,j")
    assert keys == ["?", "^p", "page down", "esc", "j"]


# Modes.


async def test_one_and_two_change_between_the_modes() -> None:
    async with Console(busy_session()).run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen), "episodes")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, EpisodeScreen), "an episode")
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen), "the list again")
        await pilot.press("1")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen), "live")
        await pilot.press("1")
        assert isinstance(pilot.app.screen, LiveScreen)


async def test_files_are_shown_as_a_list_at_once() -> None:
    async with Console(files_session()).run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen), "episodes")


async def test_live_catches_up_when_it_comes_back() -> None:
    session = busy_session()
    async with Console(session).run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen), "episodes")
        session.store.apply_events([live(ended(3, 4))])
        await pilot.press("1")
        await shown(pilot, "✓ success")


# Dialogs.


async def test_help_has_every_key_of_the_screen() -> None:
    async with Console(busy_session()).run_test(size=(120, 50)) as pilot:
        await shown(pilot, "task 3")
        await pilot.press("question_mark")
        await shown(pilot, "╭─ Help", "This screen", "run the selected environment once", "In lists", "esc closes")
        await pilot.press("G")
        await shown(pilot, "Signs", "wheel")
        await pilot.press("escape")
        await gone(pilot, "╭─ Help")


@pytest.mark.parametrize("place", ["live", "everywhere", "list"])
async def test_help_and_palette_know_all_commands(place: str) -> None:
    app = Console(busy_session())
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        known = {each.command.id for each in available_commands(app)}
        assert {command.id for command in COMMANDS if command.scope == place} <= known


async def test_the_palette_finds_and_runs_a_command() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "Welcome")
        await pilot.press("ctrl+p")
        await shown(pilot, "╭─ Commands", "run the selected environment once")
        await pilot.press(*"batt")
        await gone(pilot, "repeat the last run")
        await pilot.press("enter")
        await shown(pilot, "╭─ Battery")
        await pilot.press("escape", "colon", "down", "up", "ctrl+n", "enter")
        await shown(pilot, "╭─ Run")
        await pilot.press("escape", "colon", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen), "live")


async def test_a_click_chooses_in_the_palette_and_nothing_found_is_nothing_done() -> None:
    async with Console(empty_session()).run_test(size=SIZE) as pilot:
        await shown(pilot, "Welcome")
        await pilot.press("colon", *"xyzxyz", "enter")
        assert isinstance(pilot.app.screen, CommandPalette)
        await pilot.press("escape", "colon", *"help")
        await until(pilot, lambda: "Quit" not in screen_text(pilot.app).split("Commands")[1].split("╰")[0], "one")
        await pilot.click("#commands", offset=(10, 0), times=2)
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpDialog), "help")


def test_a_search_finds_all_words_names_first() -> None:
    app = Console(empty_session())
    every = [AvailableCommand(command, app) for command in COMMANDS]

    def found(text: str) -> list[Command]:
        return [each.command for each in search(every, text)]

    assert found("") == list(COMMANDS)
    assert found("run selected")[0].id == "run.selected"
    assert found("PAUSE")[0].id == "run.pause"
    assert found("no such thing") == []


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 50)])
async def test_no_line_of_help_is_cut(size: tuple[int, int]) -> None:
    app = Console(busy_session())
    async with app.run_test(size=size) as pilot:
        await shown(pilot, "task 3")
        await pilot.press("question_mark")
        await shown(pilot, "╭─ Help")
        lines = app.screen.query_one("#help", WrappedText)
        texts = ["".join(cell.text for cell in lines.source.line(row, 0)) for row in range(len(lines.source))]
        assert max(map(len, texts)) <= lines.size.width - LIST_MARGIN
        assert "control characters were made visible" in " ".join(" ".join(texts).split())


async def test_hex_shows_bytes_and_closes() -> None:
    app = Console(busy_session())
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        app.push_screen(HexDumpDialog("\x1b[2J" + "a" * 5000))
        await shown(pilot, "5,004 bytes", "first 4,096", "0000  1b 5b 32 4a 61", "aaaaaaaaaaaa  │")
        await pilot.press("G")
        await shown(pilot, "0ff0")
        await pilot.press("q")
        await gone(pilot, "5,004 bytes")


# Leaving.


async def test_q_leaves_at_once_when_nothing_runs() -> None:
    for session in (empty_session(), bus_session(), files_session()):
        app = Console(session)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            await pilot.press("q")
        assert app.return_code == 0
        assert session.closed.is_set()


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q", "q"])
@pytest.mark.parametrize(
    ("answer", "cancelled", "left"),
    [("s", True, True), ("l", False, True), ("escape", False, False), ("enter", False, True), ("q", False, False)],
)
async def test_leaving_asks_when_episodes_run(key: str, answer: str, cancelled: bool, left: bool) -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        await pilot.press(key)
        await shown(pilot, "Leave the console?", "1 episode running, 7 remaining", "3/10 Wordle running")
        await pilot.press(answer)
        await until(pilot, lambda: not app.is_running if left else isinstance(app.screen, LiveScreen), "an end")
    assert session.orders.orders == ([("cancel", batch_id(0), None)] if cancelled else [])
    assert session.orders.shutdowns == []


async def test_a_button_answers_too() -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        await pilot.press("q")
        await shown(pilot, "Leave the console?")
        await pilot.click("#stay")
        await gone(pilot, "Leave the console?")
        await pilot.press("q")
        await shown(pilot, "Leave the console?")
        await pilot.press("shift+tab", "enter")
        await until(pilot, lambda: not app.is_running, "the end")
    assert session.orders.orders == [("cancel", batch_id(0), None)]


async def test_a_battery_is_stopped_as_one_and_a_refusal_keeps_the_console() -> None:
    store = busy_store()
    store.apply_list(node_list(*[batch_state(n, "queued" if n else "running", battery_id="battery") for n in range(6)]))
    session = FakeSession(store)
    app = Console(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "task 3")
        session.orders.refusal = ControlRequestError("cancel: nobody answers", "press N")
        await pilot.press("q")
        await shown(pilot, "Leave the console?", "and 2 more")
        await pilot.press("s")
        await shown(pilot, "cancel: nobody answers", "press N")
        session.orders.refusal = None
        await pilot.press("q", "s")
        await until(pilot, lambda: not app.is_running, "the end")
    assert session.orders.orders == [("cancel", "battery", None)]


async def test_a_lost_node_is_left_without_a_question() -> None:
    for session in (error_session(), busy_session()):
        app = Console(session)
        async with app.run_test(size=SIZE) as pilot:
            await shown(pilot, "task 3")
            await pilot.press("q")
            if not session.store.all_nodes_lost:
                await shown(pilot, "1 episode running, 7 remaining")
                session.store.apply_events([live(progress(n_done=4, seq=1))])
                await shown(pilot, "6 in all")
                session.store.set_link(BusLink("disconnected"))
                session.store.mark_node_lost(NODE)
                await shown(pilot, "Nothing is running")
                await pilot.press("s")
            await until(pilot, lambda app=app: not app.is_running, "the end")  # type: ignore[misc]
        assert session.orders.orders == []


# The session.


async def test_the_session_is_followed_after_the_first_paint_and_closed_at_the_end() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SIZE) as pilot:
        await shown(pilot, "Welcome")
        async with asyncio.timeout(5):
            await session.running.wait()
        assert not session.closed.is_set()
    assert session.closed.is_set()
    assert session.store.on_change is None


async def test_a_session_that_fails_ends_the_console() -> None:
    session = empty_session()
    session.failure = ZeroDivisionError("a defect")
    with pytest.raises(ZeroDivisionError):
        async with Console(session).run_test(size=SIZE) as pilot:
            await until(pilot, lambda: not pilot.app.is_running, "the end")
    assert session.closed.is_set()


async def test_a_session_that_is_cancelled_by_nobody_ends_the_console() -> None:
    session = empty_session()
    session.failure = asyncio.CancelledError()
    with pytest.raises(RuntimeError, match="cancelled"):
        async with Console(session).run_test(size=SIZE) as pilot:
            await until(pilot, lambda: not pilot.app.is_running, "the end")
    assert session.closed.is_set()


async def test_n_starts_the_node_again() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "Welcome")
        await pilot.press("N")
        await until(pilot, lambda: session.n_starts == 1, "a start")
        session.orders.refusal = ControlRequestError("these are files")
        await pilot.press("N")
        await shown(pilot, "these are files")


async def test_changes_are_drawn_together_and_ten_times_a_second_at_most() -> None:
    session = busy_session()
    clock = FakeClock()
    app = Console(session, now=clock)
    drawn: list[int] = []
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        draw = screen.draw

        def draw_and_count(store: RunStore) -> None:
            drawn.append(store.version)
            draw(store)

        screen.draw = draw_and_count  # type: ignore[method-assign]
        clock.at += 1
        for n in range(50):
            session.store.set_link(BusLink("connected", address=f"b{n}"))
        await shown(pilot, "b49")
        assert len(drawn) == 1
        session.store.apply_events([live(heartbeat())])
        await pilot.pause()
        assert len(drawn) == 1


async def test_a_node_that_falls_silent_is_lost_without_anything_else_happening() -> None:
    clock = FakeClock()
    async with Console(busy_session(clock), now=clock).run_test(size=(120, 40)) as pilot:
        await shown(pilot, "task 3")
        clock.at += 6
        await shown(pilot, "✗ node lost")


async def test_what_changes_below_a_dialog_is_drawn() -> None:
    session = busy_session()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await shown(pilot, "127.0.0.1:4222")
        await pilot.press("question_mark")
        await shown(pilot, "╭─ Help")
        session.store.set_link(BusLink("connected", address="elsewhere"))
        await shown(pilot, "elsewhere")


@pytest.mark.parametrize("size", [SIZE, (120, 40), (60, 20), (200, 50)], ids=str)
async def test_every_screen_with_hostile_text(size: tuple[int, int]) -> None:
    session = FakeSession(hostile_store(), read_only="\x1b[2J[/]")
    session.title = "\x1b]0;x\x07[/]"
    async with Console(session).run_test(size=size, notifications=True) as pilot:
        await shown(pilot, "␛")
        for key in (
            "question_mark",
            "escape",
            "R",
            "escape",
            "b",
            "escape",
            "colon",
            "escape",
            "r",
            "x",
            "X",
            "escape",
        ):
            await pilot.press(key)
            text = screen_text(pilot.app)
            assert not {"\x1b", "\x9b", "\u202e", "\u200b", "\x00", "\ud800"} & set(text)


async def test_a_second_answer_to_a_dialog_that_has_gone_changes_nothing() -> None:
    session = busy_session()
    async with Console(session).run_test(size=SIZE) as pilot:
        await pilot.press("b")
        await until(pilot, lambda: isinstance(pilot.app.screen, BatteryPicker), "battery")
        battery = pilot.app.screen
        assert isinstance(battery, BatteryPicker)
        battery.leave()
        battery.leave()
        battery.query_one("#tiers", LineList).action_choose()
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen), "live")
        assert session.orders.started == []
