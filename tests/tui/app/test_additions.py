"""A screen, a pane, a view of an episode and a command, each added from outside the package through its registry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.app import ComposeResult

from agentgym_tui.app import Console
from agentgym_tui.commands import BUS, COMMANDS, SCREENS, Command, Keymap, Registry, ScreenSpec, bindings
from agentgym_tui.config import Settings, UiState, resolve_keymap
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.screens.base import ScreenContext, SessionScreen
from agentgym_tui.screens.episode_views import EPISODE_VIEWS, EpisodeContent, EpisodeView, ShownEpisode
from agentgym_tui.screens.live import LIVE_PANES, LivePane, LivePanes, LiveScreen, PaneSpec
from agentgym_tui.services import toast
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines
from tests.support.console.fake_session import FakeSession, busy_session, files_session
from tests.support.console.pilot import SMALL, console_app, toast_text, wait_for_text, wait_for_widget_text, wait_until


class NotesScreen(SessionScreen):
    SCOPE = "notes"

    def compose(self) -> ComposeResult:
        yield StaticLines(lambda width: [[Cell(f"notes on {len(self.session.store.nodes)} node")]], id="notes")
        yield LineList(FixedLines(()))
        yield KeyBar(self.SCOPE, self.session)

    def action_add(self) -> None:
        toast(self.app, "note added")


class CountPane(LivePane):
    """The number of steps of the watched episode."""

    def __init__(self, ui_state: UiState) -> None:
        super().__init__(LineList(id="count"))

    def title(self, live: LivePanes, width: int) -> Line:
        return [Cell("Count", "head")]

    def version(self, live: LivePanes) -> object:
        return live.episode and len(live.episode.steps)

    def update(self, live: LivePanes) -> None:
        n_steps = len(live.episode.steps) if live.episode else 0
        self.view.show(FixedLines([[Cell(f"counted {n_steps} steps")]]))


class RawEnvironment(EpisodeContent):
    """The name of the episode's environment."""

    def __init__(self, id: str) -> None:
        super().__init__(LineList(id=id))

    def show(self, shown: ShownEpisode) -> None:
        self.widget.show(FixedLines([[Cell(f"played {self.text(shown, raw=False)}")]]))

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return shown.loaded.episode.env if shown.loaded else ""


NOTES = ScreenSpec("notes", "9", "Notes", NotesScreen, BUS, "what was noted")
ADD = Command("notes.add", "a", "Add", "add", "notes", "add a note")
GREET = Command("live.greet", "i", "Greet", "greet", "live", "say hello")
VIEW_KEY = Command("episode.environment", "f8", "Environment", "tab('environment')", "episode", "only its name")
PANE = PaneSpec("count", "right", CountPane, takes_turns=True)
VIEW = EpisodeView("environment", "Environment", VIEW_KEY.id, RawEnvironment)


@pytest.fixture
def additions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register everything, as a package of its own would when it is imported."""
    for registry in (SCREENS, LIVE_PANES, EPISODE_VIEWS, COMMANDS):
        monkeypatch.setattr(registry, "_entries", {each.id: each for each in registry})
    SCREENS.add(NOTES)
    LIVE_PANES.add(PANE)
    EPISODE_VIEWS.add(VIEW)
    for command in (NOTES.command, ADD, GREET, VIEW_KEY):
        COMMANDS.add(command)
    monkeypatch.setattr(LiveScreen, "action_greet", lambda self: toast(self.app, "hello"), raising=False)


@pytest.mark.usefixtures("additions")
async def test_an_added_screen_has_a_key_in_the_key_bar_the_help_and_the_palette() -> None:
    ui_state = UiState()
    async with console_app(busy_session(), ui_state=ui_state).run_test(size=(200, 50), notifications=True) as pilot:
        await pilot.press("5")
        await wait_for_widget_text(pilot, "KeyBar", "9 Notes")
        await pilot.press("9")
        await wait_for_text(pilot, "notes on 1 node", "a Add")
        await pilot.press("a")
        await wait_until(pilot, lambda: toast_text(pilot) == "note added", "the action")
        await pilot.press("question_mark", "G")
        await wait_for_text(pilot, "what was noted")
        await pilot.press("g")
        await wait_for_text(pilot, "add a note")
        await pilot.press("escape", "1", "colon", *"noted", "enter")
        await wait_for_text(pilot, "notes on 1 node")
    assert ui_state.screen == "notes"
    watching = busy_session()
    watching.read_only = "watching only"
    async with console_app(watching, ui_state=ui_state).run_test(size=SMALL) as pilot:
        await wait_for_text(pilot, "notes on 1 node")


@pytest.mark.usefixtures("additions")
async def test_an_added_screen_follows_the_keymap_and_what_the_session_has() -> None:
    assert resolve_keymap({"notes.add": "j"})[1] == ["keymap: notes.add: j is already the key of list.down"]
    settings = Settings(keys=Keymap({"app.notes": "0", "notes.add": "B"}))
    async with console_app(busy_session(), settings).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("9", "0", "B")
        await wait_until(pilot, lambda: toast_text(pilot) == "note added", "the action")
    async with console_app(files_session()).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "3 episodes")
        await pilot.press("9")
        await wait_until(pilot, lambda: "files have no bus" in toast_text(pilot), "the reason")


@pytest.mark.usefixtures("additions")
async def test_an_added_pane_is_drawn_takes_its_turn_and_is_zoomed_and_an_added_command_runs() -> None:
    async with console_app(busy_session()).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        for width, height in (SMALL, (120, 40)):
            await pilot.resize_terminal(width, height)
            await pilot.press("v", "v", "v")
            await wait_for_text(pilot, "Count", "counted 2 steps")
            await pilot.press("z")
            count = pilot.app.screen.query_one("#count")
            await wait_until(pilot, lambda: width >= count.size.width > width - 5, "the zoomed pane")  # noqa: B023
            await pilot.press("z", "v")
            await wait_for_text(pilot, "Transcript")
        await pilot.press("i")
        await wait_until(pilot, lambda: toast_text(pilot) == "hello", "the action")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "say hello")


@pytest.mark.usefixtures("additions")
async def test_an_added_view_of_an_episode_is_a_tab_with_a_key_and_is_copied() -> None:
    async with console_app(files_session()).run_test(size=(120, 40), notifications=True) as pilot:
        await wait_for_text(pilot, "3 episodes")
        await pilot.press("enter")
        await wait_for_text(pilot, "○ Environment f8")
        await pilot.press("f8")
        await wait_for_text(pilot, "● Environment f8", "played Wordle")
        await pilot.press("y")
        await wait_until(pilot, lambda: pilot.app.clipboard == "Wordle", "the copied text")


def test_an_id_can_be_registered_once() -> None:
    with pytest.raises(ValueError, match="'live' is in use"):
        SCREENS.add(NOTES._replace(id="live"))
    with pytest.raises(ValueError, match="in use"):
        Registry(ADD, ADD._replace(title="Another"))
    with pytest.raises(ValueError, match="no command has the scope 'evnts'"):
        bindings("evnts")


@pytest.mark.parametrize("make_session", [busy_session, files_session])
async def test_each_screen_is_made_by_its_factory(make_session: Callable[[], FakeSession]) -> None:
    session = make_session()
    for screen in SCREENS:
        if screen.available.is_met(session):
            made = screen.factory(ScreenContext(session))
            assert isinstance(made, SessionScreen) and made.session is session
    assert [screen.id for screen in SCREENS] == [
        "live",
        "episodes",
        "events",
        "logs",
        "machine",
        "runs",
        "results",
        "fleet",
    ]
    async with Console(session).run_test() as pilot:
        assert isinstance(pilot.app.screen, SessionScreen)
