"""The console application: its modes, the commands available on every screen, and variants by first screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import BindingType
from textual.screen import Screen
from textual.types import CSSPathType

from agentgym_tui.app.refresh import RefreshingApp
from agentgym_tui.commands.availability import AvailableCommand, available_commands, hidden_commands
from agentgym_tui.commands.keymap import bindings
from agentgym_tui.config.settings import Settings, problem_summary
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.safe_text import trusted
from agentgym_tui.screens.base import ConsoleScreen, HasUnsafeText
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import control_error_text
from agentgym_tui.widgets.line_renderer import TONE_CLASSES
from agentgym_tui.widgets.split import resize_focused, zoom_focused

if TYPE_CHECKING:
    from agentgym_tui.screens.episode.screen import EpisodeScreen

STYLES: Final[list[str | PurePath]] = ["../styles/widgets.tcss", "../styles/app.tcss"]
NO_LOGS: Final = trusted("no log is open: use `agentgym-tui open FILE.jsonl`")
NO_BUS: Final = trusted("files have no bus: use `agentgym-tui launch` or `agentgym-tui watch`")


class Console(RefreshingApp, inherit_bindings=False):
    """The application that shows a session.

    Args:
        session: the session; opened after the first paint and closed when the app ends.
        settings: the user's settings.
        ui_state: the UI state that the last run saved; updated in place.
        now: returns the time of a monotonic clock in seconds.
    """

    TITLE = "AgentGym"
    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/live.tcss"]
    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("everywhere")]
    ENABLE_COMMAND_PALETTE = False
    DEFAULT_MODE = "live"

    def __init__(
        self,
        session: Session,
        settings: Settings | None = None,
        ui_state: UiState | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(session, settings or Settings(), now)
        self.ui_state = ui_state or UiState()
        self.keys = self.settings.keys
        self.theme = self.settings.theme
        self.set_keymap(dict(self.keys.overrides))
        self._now = now
        self._screen_factories = {
            "live": self._live,
            "episodes": self._episodes,
            "events": self._events,
            "logs": self._logs,
        }
        for mode in self._screen_factories.keys() - {self.DEFAULT_MODE}:
            self.add_mode(mode, self._screen_factories[mode])

    def get_default_screen(self) -> Screen[None]:
        """Return the first screen. It is not a registered mode, because Textual would then parse all styles twice."""
        return self._screen_factories[self.DEFAULT_MODE]()

    def on_mount(self) -> None:
        """Switch to the screen that the last run showed at its end, and report invalid settings."""
        self.add_mode(self.DEFAULT_MODE, self.get_default_screen)
        first = "episodes" if self.session.control is None else self.ui_state.screen
        available = {"episodes"} | ({"events"} if self.session.events is not None else set())
        if self.DEFAULT_MODE == "live" and first in available:
            self.switch_mode(first)
        if problems := self.settings.problems:
            toast(self, problem_summary(problems), failed=True)

    async def on_unmount(self) -> None:
        """Save which screen was shown last."""
        if self.session.control is not None:
            self.ui_state.screen = self.current_mode

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        # Textual runs a binding only after every ancestor of the focus has seen the key; a later key could overtake it
        if await super()._check_bindings(key, priority):
            return True
        typing = self.focused is not None and self.focused.check_consume_key("a", "a")
        return priority and not typing and await super()._check_bindings(key)

    def action_show_live(self) -> None:
        """Show the live screen."""
        self._show_mode("live")

    def action_show_episodes(self) -> None:
        """Show the list of episodes."""
        self._show_mode("episodes")

    def action_show_events(self) -> None:
        """Show the bus messages."""
        if self.session.events is None:
            toast(self, NO_BUS)
        else:
            self._show_mode("events")

    def action_show_logs(self) -> None:
        """Show the opened logs."""
        if self.session.logs:
            self._show_mode("logs")
        else:
            toast(self, NO_LOGS)

    async def on_episode_screen_events_requested(self, event: EpisodeScreen.EventsRequested) -> None:
        """Show the bus messages of one episode."""
        from agentgym_tui.screens.events.screen import EventsScreen

        if self.session.events is None:
            toast(self, NO_BUS)
            return
        await self.switch_mode("events")
        if isinstance(self.screen, EventsScreen):
            self.screen.show_episode(event.episode_id)

    def action_leave(self) -> None:
        """Quit; first show the quit dialog if quitting affects running episodes."""
        from agentgym_tui.screens.dialogs.quit import QuitDialog, stays_behind

        if stays_behind(self.session):
            self.push_screen(QuitDialog(self.session), self._quit_answered)
        else:
            self.exit()

    def action_help(self) -> None:
        """Show the help dialog with all keys."""
        from agentgym_tui.screens.dialogs.help import HelpDialog

        self.push_screen(HelpDialog(self._available_commands()))

    def action_command_palette(self) -> None:
        """Open the command palette."""
        from agentgym_tui.screens.dialogs.command_palette import CommandPalette, run_chosen

        self.push_screen(CommandPalette(self._available_commands()), run_chosen(self))

    def action_zoom(self) -> None:
        """Show the focused pane alone, or all panes again."""
        if self._screen_accepts_keys:
            zoom_focused(self.screen)

    def action_resize(self, direction: str) -> None:
        """Resize the focused pane in ``direction``."""
        if self._screen_accepts_keys and not resize_focused(self.screen, direction):
            toast(self, trusted("this pane cannot be resized"))

    async def action_picture(self) -> None:
        """Save a screenshot to the working directory."""
        from agentgym_tui.services.export import save_screenshot

        await save_screenshot(self)

    def action_hex(self) -> None:
        """Show a hex dump of the selected text."""
        from agentgym_tui.screens.dialogs.hex_dump import HexDumpDialog

        holders: list[object] = [self.screen, self.focused] if self._screen_accepts_keys else []
        texts = [holder.unsafe_text() for holder in holders if isinstance(holder, HasUnsafeText)]
        text = next(filter(None, texts), None)
        if text is None:
            toast(self, trusted("no unsafe bytes in the selection"))
        else:
            self.push_screen(HexDumpDialog(text))

    async def action_start_node(self) -> None:
        """Start the node again."""
        try:
            await self.session.start_node()
        except ControlRequestError as exc:
            toast(self, control_error_text(exc), failed=True)

    @property
    def _screen_accepts_keys(self) -> bool:
        return isinstance(self.screen, ConsoleScreen) and self.screen.accepts_keys

    def _available_commands(self) -> list[AvailableCommand]:
        return available_commands(self, without=hidden_commands(self.session))

    def _show_mode(self, mode: str) -> None:
        if self.current_mode == mode:
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)

    async def _quit_answered(self, answer: str | None) -> None:
        from agentgym_tui.screens.dialogs.quit import stop_all

        if answer == "stop":
            try:
                await stop_all(self.session)
            except ControlRequestError as exc:
                toast(self, control_error_text(exc), failed=True)
                return
        if answer in ("stop", "leave"):
            self.exit()

    def _live(self) -> Screen[None]:
        from agentgym_tui.screens.live.screen import LiveScreen

        return LiveScreen(self.session, self.ui_state)

    def _episodes(self) -> Screen[None]:
        from agentgym_tui.screens.episodes.screen import EpisodesScreen

        return EpisodesScreen(self.session, self.ui_state)

    def _events(self) -> Screen[None]:
        from agentgym_tui.screens.events.screen import EventsScreen

        return EventsScreen(self.session, self.ui_state, now=self._now)

    def _logs(self) -> Screen[None]:
        from agentgym_tui.screens.logs.screen import LogScreen

        return LogScreen(self.session, self.ui_state, now=self._now)


class EpisodesConsole(Console, inherit_bindings=False):
    """A console whose first screen is the list of episodes; mounting the live screen first would delay the list."""

    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/episodes.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = Console.BINDINGS
    DEFAULT_MODE = "episodes"


class LogsConsole(Console, inherit_bindings=False):
    """A console whose first screen shows the opened logs."""

    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/lines.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = Console.BINDINGS
    DEFAULT_MODE = "logs"


def console_of(session: Session) -> type[Console]:
    """Return the console class that starts with the screen the session needs."""
    if session.logs:
        return LogsConsole
    return EpisodesConsole if session.control is None else Console
