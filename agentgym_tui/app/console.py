"""The console: its modes, and what can be done everywhere."""

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
from agentgym_tui.screens.base import ConsoleScreen, HasHostileText, Resizable, Zoomable
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import control_error_text
from agentgym_tui.widgets.line_renderer import TONE_CLASSES

if TYPE_CHECKING:
    from agentgym_tui.screens.episode.screen import EpisodeScreen

STYLES: Final[list[str | PurePath]] = ["../styles/widgets.tcss", "../styles/app.tcss"]
NO_LOGS: Final = trusted("no log was opened: `agentgym-tui open FILE.jsonl`")
NO_BUS: Final = trusted("files have no bus: use `agentgym-tui launch` or `agentgym-tui watch`")


class Console(RefreshingApp, inherit_bindings=False):
    """Shows a session.

    Args:
        session: what is looked at; followed from the first paint on, closed at the end.
        settings: the user's own.
        kept: how it was left the last time, and will be left.
        now: a monotonic clock, seconds.
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
        kept: UiState | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(session, settings or Settings(), now)
        self.kept = kept or UiState()
        self.keys = self.settings.keys
        self.theme = self.settings.theme
        self.set_keymap(dict(self.keys.overrides))
        self._now = now
        self._makes = {"live": self._live, "episodes": self._episodes, "events": self._events, "logs": self._logs}
        for mode in self._makes.keys() - {self.DEFAULT_MODE}:
            self.add_mode(mode, self._makes[mode])

    def get_default_screen(self) -> Screen[None]:
        """The first screen; as that of a known mode it would have all styles read twice, which takes its time."""
        return self._makes[self.DEFAULT_MODE]()

    def on_mount(self) -> None:
        """Go where it was left."""
        self.add_mode(self.DEFAULT_MODE, self.get_default_screen)
        first = "episodes" if self.session.control is None else self.kept.screen
        there = {"episodes"} | ({"events"} if self.session.events is not None else set())
        if self.DEFAULT_MODE == "live" and first in there:
            self.switch_mode(first)
        if problems := self.settings.problems:
            toast(self, problem_summary(problems), failed=True)

    async def on_unmount(self) -> None:
        """Remember where one was."""
        if self.session.control is not None:
            self.kept.screen = self.current_mode

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        """Do what a key does as it comes: by the framework not before all that is around the focus has seen it.

        A key that goes elsewhere would overtake those before it. Where one types the field has the keys in their order.
        """
        if await super()._check_bindings(key, priority):
            return True
        typing = self.focused is not None and self.focused.check_consume_key("a", "a")
        return priority and not typing and await super()._check_bindings(key)

    def action_show_live(self) -> None:
        """What runs now."""
        self._show("live")

    def action_show_episodes(self) -> None:
        """What is stored."""
        self._show("episodes")

    def action_show_events(self) -> None:
        """What is said on the bus."""
        if self.session.events is None:
            toast(self, NO_BUS)
        else:
            self._show("events")

    def action_show_logs(self) -> None:
        """The logs that were opened."""
        if self.session.logs:
            self._show("logs")
        else:
            toast(self, NO_LOGS)

    async def on_episode_screen_events_requested(self, event: EpisodeScreen.EventsRequested) -> None:
        """The same of one episode."""
        from agentgym_tui.screens.events.screen import EventsScreen

        if self.session.events is None:
            toast(self, NO_BUS)
            return
        await self.switch_mode("events")
        if isinstance(self.screen, EventsScreen):
            self.screen.show_episode(event.episode_id)

    def action_leave(self) -> None:
        """Leave, but ask first when that concerns episodes that run."""
        from agentgym_tui.screens.dialogs.quit import QuitDialog, stays_behind

        if stays_behind(self.session):
            self.push_screen(QuitDialog(self.session), self._answered)
        else:
            self.exit()

    def action_help(self) -> None:
        """All keys."""
        from agentgym_tui.screens.dialogs.help import HelpDialog

        self.push_screen(HelpDialog(self._reachable()))

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        from agentgym_tui.screens.dialogs.command_palette import CommandPalette, run_chosen

        self.push_screen(CommandPalette(self._reachable()), run_chosen(self))

    def action_zoom(self) -> None:
        """One part of the screen alone, and back."""
        if isinstance(self.screen, Zoomable) and self._screen_accepts_keys:
            self.screen.zoom()

    def action_resize(self, direction: str) -> None:
        """Another size of the focused part of the screen."""
        if self._screen_accepts_keys and not (isinstance(self.screen, Resizable) and self.screen.resize(direction)):
            toast(self, trusted("nothing here can take another size that way"))

    async def action_picture(self) -> None:
        """The screen as a picture, into the folder where the console was started."""
        from agentgym_tui.services.export import save_screenshot

        await save_screenshot(self)

    def action_hex(self) -> None:
        """The bytes of the selected text."""
        from agentgym_tui.screens.dialogs.hex_dump import HexDumpDialog

        places: list[object] = [self.screen, self.focused] if self._screen_accepts_keys else []
        texts = [place.hostile_text() for place in places if isinstance(place, HasHostileText)]
        text = next(filter(None, texts), None)
        if text is None:
            toast(self, trusted("nothing that is selected holds hostile bytes"))
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

    def _reachable(self) -> list[AvailableCommand]:
        return available_commands(self, without=hidden_commands(self.session))

    def _show(self, mode: str) -> None:
        """Another mode, at its first screen."""
        if self.current_mode == mode:
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)

    async def _answered(self, answer: str | None) -> None:
        """What to do with what runs."""
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

        return LiveScreen(self.session, self.kept)

    def _episodes(self) -> Screen[None]:
        from agentgym_tui.screens.episodes.screen import EpisodesScreen

        return EpisodesScreen(self.session, self.kept)

    def _events(self) -> Screen[None]:
        from agentgym_tui.screens.events.screen import EventsScreen

        return EventsScreen(self.session, self.kept, now=self._now)

    def _logs(self) -> Screen[None]:
        from agentgym_tui.screens.logs.screen import LogScreen

        return LogScreen(self.session, self.kept, now=self._now)


class EpisodesConsole(Console, inherit_bindings=False):
    """Begins with what is stored."""

    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/episodes.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = Console.BINDINGS
    DEFAULT_MODE = "episodes"


class LogsConsole(Console, inherit_bindings=False):
    """Begins with the logs that were opened."""

    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/log.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = Console.BINDINGS
    DEFAULT_MODE = "logs"


def console_of(session: Session) -> type[Console]:
    """The one that begins with what a session has."""
    if session.logs:
        return LogsConsole
    return EpisodesConsole if session.control is None else Console
