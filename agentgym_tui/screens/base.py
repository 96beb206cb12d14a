"""Base classes of screens and dialogs, and the frame of a dialog; screens that send commands to a node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import msgspec
from textual import events, on
from textual.containers import Vertical
from textual.message import Message
from textual.messages import Prune
from textual.reactive import Reactive
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.timer import Timer, TimerCallback
from textual.widget import Widget

from agentgym_tui.commands import HELP, NODE, bindings, keymap_of
from agentgym_tui.config import UiState
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.services import copy_to_clipboard, start_worker, toast
from agentgym_tui.sessions.run_commands import RunCommands, control_error_text
from agentgym_tui.sessions.session import Session
from agentgym_tui.sinks import as_label
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings, never_skip
from agentgym_tui.widgets.lists import StaticLines
from runner.client.node_client import ControlRequestError

if TYPE_CHECKING:
    from agentgym_tui.sessions.library import FoundLine, TextHits
    from agentgym_tui.state.episode_list import EpisodeList
    from runner.query.fields import Field


WIDTH_BREAKPOINTS: Final = [(0, "-narrow"), (110, "-wide")]
"""Columns at which screens switch to a wider layout."""


class ConsoleScreen(Screen[ScreenResultType]):
    """A screen on which keys act only while its widgets are mounted, and whose workers end before its widgets go."""

    SCOPE: str = ""
    """Scope of the commands whose keys apply on the screen."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """The widget with the focus. It and the one before repaint themselves; Textual repaints the whole screen, too."""

    _has_widgets = _was_left = False
    _copied: object = None

    @dataclass
    class EpisodesRequested(Message):
        """The user has requested a list of episodes; ``words`` is its filter."""

        words: str

    @dataclass
    class EventsRequested(Message):
        episode_id: str

    @dataclass
    class OpenEpisode(Message):
        key: str
        """Of the episode in ``episodes``, or its id."""
        query: str = ""
        """Selects the list among which the next and the previous episodes are; "" for ``episodes``."""
        episodes: EpisodeList | None = None
        """That list; None for the episodes in the store."""
        hits: TextHits | None = None
        """The search whose lines the user goes through, from the line ``at`` on."""
        at: FoundLine | None = None
        closed: Callable[[str | None], None] | None = None
        """Gets the key of the episode shown last."""

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
        self._has_widgets = self.is_attached and bool(self.children)  # a screen that is closed meanwhile mounts none

    async def on_event(self, event: events.Event) -> None:
        """Leave out what would use widgets that were never mounted, as the console or the screen ended before."""
        if self._has_widgets or not isinstance(event, events.Mount | events.ScreenResume):
            await super().on_event(event)

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
        return self._has_widgets and self.is_attached

    @property
    def accepts_keys(self) -> bool:
        return self.is_mounted and self.is_current and self.is_ready

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.accepts_keys

    def leave(self, result: ScreenResultType | None = None) -> None:
        """Dismiss the screen unless it has been dismissed, so that the first answer counts."""
        if self.is_current:
            self.dismiss(result)

    def draw(self, store: RunStore) -> None:
        """Redraw after the store changed."""

    def show_lines(self, *ids: str) -> None:
        for id in ids:
            for lines in self.query(f"#{id}").results(StaticLines):
                lines.show()

    def selected_run(self) -> str:
        return ""

    def selected_env(self) -> str:
        return ""

    def query_fields(self) -> list[Field]:
        return []

    @on(events.TextSelected)
    def _copy_selection(self) -> None:
        """Copy the text that was selected with the mouse; the event comes with each mouse button that is released."""
        if (selections := self.selections) is not self._copied:
            self._copied = selections
            if text := self.get_selected_text():
                copy_to_clipboard(self.app, text, "selection", raw=False)

    def toast(self, text: str, *, failed: bool = False) -> None:
        toast(self.app, text, failed=failed)


class ScreenContext(msgspec.Struct, frozen=True):
    session: Session
    ui_state: UiState = msgspec.field(default_factory=UiState)
    """The saved UI state; updated in place."""
    now: Callable[[], float] = time.monotonic
    commands: RunCommands | None = None
    """Sends the commands of all screens; None for a screen that sends its own."""


class SessionScreen(ConsoleScreen[None]):
    """A screen that the user selects by a key; ``SCREENS`` lists them."""

    def __init__(self, context: ScreenContext) -> None:
        super().__init__()
        self.session, self.ui_state, self._now = context.session, context.ui_state, context.now

    def status_lines(self, width: int) -> list[Line]:
        return [status_line(self.session.store, self.session.title, width)]

    def on_screen_resume(self) -> None:
        self.draw(self.session.store)


class DialogFrame(Vertical):
    """A box with a title in the upper border and ``keys`` in the lower one; ``{dialog.close}`` stands for a key."""

    def __init__(self, title: str, *, keys: str, id: str | None = None) -> None:
        super().__init__(id=id, classes="dialog")
        self.border_title = as_label(title)
        self.keys = keys
        self.show_keys(keys)

    def show_keys(self, keys: str) -> None:
        self.border_subtitle = as_label(keymap_of(self.app).expand(keys))


class DialogScreen(ModalScreen[ScreenResultType], ConsoleScreen[ScreenResultType]):
    """A modal screen. ``ModalScreen`` is the first base class because styles are inherited only from the first base."""

    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

    def __init__(self, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name, id, classes)
        add_bindings(self, [each for each in bindings("everywhere") if each.id == HELP])

    async def action_help(self) -> None:
        await self.app.run_action("app.help")

    def action_close(self) -> None:
        self.leave()


TICK_S: Final = 1.0
"""Seconds between two drawings of the time left."""

P = ParamSpec("P")
_ScreenT = TypeVar("_ScreenT", bound=SessionScreen)


class RunControl:
    """Sends a screen's commands to the node of its session in the background, and shows the replies."""

    def __init__(self, screen: SessionScreen, commands: RunCommands | None) -> None:
        self._screen, self.commands = screen, commands or RunCommands(screen.session)

    def send(self, send: Callable[[], Awaitable[object]]) -> None:
        async def sent() -> None:
            try:
                await send()
            except ControlRequestError as exc:
                self._screen.toast(control_error_text(exc), failed=True)

        start_worker(self._screen, sent, group="commands")

    def pause_or_resume(self, run_id: str, batches: Sequence[BatchRun]) -> None:
        async def send() -> None:
            targets, effect = await self.commands.pause_or_resume(run_id, batches)
            self._screen.toast(f"{_name(targets)} {effect}" if targets else "nothing to pause or resume")

        self.send(send)

    def cancel(self, batches: Sequence[BatchRun]) -> None:
        if left := [batch for batch in batches if batch.status not in ("completed", "cancelled")]:
            self.send(partial(self._cancel, left))
        else:
            self._screen.toast("it has ended")

    async def _cancel(self, batches: Sequence[BatchRun]) -> None:
        await self.commands.cancel(batches)
        last = self.commands.last_run
        is_last = last is not None and any(last.batch_id in (each.batch_id, each.battery_id) for each in batches)
        hint = f". Press {keymap_of(self._screen.app).key('run.repeat')} to run it again" if is_last else ""
        self._screen.toast(f"{_name(batches)} cancelled{hint}")

    def draw_time_left(self, draw: Callable[[], None]) -> None:
        """Draw the time left once a second, while a batch runs and its screen is shown."""
        self._screen.set_interval(TICK_S, partial(self._tick, draw))

    def _tick(self, draw: Callable[[], None]) -> None:
        if self._screen.accepts_keys and self._screen.session.store.batch_registry.active() is not None:
            draw()


def _name(batches: Sequence[BatchRun]) -> str:
    return batches[0].env if len(batches) == 1 else pluralize(len(batches), "batch", "batches")


def needs_node(action: Callable[Concatenate[_ScreenT, P], None]) -> Callable[Concatenate[_ScreenT, P], None]:
    """Return the action, or show why runs cannot be controlled where the session has no node of its own."""

    @wraps(action)
    def checked(screen: _ScreenT, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if NODE.is_met(screen.session):
            action(screen, *args, **kwargs)
        else:
            screen.toast(NODE.reason(screen.session), failed=True)

    return checked
