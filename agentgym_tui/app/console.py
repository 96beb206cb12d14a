"""The console application: its screens, and the commands available on every screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual.screen import Screen

from agentgym_tui.app.node_control import NodeControlApp
from agentgym_tui.commands.keymap import AvailableCommand, available_commands, bindings
from agentgym_tui.commands.registry import (
    APP_SCOPES,
    BUS,
    EPISODES_SCREEN,
    EVENTS_SCREEN,
    LIVE_SCREEN,
    LOGS_SCREEN,
    RESULTS_SCREEN,
    SCREENS,
    ScreenSpec,
)
from agentgym_tui.config.settings import Settings, problem_summary
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.screens.base import ConsoleScreen, ScreenContext
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.sessions.run_commands import has_unfinished
from agentgym_tui.textual_compat import add_bindings, start_in_mode
from agentgym_tui.widgets.line_renderer import TONE_CLASSES, LineRenderer
from agentgym_tui.widgets.split import resize_focused, zoom_focused

if TYPE_CHECKING:
    from agentgym_tui.screens.episode.screen import EpisodeScreen
    from agentgym_tui.screens.episodes.screen import EpisodesScreen
    from agentgym_tui.screens.runs.summary import RunSummaryScreen
    from runner.query.fields import Field

STYLES: Final[list[str | PurePath]] = ["../styles/widgets.tcss", "../styles/app.tcss"]


class Console(NodeControlApp, inherit_bindings=False):
    """The application that shows a session.

    Args:
        session: the session; opened after the first paint and closed when the app ends.
        settings: the user's settings.
        ui_state: the UI state that the last run saved; updated in place.
        now: returns the time of a monotonic clock in seconds.
    """

    TITLE = "AgentGym"
    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        session: Session,
        settings: Settings | None = None,
        ui_state: UiState | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first_screen(session)
        start_in_mode(self, self._first.id)
        super().__init__(session, settings or Settings(), now, [*STYLES, f"../styles/{self._first.styles}"])
        self.ui_state = ui_state or UiState()
        self.keys = self.settings.keys
        self.theme = self.settings.theme
        for scope in APP_SCOPES:
            add_bindings(self, bindings(scope))
        self.set_keymap(dict(self.keys.overrides))
        for screen in SCREENS:
            if screen is not self._first:
                self.add_mode(screen.id, partial(self._make_screen, screen))

    def get_default_screen(self) -> Screen[None]:
        return self._make_screen(self._first)

    def on_mount(self) -> None:
        self.add_mode(self._first.id, self.get_default_screen)
        last = SCREENS.get(self.ui_state.screen)
        is_watching = self._first is LIVE_SCREEN and bool(self.session.read_only)
        if is_watching and last is not None and last.available.is_met(self.session):
            self._show_mode(last.id)
        if problems := self.settings.problems:
            toast(self, problem_summary(problems), failed=True)

    async def on_unmount(self) -> None:
        if self.session.control is not None:
            self.ui_state.screen = self.current_mode

    def action_show_screen(self, screen: str) -> None:
        """Show the screen with the id ``screen``, or why this session does not have it."""
        requirement = SCREENS[screen].available
        if requirement.is_met(self.session) and requirement.prepare(self.session):
            self._show_mode(screen)
        else:
            toast(self, requirement.reason(self.session))

    async def on_episode_screen_events_requested(self, event: EpisodeScreen.EventsRequested) -> None:
        """Show the bus messages of one episode."""
        from agentgym_tui.screens.events.screen import EventsScreen

        if not BUS.is_met(self.session):
            toast(self, BUS.reason(self.session))
            return
        if isinstance(screen := await self._switch_to(EVENTS_SCREEN), EventsScreen):
            screen.show_episode(event.episode_id)

    async def on_episodes_screen_log_requested(self, event: EpisodesScreen.LogRequested) -> None:
        """Show a log of an opened folder."""
        from agentgym_tui.screens.logs.screen import LogScreen

        if isinstance(screen := await self._switch_to(LOGS_SCREEN), LogScreen):
            screen.show_path(event.path)

    async def on_run_summary_screen_results_requested(self, event: RunSummaryScreen.ResultsRequested) -> None:
        """Show the results of one run."""
        from agentgym_tui.screens.results.screen import ResultsScreen

        if isinstance(screen := await self._switch_to(RESULTS_SCREEN), ResultsScreen):
            screen.show_run(event.run_id)

    async def on_console_screen_episodes_requested(self, event: ConsoleScreen.EpisodesRequested) -> None:
        """Show the list of episodes with a filter."""
        from agentgym_tui.screens.episodes.screen import EpisodesScreen

        if isinstance(screen := await self._switch_to(EPISODES_SCREEN), EpisodesScreen):
            screen.set_filter(event.words)

    def action_leave(self) -> None:
        """Quit; first show the quit dialog if quitting affects running episodes."""
        from agentgym_tui.screens.dialogs.node import QuitDialog

        if has_unfinished(self.session):
            self.push_screen(QuitDialog(self.session.store), self._quit_answered)
        else:
            self.exit()

    def _query_fields(self) -> list[Field]:
        return self.screen.query_fields() if isinstance(self.screen, ConsoleScreen) else []

    def action_help(self) -> None:
        """Show the help dialog with all keys."""
        from agentgym_tui.screens.dialogs.help import HelpDialog

        self.push_screen(HelpDialog(self._available_commands(), self._query_fields()))

    def action_command_palette(self) -> None:
        from agentgym_tui.screens.dialogs.help import CommandPalette

        self.push_screen(CommandPalette(self._available_commands()), self._run_chosen)

    def action_zoom(self) -> None:
        """Show the focused pane alone, or all panes again."""
        if self._screen_accepts_keys:
            zoom_focused(self.screen)

    def action_resize(self, direction: str) -> None:
        """Resize the focused pane in ``direction``."""
        if self._screen_accepts_keys and not resize_focused(self.screen, direction):
            toast(self, "this pane cannot be resized")

    def action_messages(self) -> None:
        """Show the newest messages in full, in place of the toast."""
        from agentgym_tui.screens.dialogs.texts import MessagesDialog

        self.clear_notifications()
        self.push_screen(MessagesDialog())

    async def action_picture(self) -> None:
        """Save a screenshot to the working directory."""
        from agentgym_tui.services.export import save_screenshot

        await save_screenshot(self)

    def action_hex(self) -> None:
        """Show a hex dump of the selected text."""
        from agentgym_tui.screens.dialogs.texts import HexDumpDialog

        views: list[object] = [self.focused, *self.screen.query(LineRenderer)] if self._screen_accepts_keys else []
        texts = (view.unsafe_text() for view in views if isinstance(view, LineRenderer) and view.is_on_screen)
        text = next(filter(None, texts), None)
        if text is None:
            toast(self, "no unsafe bytes on this screen")
        else:
            self.push_screen(HexDumpDialog(text))

    def _available_commands(self) -> list[AvailableCommand]:
        return available_commands(self, self.session)

    async def _switch_to(self, screen: ScreenSpec) -> Screen[Any]:
        """Show a screen without those that were opened from it, and return it."""
        await self.switch_mode(screen.id)
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        return self.screen

    def _show_mode(self, mode: str) -> None:
        if self.current_mode == mode:
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)

    async def _run_chosen(self, chosen: AvailableCommand | None) -> None:
        if chosen is not None:
            await self.run_action(chosen.command.action, chosen.node)

    async def _quit_answered(self, answer: str | None) -> None:
        if answer == "stop" and has_unfinished(self.session):
            answer = None if await self.report_failure(self.commands.command_all("cancel")) else "leave"
        if answer in ("leave", "stop"):
            self.exit()

    def _make_screen(self, screen: ScreenSpec) -> Screen[None]:
        return screen.factory(ScreenContext(self.session, self.ui_state, self._now, self.commands))


def first_screen(session: Session) -> ScreenSpec:
    """Return the screen to show first; mounting another one first would delay it."""
    if session.logs:
        return LOGS_SCREEN
    return EPISODES_SCREEN if session.control is None else LIVE_SCREEN
