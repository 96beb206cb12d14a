"""Base classes of screens and dialogs, and the frame of a dialog."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from textual import events, on
from textual.containers import Vertical
from textual.message import Message
from textual.messages import Prune
from textual.reactive import Reactive
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.timer import Timer, TimerCallback
from textual.widget import Widget

from agentgym_tui.commands import HELP, bindings, keymap_of
from agentgym_tui.config import UiState
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.services import toast
from agentgym_tui.sessions.run_commands import RunCommands
from agentgym_tui.sessions.session import Session
from agentgym_tui.sinks import as_label
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings, never_skip
from agentgym_tui.widgets.lists import LineList, StaticLines

if TYPE_CHECKING:
    from agentgym_tui.sessions.library import FoundLine, TextHits
    from agentgym_tui.state.episode_list import EpisodeList
    from runner.query.fields import Field

_ListT = TypeVar("_ListT", bound=LineList)

WIDTH_BREAKPOINTS: Final = [(0, "-narrow"), (110, "-wide")]
"""Columns at which screens switch to a wider layout."""


class ConsoleScreen(Screen[ScreenResultType]):
    """A screen on which keys act only while its widgets are mounted, and whose workers end before its widgets go."""

    SCOPE: str = ""
    """Scope of the commands whose keys apply on the screen."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """The widget with the focus. It and the one before repaint themselves; Textual repaints the whole screen, too."""

    _opener: LineList | None = None
    _has_widgets = _was_left = False

    @dataclass
    class EpisodesRequested(Message):
        """The user has requested a list of episodes; ``words`` is its filter."""

        words: str

    @dataclass
    class EventsRequested(Message):
        """The user has requested the bus messages of an episode."""

        episode_id: str

    @dataclass
    class OpenEpisode(Message):
        """The user opens an episode.

        Attributes:
            key: key of the episode in ``episodes``, or its id.
            query: selects the list among which the next and the previous episodes are; "" for ``episodes``.
            episodes: that list; None for the episodes in the store.
            hits: the search whose lines the user goes through, with ``at``, the line that is shown first.
            closed: is called with the key of the episode shown last.
        """

        key: str
        query: str = ""
        episodes: EpisodeList | None = None
        hits: TextHits | None = None
        at: FoundLine | None = None
        closed: Callable[[str | None], None] | None = None

    def __init__(self, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name, id, classes)
        if self.SCOPE:
            add_bindings(self, bindings(self.SCOPE))

    def on_compose(self) -> None:
        """Set the style classes for the screen size before the first drawing, so that no widget is styled twice."""
        sizes = zip(self.app.size, (self.HORIZONTAL_BREAKPOINTS, self.VERTICAL_BREAKPOINTS), strict=True)
        reached = ([name for minimum, name in classes or () if size >= minimum] for size, classes in sizes)
        self.add_class(*(name for names in reached for name in names[-1:]))

    async def mount_composed_widgets(self, widgets: list[Widget]) -> None:
        await super().mount_composed_widgets(widgets)
        self._has_widgets = True

    async def on_prune(self, event: Prune) -> None:
        """Cancel the workers now; Textual does so only when the widgets that they use are gone."""
        self.workers.cancel_node(self)

    @on(events.ScreenSuspend)
    def _note_leave(self) -> None:
        self._was_left = True

    @on(events.ScreenResume)
    def _keep_first_styles(self, event: events.ScreenResume) -> None:
        """Do not style the widgets again when the screen is first shown: each was styled when it was mounted."""
        event.refresh_styles &= self._was_left
        self._was_left = False

    def set_timer(
        self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None, pause: bool = False
    ) -> Timer:
        return never_skip(super().set_timer(delay, callback, name=name, pause=pause))

    @property
    def is_ready(self) -> bool:
        """Whether all widgets are mounted. It is so in every handler and worker of the screen."""
        return self._has_widgets and self.is_attached

    @property
    def accepts_keys(self) -> bool:
        """Whether keys may act on this screen."""
        return self.is_mounted and self.is_current and self.is_ready

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.accepts_keys

    def open_from(self, view: _ListT) -> _ListT:
        """Return a list whose selected line Enter and a double click open, by ``action_open``.

        The key bar shows the screen's command for Enter in the place of the list's.
        """
        view.handles_enter = False
        self._opener = view
        return view

    @on(LineList.Selected)
    def _open_selected(self, event: LineList.Selected) -> None:
        if event.view is self._opener and self.accepts_keys:
            self.action_open()

    def action_open(self) -> None:
        """Open what the selected line stands for."""

    def leave(self, result: ScreenResultType | None = None) -> None:
        """Dismiss the screen with ``result``; do nothing if it has been dismissed, so that the first answer counts."""
        if self.is_current:
            self.dismiss(result)

    def draw(self, store: RunStore) -> None:
        """Redraw after the store changed; called while the widgets are mounted."""

    def show_lines(self, *ids: str) -> None:
        """Make the lines of the ``StaticLines`` with these ids again, as far as they are mounted."""
        for id in ids:
            for lines in self.query(f"#{id}").results(StaticLines):
                lines.show()

    def selected_run(self) -> str:
        """Return the id of the battery or batch that is selected on the screen; "" without one."""
        return ""

    def selected_env(self) -> str:
        """Return the environment that is selected on the screen; "" without one. The name is untrusted text."""
        return ""

    def query_fields(self) -> list[Field]:
        """Return the fields that a query in the filter can name; none without a filter."""
        return []

    def toast(self, text: str, *, failed: bool = False) -> None:
        """Show the reply to a command as a toast, styled as an error if ``failed`` is True."""
        toast(self.app, text, failed=failed)


class ScreenContext(msgspec.Struct, frozen=True):
    """What the app passes to the screens that the user selects by a key.

    Attributes:
        ui_state: the saved UI state; updated in place.
        now: returns the time of a monotonic clock in seconds.
        commands: sends the commands of all screens; None for a screen that sends its own.
    """

    session: Session
    ui_state: UiState = msgspec.field(default_factory=UiState)
    now: Callable[[], float] = time.monotonic
    commands: RunCommands | None = None


class SessionScreen(ConsoleScreen[None]):
    """A screen that the user selects by a key; ``SCREENS`` lists them."""

    def __init__(self, context: ScreenContext) -> None:
        super().__init__()
        self.session, self.ui_state, self._now = context.session, context.ui_state, context.now

    def status_lines(self, width: int) -> list[Line]:
        """Return the status line of the session."""
        return [status_line(self.session.store, self.session.title, width)]

    def on_screen_resume(self) -> None:
        """Show the changes of the store since the screen was last shown."""
        self.draw(self.session.store)


class DialogFrame(Vertical):
    """A box in the middle of the screen.

    Args:
        title: text of the upper border.
        keys: text of the lower border, which names the dialog's keys; a command id such as ``{dialog.close}`` is
            replaced by the key of the command.
    """

    def __init__(self, title: str, *, keys: str, id: str | None = None) -> None:
        super().__init__(id=id, classes="dialog")
        self.border_title = as_label(title)
        self.border_subtitle = as_label(keymap_of(self.app).expand(keys))


class DialogScreen(ModalScreen[ScreenResultType], ConsoleScreen[ScreenResultType]):
    """A modal screen. ``ModalScreen`` is the first base class because styles are inherited only from the first base."""

    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

    def __init__(self, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name, id, classes)
        add_bindings(self, [each for each in bindings("everywhere") if each.id == HELP])

    async def action_help(self) -> None:
        """Show the keys of this dialog."""
        await self.app.run_action("app.help")

    def action_close(self) -> None:
        """Close without a result."""
        self.leave()
