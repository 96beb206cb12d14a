"""Each key of each command, pressed once, does what its command says: a table, in which none may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from agentgym_tui.app.console import Console
from agentgym_tui.commands.keymap import COMMANDS, Scope
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.widgets.form_controls import CheckList, OptionStepper
from agentgym_tui.widgets.line_list import LineList
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import FakeSession, busy_session, files_session, session_with_messages
from tests.support.console.log_consoles import log_lines
from tests.support.console.pilot import console_app, screen_text, wait_for_text, wait_until
from tests.support.console.samples import HOSTILE, batch_state, live, node_list, row, started

Look: TypeAlias = Callable[[Console], object]


class Step(NamedTuple):
    """A key, what is looked at, and what is seen there once it was pressed: something else than before, or this."""

    command: str
    key: str
    look: Look
    wanted: object = ...


@dataclass(frozen=True)
class Walk:
    """Keys on one screen, after some that lead there."""

    session: Callable[[], FakeSession]
    see: str
    steps: Sequence[Step]
    way: tuple[str, ...] = ()
    size: tuple[int, int] = (112, 32)


def says(text: str) -> Look:
    return lambda app: text in screen_text(app)


def screen(app: Console) -> str:
    return type(app.screen).__name__


def focus(app: Console) -> str | None:
    return None if app.focused is None else app.focused.id


def orders(app: Console) -> int:
    assert isinstance(app.session, FakeSession)
    return len(app.session.fake_control.commands) + len(app.session.fake_control.started)


def ordered(app: Console) -> tuple[int, str]:
    return orders(app), screen(app)


def starts(app: Console) -> int:
    assert isinstance(app.session, FakeSession)
    return app.session.n_starts


def clipboard(app: Console) -> str:
    return app.clipboard


def sizes(app: Console) -> dict[str, int]:
    return dict(app.ui_state.sizes)


def order(app: Console) -> object:
    return dict(app.ui_state.sorting)


def over(app: Console) -> bool:
    return app._exit  # that it is to end has no public name


def cursor(selector: str) -> Look:
    return lambda app: app.screen.query_one(selector, LineList).cursor


def left(selector: str) -> Look:
    return lambda app: app.screen.query_one(selector, LineList)._left


def chosen(app: Console) -> set[int]:
    return set(app.screen.query_one(CheckList).chosen)


def agent(app: Console) -> int:
    return app.screen.query_one("#agent", OptionStepper).index


def playing() -> FakeSession:
    """A battery of which one environment is played, two episodes at once."""
    session = busy_session()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", n_planned=0)]
    session.store.apply_list(node_list(*battery))
    session.store.agents.append("react")
    session.store.apply_events([live(started(4, battery_id="battery"))])
    return session


def many_files() -> FakeSession:
    return files_session(60)


def changing_files() -> FakeSession:
    """There is another one at each look."""
    session = files_session(60)
    rows = session.fake_library.rows

    def more() -> object:
        session.fake_library.stored.append(row(len(session.fake_library.stored)))
        return rows()

    session.fake_library.rows = more  # type: ignore[method-assign,assignment]
    return session


class OpenedLog(LogFile):
    """Counts how often it was opened again."""

    n_openings = 0

    def reopen(self) -> None:
        self.n_openings += 1
        super().reopen()


def openings(app: Console) -> int:
    return sum(log.n_openings for log in app.session.logs if isinstance(log, OpenedLog))


def logs() -> FakeSession:
    """Two of them, in the folder where the test is."""
    session = files_session()
    for name in ("one", "two"):
        Path(f"{name}.jsonl").write_bytes(log_lines(50))
    session.logs = [OpenedLog(Path(f"{name}.jsonl").resolve()) for name in ("one", "two")]
    return session


def hostile() -> FakeSession:
    session = session_with_messages()
    session.fake_events.initial = [RawMessage("x", {}, HOSTILE.encode("utf-8", "replace"))]
    return session


def wide() -> FakeSession:
    session = session_with_messages(*["orders.eu"] * 3, *["bills"] * 2)
    session.fake_events.initial.append(RawMessage("wide", {}, b'{"episode_id": "' + b"x" * 600 + b'"}'))
    return session


HELP, PALETTE = says("╭─ Help"), says("╭─ Commands")
WALKS = {
    "everywhere": Walk(
        playing,
        "task 4",
        [
            Step("app.help", "question_mark", HELP, True),
            Step("dialog.close", "escape", HELP, False),
            Step("app.help", "question_mark", HELP, True),
            Step("dialog.close", "q", HELP, False),
            Step("app.palette", "colon", PALETTE, True),
            Step("palette.down", "down", cursor("#commands"), 1),
            Step("palette.down", "ctrl+n", cursor("#commands"), 2),
            Step("palette.up", "up", cursor("#commands"), 1),
            Step("palette.up", "ctrl+p", cursor("#commands"), 0),
            Step("palette.close", "escape", PALETTE, False),
            Step("app.palette", "ctrl+p", PALETTE, True),
            Step("palette.close", "escape", PALETTE, False),
            Step("app.episodes", "2", screen, "EpisodesScreen"),
            Step("app.events", "3", screen, "EventsScreen"),
            Step("app.live", "1", screen, "LiveScreen"),
            Step("app.zoom", "z", says("Transcript"), False),
            Step("app.zoom", "z", says("Transcript"), True),
            Step("pane.narrower", "less_than_sign", sizes),
            Step("pane.wider", "greater_than_sign", sizes),
            Step("pane.lower", "minus", sizes),
            Step("pane.higher", "plus", sizes),
            Step("pane.reset", "equals_sign", sizes, {}),
            Step("table.sort", "o", order),
            Step("table.reverse", "O", order),
            Step("app.screenshot", "ctrl+s", says("screenshot written to"), True),
            Step("node.start", "N", starts, 1),
        ],
    ),
    "quit": Walk(
        playing,
        "task 4",
        [
            Step("app.quit", "q", screen, "QuitDialog"),
            Step("quit.stay", "escape", screen, "LiveScreen"),
            Step("app.quit", "ctrl+q", screen, "QuitDialog"),
            Step("quit.stay", "q", screen, "LiveScreen"),
            Step("app.quit", "ctrl+c", screen, "QuitDialog"),
            Step("quit.leave", "l", over, True),
        ],
    ),
    "stop": Walk(playing, "task 4", [Step("app.quit", "q", screen, "QuitDialog"), Step("quit.stop", "s", orders)]),
    "live": Walk(
        playing,
        "task 4",
        [
            Step("run.selected", "r", orders, 1),
            Step("run.repeat", "full_stop", orders, 2),
            Step("run.pause", "space", orders, 3),
            Step("run.step", "s", orders, 4),
            Step("run.battery", "b", says("╭─ Battery"), True),
            Step("dialog.close", "escape", says("╭─ Battery"), False),
            Step("run.cancel", "x", screen, "CancelDialog"),
            Step("cancel.nothing", "escape", screen, "LiveScreen"),
            Step("run.cancel", "x", screen, "CancelDialog"),
            Step("cancel.nothing", "q", screen, "LiveScreen"),
            Step("run.cancel", "x", screen, "CancelDialog"),
            Step("cancel.batch", "x", ordered, (5, "LiveScreen")),
            Step("run.cancel", "x", screen, "CancelDialog"),
            Step("cancel.battery", "b", ordered, (6, "LiveScreen")),
            Step("live.next", "right_square_bracket", says("task 3"), True),
            Step("live.previous", "left_square_bracket", says("task 4"), True),
            Step("live.view", "v", focus, "trace"),
            Step("live.view", "v", focus, "rewards"),
            Step("live.open", "enter", screen, "EpisodeScreen"),
            Step("episode.back", "escape", screen, "LiveScreen"),
            Step("live.events", "a", screen, "EventsScreen"),
        ],
    ),
    "form": Walk(
        playing,
        "task 4",
        [
            Step("run.form", "R", screen, "RunForm"),
            Step("checks.toggle", "space", chosen),
            Step("checks.all", "a", chosen),
            Step("form.close", "escape", screen, "LiveScreen"),
            Step("list.choose", "enter", screen, "RunForm"),
            Step("form.start", "enter", ordered, (1, "LiveScreen")),
            Step("run.form", "R", screen, "RunForm"),
            Step("form.next", "tab", focus, "agent"),
            Step("choice.right", "right", agent),
            Step("choice.left", "left", agent),
            Step("choice.right", "l", agent),
            Step("choice.left", "h", agent),
            Step("choice.right", "space", agent),
            Step("choice.left", "left", agent),
            Step("form.next", "down", focus, "model"),
            Step("form.previous", "up", focus, "agent"),
            Step("form.start", "ctrl+s", ordered, (2, "LiveScreen")),
        ],
    ),
    "episodes": Walk(
        many_files,
        "60 episodes",
        [
            Step("list.down", "j", cursor("#episodes"), 1),
            Step("list.down", "down", cursor("#episodes"), 2),
            Step("list.up", "k", cursor("#episodes"), 1),
            Step("list.up", "up", cursor("#episodes"), 0),
            Step("list.page_down", "ctrl+d", cursor("#episodes")),
            Step("list.page_up", "ctrl+u", cursor("#episodes"), 0),
            Step("list.page_down", "pagedown", cursor("#episodes")),
            Step("list.page_up", "pageup", cursor("#episodes"), 0),
            Step("list.bottom", "G", cursor("#episodes"), 59),
            Step("list.top", "g", cursor("#episodes"), 0),
            Step("list.bottom", "end", cursor("#episodes"), 59),
            Step("list.top", "home", cursor("#episodes"), 0),
            Step("episodes.filter", "slash", focus, "filter"),
            Step("filter.leave", "down", focus, "episodes"),
            Step("episodes.filter", "slash", focus, "filter"),
            Step("filter.leave", "tab", focus, "episodes"),
            Step("episodes.filter", "slash", focus, "filter"),
            Step("", "7", says("match 7"), True),
            Step("filter.leave", "enter", focus, "episodes"),
            Step("episodes.clear", "escape", says("match 7"), False),
            Step("episodes.filter", "slash", focus, "filter"),
            Step("filter.clear", "escape", focus, "episodes"),
            Step("episodes.open", "enter", screen, "EpisodeScreen"),
            Step("episode.next", "n", says("2 of 60"), True),
            Step("episode.previous", "p", says("1 of 60"), True),
            Step("episode.trace", "w", says("● Trace"), True),
            Step("episode.json", "J", says("● JSON"), True),
            Step("episode.copy", "y", clipboard),
            Step("episode.transcript", "t", says("● Transcript"), True),
            Step("episode.copy_raw", "Y", clipboard),
            Step("episode.export", "e", says("export"), True),
            Step("episode.back", "escape", screen, "EpisodesScreen"),
        ],
    ),
    "reload": Walk(
        changing_files, "61 episodes", [Step("episodes.reload", "ctrl+r", says("62 episodes"), True)], size=(80, 24)
    ),
    "bytes": Walk(hostile, "⚠", [Step("text.hex", "X", screen, "HexDumpDialog")], ("3",)),
    "log": Walk(
        logs,
        '"number": 0',
        [
            Step("log.view", "v", says("● Raw"), True),
            Step("log.copy", "y", clipboard),
            Step("", "j", cursor("#lines"), 1),
            Step("log.copy_raw", "Y", clipboard),
            Step("log.go_to", "J", focus, "entry"),
            Step("entry.leave", "escape", focus, "lines"),
            Step("log.filter", "slash", focus, "filter"),
            Step("", "7", says("· 10 match"), True),
            Step("filter.leave", "enter", focus, "lines"),
            Step("log.clear", "escape", says("· 10 match"), False),
            Step("log.next", "n", says("two.jsonl"), True),
            Step("log.previous", "p", says("one.jsonl"), True),
            Step("log.reload", "ctrl+r", openings, 1),
            Step("app.episodes", "2", screen, "EpisodesScreen"),
            Step("app.logs", "4", screen, "LogScreen"),
        ],
        ("4",),
    ),
    "events of an episode": Walk(
        playing,
        "task 4",
        [
            Step("", "v", focus, "trace"),
            Step("", "v", focus, "rewards"),
            Step("", "enter", screen, "EpisodeScreen"),
            Step("episode.events", "a", screen, "EventsScreen"),
        ],
    ),
    "events": Walk(
        wide,
        "bills",
        [
            Step("events.pause", "space", says("‖ paused"), True),
            Step("events.pause", "space", says("● live"), True),
            Step("events.copy", "y", clipboard),
            Step("events.view", "v", says("● Raw"), True),
            Step("events.copy_raw", "Y", clipboard),
            Step("", "enter", focus, "payload"),
            Step("list.right", "l", left("#payload"), 8),
            Step("list.right", "right", left("#payload"), 16),
            Step("list.left", "h", left("#payload"), 8),
            Step("list.left", "left", left("#payload"), 0),
            Step("events.tree", "t", focus, "subjects"),
            Step("", "j", cursor("#subjects"), 1),
            Step("events.fold", "c", says("▹ orders (1)"), True),
            Step("events.tree", "t", focus, "messages"),
            Step("events.filter", "slash", focus, "filter"),
            Step("filter.clear", "escape", focus, "messages"),
            Step("events.episode", "a", says("episode xxxx"), True),
            Step("events.go_to", "J", focus, "entry"),
            Step("entry.leave", "escape", focus, "messages"),
            Step("events.subject", "s", focus, "entry"),
            Step("", "x", says("sx"), False),
            Step("entry.take", "enter", focus, "messages"),
            Step("events.clear", "escape", says("episode xxxx"), False),
        ],
        ("3",),
    ),
}


@pytest.mark.parametrize("name", WALKS)
async def test_what_is_pressed_is_done(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    walk = WALKS[name]
    app = console_app(walk.session(), ui_state=UiState())
    async with app.run_test(size=walk.size, notifications=True) as pilot:
        await wait_until(pilot, lambda: app.focused is not None, "a screen")
        await pilot.press(*walk.way)
        await wait_for_text(pilot, walk.see)
        for step in walk.steps:
            await wait_until(
                pilot, lambda: isinstance(app.screen, ConsoleScreen) and app.screen.accepts_keys, f"a screen for {step}"
            )
            before = step.look(app)
            await pilot.press(step.key)
            if step.wanted is ...:
                await wait_until(pilot, lambda: step.look(app) != before, f"{step}, not {before!r}")  # noqa: B023
            else:
                await wait_until(pilot, lambda: step.look(app) == step.wanted, str(step))  # noqa: B023
    for log in app.session.logs:
        log.close()


def test_no_key_of_a_command_is_missing() -> None:
    pressed = {(step.command, step.key) for walk in WALKS.values() for step in walk.steps}
    there_are = {(command.id, key) for command in COMMANDS for key in command.keys.split(",")}
    assert there_are - pressed == set()


@pytest.mark.parametrize("place", ["live", "episodes", "episode", "events", "log"])
def test_no_key_has_two_meanings_on_a_screen(place: Scope) -> None:
    here = [command for command in COMMANDS if command.scope in (place, "everywhere", "list", "table")]
    keys = [key for command in here for key in command.keys.split(",")]
    assert {key for key in keys if keys.count(key) > 1} <= {
        "enter"
    }  # a list leaves it to its screen, or is the screen's
