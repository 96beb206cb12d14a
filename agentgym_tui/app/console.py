"""The console: its modes, and what can be done everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import BindingType
from textual.screen import Screen
from textual.types import CSSPathType

from agentgym_tui.app.refresh import Following
from agentgym_tui.commands.availability import Reachable, hidden, reachable
from agentgym_tui.commands.keymap import bindings
from agentgym_tui.config.settings import Settings, complaint_text
from agentgym_tui.config.ui_state import Kept
from agentgym_tui.safe_text import own
from agentgym_tui.screens.abilities import Resizable, Revealing, Zooming
from agentgym_tui.screens.base import Whole
from agentgym_tui.services.toast import tell
from agentgym_tui.sessions.protocols import ControlFailed, Session
from agentgym_tui.sessions.run_commands import refusal_text
from agentgym_tui.widgets.theme_styles import TONES

if TYPE_CHECKING:
    from agentgym_tui.screens.episode.screen import EpisodeScreen

STYLES: Final[list[str | PurePath]] = ["../styles/widgets.tcss", "../styles/app.tcss"]
NO_LOGS: Final = own("no log was opened: `agentgym-tui open FILE.jsonl`")
NO_BUS: Final = own("files have no bus: use `agentgym-tui launch` or `agentgym-tui watch`")


class Console(Following, inherit_bindings=False):
    """Shows a session.

    Args:
        session: what is looked at; followed from the first paint on, closed at the end.
        settings: the user's own.
        kept: how it was left the last time, and will be left.
        now: a monotonic clock, seconds.
    """

    TITLE = "AgentGym"
    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/live.tcss"]
    COMPONENT_CLASSES: ClassVar[set[str]] = TONES
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("everywhere")]
    ENABLE_COMMAND_PALETTE = False
    DEFAULT_MODE = "live"

    def __init__(
        self,
        session: Session,
        settings: Settings | None = None,
        kept: Kept | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(session, settings or Settings(), now)
        self.kept = kept or Kept()
        self.keys = self.settings.keys
        self.theme = self.settings.theme
        self.set_keymap(dict(self.keys.changed))
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
        if complaints := self.settings.complaints:
            tell(self, complaint_text(complaints), failed=True)

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
            tell(self, NO_BUS)
        else:
            self._show("events")

    def action_show_logs(self) -> None:
        """The logs that were opened."""
        if self.session.logs:
            self._show("logs")
        else:
            tell(self, NO_LOGS)

    async def on_episode_screen_events_wanted(self, event: EpisodeScreen.EventsWanted) -> None:
        """The same of one episode."""
        from agentgym_tui.screens.events.screen import Events

        if self.session.events is None:
            tell(self, NO_BUS)
            return
        await self.switch_mode("events")
        if isinstance(self.screen, Events):
            self.screen.show_episode(event.episode_id)

    def action_leave(self) -> None:
        """Leave, but ask first when that concerns episodes that run."""
        from agentgym_tui.screens.dialogs.quit import Quit, stays_behind

        if stays_behind(self.session):
            self.push_screen(Quit(self.session), self._answered)
        else:
            self.exit()

    def action_help(self) -> None:
        """All keys."""
        from agentgym_tui.screens.dialogs.help import Help

        self.push_screen(Help(self._reachable()))

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        from agentgym_tui.screens.dialogs.command_palette import Palette, run_chosen

        self.push_screen(Palette(self._reachable()), run_chosen(self))

    def action_zoom(self) -> None:
        """One part of the screen alone, and back."""
        if isinstance(self.screen, Zooming) and self._screen_is_whole:
            self.screen.zoom()

    def action_resize(self, how: str) -> None:
        """Another size of the focused part of the screen."""
        if self._screen_is_whole and not (isinstance(self.screen, Resizable) and self.screen.resize(how)):
            tell(self, own("nothing here can take another size that way"))

    async def action_picture(self) -> None:
        """The screen as a picture, into the folder where the console was started."""
        from agentgym_tui.services.screenshot import take_picture

        await take_picture(self)

    def action_hex(self) -> None:
        """The bytes of the selected text."""
        from agentgym_tui.screens.dialogs.hex_dump import Hex

        places: list[object] = [self.screen, self.focused] if self._screen_is_whole else []
        texts = [place.hostile_text() for place in places if isinstance(place, Revealing)]
        text = next(filter(None, texts), None)
        if text is None:
            tell(self, own("nothing that is selected holds hostile bytes"))
        else:
            self.push_screen(Hex(text))

    async def action_start_node(self) -> None:
        """Start the node again."""
        try:
            await self.session.start_node()
        except ControlFailed as exc:
            tell(self, refusal_text(exc), failed=True)

    @property
    def _screen_is_whole(self) -> bool:
        return isinstance(self.screen, Whole) and self.screen.whole

    def _reachable(self) -> list[Reachable]:
        return reachable(self, without=hidden(self.session))

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
            except ControlFailed as exc:
                tell(self, refusal_text(exc), failed=True)
                return
        if answer in ("stop", "leave"):
            self.exit()

    def _live(self) -> Screen[None]:
        from agentgym_tui.screens.live.screen import LiveScreen

        return LiveScreen(self.session, self.kept)

    def _episodes(self) -> Screen[None]:
        from agentgym_tui.screens.episodes.screen import Episodes

        return Episodes(self.session, self.kept)

    def _events(self) -> Screen[None]:
        from agentgym_tui.screens.events.screen import Events

        return Events(self.session, self.kept, now=self._now)

    def _logs(self) -> Screen[None]:
        from agentgym_tui.screens.logs.screen import LogScreen

        return LogScreen(self.session, self.kept, now=self._now)
