"""The console application: its screens, its redraws, its notifications, and the commands available on every screen."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import events
from textual.message_pump import MessagePump
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer, TimerCallback
from textual.widgets import Input

from agentgym_tui.commands import (
    APP_SCOPES,
    BUS,
    COMMANDS,
    EPISODES_SCREEN,
    EVENTS_SCREEN,
    HELD,
    LIVE_SCREEN,
    LOGS_SCREEN,
    NODE,
    RESULTS_SCREEN,
    SCREENS,
    AvailableCommand,
    Command,
    ScreenSpec,
    available_commands,
    bindings,
    keymap_of,
    known_commands,
)
from agentgym_tui.config import Settings, UiState, problem_summary
from agentgym_tui.notifications import Notifier
from agentgym_tui.presenters.cells import cut_start, display_width, wrap_text
from agentgym_tui.presenters.live import no_environments
from agentgym_tui.presenters.machine import held_text
from agentgym_tui.presenters.number_format import format_count, pluralize
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ConsoleScreen, ScreenContext
from agentgym_tui.services import RedrawThrottle, announce, messages, save_screenshot, start_worker, toast
from agentgym_tui.sessions.run_commands import RunCommands, control_error_text, has_unfinished
from agentgym_tui.sessions.session import Session, select_episodes
from agentgym_tui.state.nodes import NodeInfo, ProfileDifference
from agentgym_tui.terminal import suspend
from agentgym_tui.textual_compat import (
    OrderedKeysApp,
    add_bindings,
    never_skip,
    start_in_mode,
    with_known_styles,
)
from agentgym_tui.widgets.lists import TONE_CLASSES, LineRenderer
from agentgym_tui.widgets.split import resize_focused, zoom_focused
from runner.client.node_client import ControlRequestError
from runner.events.control import StartArgs

if TYPE_CHECKING:
    from agentgym_tui.screens.episode_lists import EpisodesScreen
    from agentgym_tui.screens.runs import RunSummaryScreen
    from runner.query.fields import Field

MAX_TOAST_ROWS: Final = 3
"""Rows of a toast; the key in the last one shows the whole message."""
TOAST_MARGIN: Final = 3
"""Columns of a toast that have no text: its border and its padding."""


def short_toast(text: str, width: int, key: str) -> str:
    """Return ``text`` as at most ``MAX_TOAST_ROWS`` rows; if it needs more, it is cut before its end, where hints are.

    The last row then names the ``key`` that shows all.
    """
    rows = wrap_text(text, width, len(text) + 1)
    if len(rows) <= MAX_TOAST_ROWS:
        return text
    first_rows, rest = rows[: MAX_TOAST_ROWS - 1], " ".join(rows[MAX_TOAST_ROWS - 1 :])
    more = f"  {key} shows all"
    room = width - display_width(more)
    end = rest if display_width(rest) <= room else cut_start(text.replace("\n", " "), room)
    return "\n".join([*first_rows, end + more])


START_COMMANDS: Final = ("run.selected", "run.form", "run.battery")

TICK_MARGIN_S: Final = 0.01
"""Seconds after which a limit is surely exceeded."""
KEY_CHECK_S: Final = 0.01
"""Seconds between two checks whether a screen that is being mounted accepts keys."""

_INPUT_EVENTS: Final = (events.Key, events.Paste, events.MouseDown, events.MouseScrollDown, events.MouseScrollUp)
"""Input that expects a visible reaction; mouse movement does not."""


class Console(OrderedKeysApp[None], inherit_bindings=False):
    """The application that shows a session, from its first paint to its end; ``ui_state`` is updated in place."""

    TITLE = "AgentGym"
    CSS_PATH = "styles.tcss"
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
        start_in_mode(self, first_screen(session).id)
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)  # else Textual turns colors into grays
        self.session, self.settings, self.ui_state = session, settings or Settings(), ui_state or UiState()
        self.commands = RunCommands(session)  # of all screens, so that each of them repeats the same last run
        self._now, self._throttle, self._notifier = now, RedrawThrottle(now), Notifier()
        self._session_task: asyncio.Task[None] | None = None
        self._input = KeyQueue(self)
        self._draw_timer: Timer | None = None
        self._expects_node = True
        self._tick_timer: Timer | None = None
        self._tick_at = math.inf
        self._offered: ProfileDifference | None = None
        self._mentioned: set[tuple[str, str]] = set()
        self.keys = self.settings.keys
        chosen = "" if self.settings.sets_theme else self.ui_state.theme
        self.theme = chosen if chosen in self.available_themes else self.settings.theme
        for scope in APP_SCOPES:
            add_bindings(self, bindings(scope))
        self.set_keymap(dict(self.keys.overrides))
        for screen in SCREENS:
            self.add_mode(screen.id, partial(self._make_screen, screen))

    def _make_screen(self, screen: ScreenSpec) -> Screen[None]:
        made = screen.factory(ScreenContext(self.session, self.ui_state, self._now, self.commands))
        return with_known_styles(self, made)

    # Start, end and failure of the session.

    def on_load(self) -> None:
        # Textual chooses eager tasks where Python has them, from 3.12 on: a first screen would be mounted too early.
        asyncio.get_running_loop().set_task_factory(None)
        self.stylesheet.apply(self)  # the tones of all lines

    def on_compose(self, event: events.Compose) -> None:
        if not self.screen.is_attached:  # it has ended the app; Textual would mount its widgets once more
            event.prevent_default()

    def on_mount(self) -> None:
        """Show the screen of the last run, and start the session after the first paint."""
        self.session.store.on_change = self._schedule_draw
        self.call_after_refresh(self._start_session)
        last = SCREENS.get(self.ui_state.screen)
        is_watching = self.current_mode == LIVE_SCREEN.id and bool(self.session.read_only)
        if is_watching and last is not None and last.available.is_met(self.session):
            self._show_mode(last.id)
        if problems := self.settings.problems:
            toast(self, problem_summary(problems), failed=True)

    async def on_unmount(self) -> None:
        if self.session.control is not None:
            self.ui_state.screen = self.current_mode
        self.session.store.on_change = None
        if self._session_task is not None:
            self._session_task.cancel()
            await asyncio.wait([self._session_task])
        await self.session.close()

    def _start_session(self) -> None:
        if not gc.isenabled():  # the command has disabled it
            gc.freeze()
            gc.enable()
        self._session_task = asyncio.create_task(self.session.run())
        self._session_task.add_done_callback(self._session_ended)
        self._schedule_draw()

    def _session_ended(self, task: asyncio.Task[None]) -> None:
        """If the session has failed, raise its exception in the app, as if a message handler had failed."""
        if not task.cancelled():
            failure = task.exception()
        else:
            failure = None if task.cancelling() else RuntimeError("the link ended by itself; start the console again")
        if failure is not None:
            self.call_later(_fail, failure)

    # Input, in order and before what can wait.

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, _INPUT_EVENTS) and not self.screen_stack:
            return
        if isinstance(event, events.Key) and not event.is_forwarded:
            await self._input.add(event)
        else:
            await super().on_event(event)

    async def handle_input(self, event: events.Event) -> None:
        await super().on_event(event)

    @property
    def accepts_keys(self) -> bool:
        return isinstance(self.screen, ConsoleScreen) and self.screen.accepts_keys

    # Redraws after a change of the store, and when a limit of time is exceeded.

    def set_timer(
        self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None, pause: bool = False
    ) -> Timer:
        return never_skip(super().set_timer(delay, callback, name=name, pause=pause))

    def _schedule_draw(self) -> None:
        """Draw once the throttle allows it; the first node is drawn at once, whatever the start-up has cost."""
        is_first_node = self._expects_node and bool(self.session.store.nodes)
        if self._draw_timer is not None:
            if not is_first_node:
                return
            self._draw_timer.stop()
        self._expects_node = self._expects_node and not is_first_node
        wait_s = 0.0 if is_first_node else self._throttle.wait_s
        self._draw_timer = self.set_timer(max(wait_s, 0.001), self._draw)

    def _draw(self) -> None:
        self._draw_timer = None
        self._throttle.mark_redrawn()
        store = self.session.store
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ConsoleScreen) and screen.is_ready:  # else it draws when it is mounted
                screen.draw(store)
            if not screen.is_modal:
                break
        self._notifier.check(self, store, datetime.now(UTC), self.settings.notify)
        self._mention_held()
        difference = store.profile_difference
        is_new = difference not in (None, self._offered)
        if is_new and self.accepts_keys and not (self.screen.is_modal or isinstance(self.focused, Input)):
            self._offered = difference
            self._offer_restart(difference)
        self._keep_ticking()

    def _tick(self) -> None:
        self._tick_timer, self._tick_at = None, math.inf
        self.session.store.tick()
        self._keep_ticking()

    def _keep_ticking(self) -> None:
        """Set the timer of the next tick, unless one that is set ends earlier."""
        delay_s = max(self.session.store.next_tick_s, 0.0) + TICK_MARGIN_S
        if (tick_at := self._now() + delay_s) >= self._tick_at:
            return
        if self._tick_timer is not None:
            self._tick_timer.stop()
        self._tick_timer, self._tick_at = self.set_timer(delay_s, self._tick), tick_at

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        text = short_toast(message, self.size.width - TOAST_MARGIN, keymap_of(self).key("app.messages"))
        super().notify(text, title=title, severity=severity, timeout=timeout, markup=markup)

    # Screens.

    def action_show_screen(self, screen: str) -> None:
        requirement = SCREENS[screen].available
        if requirement.is_met(self.session) and requirement.prepare(self.session):
            self._show_mode(screen)
        else:
            toast(self, requirement.reason(self.session))

    def _show_mode(self, mode: str) -> None:
        if self.current_mode == mode:
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)

    async def _switch_to(self, screen: ScreenSpec) -> Screen[Any]:
        """Show a screen without those that were opened from it, and return it."""
        await self.switch_mode(screen.id)
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        return self.screen

    async def on_console_screen_open_episode(self, event: ConsoleScreen.OpenEpisode) -> None:
        if event.query:
            start_worker(self, partial(self._open_episode, event), group="open", exclusive=True)
        else:
            await self._open_episode(event)

    async def _open_episode(self, event: ConsoleScreen.OpenEpisode) -> None:
        """Open an episode; even if the query has an error, or the others among which it is cannot be read."""
        from agentgym_tui.screens.episode import EpisodeScreen

        session, key, episodes = self.session, event.key, event.episodes
        if event.query:
            episodes = await select_episodes(session, event.query, key)
        if not isinstance(self.screen, EpisodeScreen):  # it may be opened twice by clicks in a row
            opened = EpisodeScreen(session, key, episodes, ui_state=self.ui_state, hits=event.hits, at=event.at)
            self.push_screen(opened, event.closed)

    async def on_console_screen_events_requested(self, event: ConsoleScreen.EventsRequested) -> None:
        from agentgym_tui.screens.line_browser import EventsScreen

        if not BUS.is_met(self.session):
            toast(self, BUS.reason(self.session))
        elif isinstance(screen := await self._switch_to(EVENTS_SCREEN), EventsScreen):
            screen.show_episode(event.episode_id)

    async def on_episodes_screen_log_requested(self, event: EpisodesScreen.LogRequested) -> None:
        from agentgym_tui.screens.line_browser import LogScreen

        if isinstance(screen := await self._switch_to(LOGS_SCREEN), LogScreen):
            screen.show_path(event.path)

    async def on_run_summary_screen_results_requested(self, event: RunSummaryScreen.ResultsRequested) -> None:
        from agentgym_tui.screens.results import ResultsScreen

        if isinstance(screen := await self._switch_to(RESULTS_SCREEN), ResultsScreen):
            screen.show_run(event.run_id)

    async def on_console_screen_episodes_requested(self, event: ConsoleScreen.EpisodesRequested) -> None:
        from agentgym_tui.screens.episode_lists import EpisodesScreen

        before = self.current_mode
        if isinstance(screen := await self._switch_to(EPISODES_SCREEN), EpisodesScreen):
            screen.show_words(event.words, "" if before == EPISODES_SCREEN.id else before)

    # What every screen has.

    def action_help(self) -> None:
        from agentgym_tui.screens.dialogs.help import HelpDialog

        fields: list[Field] = self.screen.query_fields() if isinstance(self.screen, ConsoleScreen) else []
        self.push_screen(HelpDialog(available_commands(self, self.session), self.keys, fields))

    def action_command_palette(self) -> None:
        from agentgym_tui.screens.dialogs.help import CommandPalette, search

        async def run_chosen(chosen: AvailableCommand | None) -> None:
            if chosen is not None:
                await self.run_action(chosen.command.action, chosen.node)

        themes = (
            Command(f"theme.{name}", "", "Theme", f"use_theme({name!r})", "everywhere", name)
            for name in sorted(self.available_themes)
        )
        found = [*known_commands(self, self.session), *(AvailableCommand(theme, self) for theme in themes)]
        self.push_screen(CommandPalette(search(found, "")), run_chosen)

    def action_use_theme(self, theme: str) -> None:
        self.theme = self.ui_state.theme = theme
        if self.settings.sets_theme:
            toast(self, "the settings file sets another theme for the next start")

    def action_settings(self) -> None:
        from agentgym_tui.screens.dialogs.help import settings_lines
        from agentgym_tui.screens.dialogs.texts import TextDialog

        self.push_screen(TextDialog("Settings", partial(settings_lines, self.settings, self.theme)))

    def action_suspend_process(self) -> None:
        if reason := suspend(self):
            toast(self, reason, failed=True)

    def action_zoom(self) -> None:
        if self.accepts_keys:
            zoom_focused(self.screen)

    def action_resize(self, direction: str) -> None:
        if self.accepts_keys and not resize_focused(self.screen, direction):
            size, tab = COMMANDS[f"pane.{direction}"].title.lower(), keymap_of(self).key("focus.next")
            cannot = f"this pane cannot be made {size}: {tab} goes to the next pane"
            toast(self, "this screen has no panes to resize" if direction == "reset" else cannot)

    def action_messages(self) -> None:
        from agentgym_tui.screens.dialogs.texts import TextDialog, message_lines

        self.clear_notifications()
        self.push_screen(TextDialog("Messages", partial(message_lines, messages(self))))

    async def action_picture(self) -> None:
        await save_screenshot(self)

    def action_hex(self) -> None:
        from agentgym_tui.screens.dialogs.texts import HexDumpDialog

        views: list[object] = [self.focused, *self.screen.query(LineRenderer)] if self.accepts_keys else []
        texts = (view.unsafe_text() for view in views if isinstance(view, LineRenderer) and view.is_on_screen)
        text = next(filter(None, texts), None)
        if text is None:
            toast(self, "no unsafe bytes on this screen")
        else:
            self.push_screen(HexDumpDialog(text))

    def action_leave(self) -> None:
        from agentgym_tui.screens.dialogs.texts import quit_dialog

        async def quit_answered(answer: str | None) -> None:
            if answer == "stop" and has_unfinished(self.session):
                cancel = partial(self.commands.command_all, "cancel")
                answer = None if await self._report_failure(cancel) else "leave"
            if answer in ("leave", "stop"):
                self.exit()

        if has_unfinished(self.session):
            self.push_screen(quit_dialog(self.session.store, self.session.node), quit_answered)
        else:
            self.exit()

    # Runs: the selected environment, a form, a battery, the last run again.

    def action_run_selected(self) -> None:
        if not self._may_start():
            return
        if not self.session.store.envs:
            toast(self, no_environments(self.session.store), failed=True)
        elif env := self._selected_env():
            self._run_once([env])
        else:
            self.action_run_form()

    def action_run_form(self, *envs: str) -> None:
        """Open the run form with ``envs`` checked, by default the selected environment."""
        from agentgym_tui.screens.dialogs.forms import RunForm

        if self._may_start():
            chosen = list(envs) or [env for env in [self._selected_env()] if env]
            self.push_screen(RunForm(self.session, self.commands, chosen, self._start))

    def action_run_battery(self) -> None:
        from agentgym_tui.screens.dialogs.forms import BatteryPicker

        if self._may_start():
            self.push_screen(BatteryPicker(self.session.store, self.commands.agent_choice()), self._run_once)

    def action_run_again(self) -> None:
        if self._may_start():
            self._work("commands", self._run_again)

    async def _run_again(self) -> None:
        if (replayed := self.commands.last_replay) is not None:
            toast(self, await self.commands.replay(*replayed))
            return
        await self._start(self.commands.repeat_run([keymap_of(self).key(id) for id in START_COMMANDS]))

    def action_run_summary(self) -> None:
        """Show the summary of the run that is selected on the screen, by default of the run that ended last."""
        from agentgym_tui.screens.runs import RunSummaryScreen

        if not self.accepts_keys or isinstance(self.screen, RunSummaryScreen):
            return
        run_id = self.screen.selected_run() if isinstance(self.screen, ConsoleScreen) else ""
        if run_id := run_id or self.session.store.newest_ended_run():
            self.push_screen(RunSummaryScreen(ScreenContext(self.session), run_id))
        else:
            toast(self, "no run has ended yet")

    def _may_start(self) -> bool:
        """Return whether the screen accepts keys and the session has a node; if it has none, show why."""
        if not self.accepts_keys or NODE.is_met(self.session):
            return self.accepts_keys
        toast(self, NODE.reason(self.session), failed=True)
        return False

    def _selected_env(self) -> str:
        return self.screen.selected_env() if isinstance(self.screen, ConsoleScreen) else ""

    def _run_once(self, envs: Sequence[str] | None) -> None:
        if envs and self.commands.agent_choice().problem:
            self.action_run_form(*envs)
        elif envs:
            self._work("commands", partial(self._start, self.commands.single_run(envs)))

    async def _start(self, args: StartArgs) -> None:
        warnings = await self.commands.start(args)
        agent = masked_line(f"{args.agent} {args.model}" if args.model else args.agent or "?", 60)
        n_episodes = (sum(map(len, args.tasks.values())) or len(args.envs) * args.repeat) * args.attempts
        count = "" if n_episodes == 1 else f", {format_count(n_episodes)} episodes"
        envs = masked_line(", ".join(args.envs[:4]) + ", …" * (len(args.envs) > 4), 120)
        toast(self, "\n".join([f"{agent} started on {envs}{count}", *warnings]))

    def _work(self, group: str, work: Callable[[], Awaitable[object]]) -> None:
        start_worker(self, partial(self._report_failure, work), group=group)

    async def _report_failure(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Send a request; if it fails, show why and return True."""
        try:
            await work()
        except ControlRequestError as exc:
            toast(self, control_error_text(exc), failed=True)
            return True
        return False

    # The node: start, stop, restart, its profile and its external broker.

    async def action_start_node(self) -> None:
        await self._report_failure(self.session.start_node)

    def action_stop_node(self) -> None:
        from agentgym_tui.screens.dialogs.texts import stop_node_dialog

        if has_unfinished(self.session) or len(self.session.store.nodes) > 1:
            self.push_screen(stop_node_dialog(self.session.store, self.session.node), self._stop_answered)
        else:
            self._stop_answered("now")

    def _stop_answered(self, answer: str | None) -> None:
        if answer in ("now", "drain"):
            self._work("node", partial(self._stop_node, drain=answer == "drain"))

    async def _stop_node(self, *, drain: bool) -> None:
        await self.session.stop_node(drain=drain)
        when = "after all its batches" if drain else "after the running steps"
        toast(self, f"the node stops {when}; press {keymap_of(self).key('node.start')} to start it again")

    def action_restart_node(self) -> None:
        if has_unfinished(self.session) or len(self.session.store.nodes) > 1:
            self._offer_restart(None)
        else:
            self._restart_answered("restart")

    def _offer_restart(self, difference: ProfileDifference | None) -> None:
        from agentgym_tui.screens.dialogs.texts import restart_node_dialog

        dialog = restart_node_dialog(self.session.store, difference, self.session.node)
        self.push_screen(dialog, self._restart_answered)

    def _restart_answered(self, answer: str | None) -> None:
        if answer == "restart":
            toast(self, f"the node restarts{' after the running steps' * has_unfinished(self.session)}")
            self._work("node", self.session.restart_node)

    def action_model_form(self) -> None:
        from agentgym_tui.screens.dialogs.forms import ModelForm

        if not self._may_start():
            return
        if self.session.profile is not None:
            self.push_screen(ModelForm(*self.session.profile), self._profile_written)
        else:
            toast(self, "the profile in use is not known yet", failed=True)

    def _profile_written(self, written: tuple[Path, list[str]] | None) -> None:
        if written is not None:
            path, lost = written
            lacks = f"\nit lacks the comments of {', '.join(lost)}" if lost else ""
            config = f"agentgym-tui launch --config {masked_line(path.stem)}"
            toast(self, f"profile saved; to start with it: {config}{lacks}\n{masked_line(path)}")
            self._work("node", partial(self.session.use_profile, path))

    def _mention_held(self) -> None:
        node = self.session.store.holding_node
        if node is None or (node.name, node.egress) in self._mentioned or not HELD.is_met(self.session):
            return
        self._mentioned.add((node.name, node.egress))
        if self.settings.notify.toast:
            announce(self, f"{held_text(node)}\npress {keymap_of(self).key('node.history')} to send them")

    def action_send_history(self) -> None:
        from agentgym_tui.screens.dialogs.texts import send_history_dialog

        node = self.session.store.holding_node
        if self.accepts_keys and (node is None or not HELD.is_met(self.session)):
            toast(self, HELD.reason(self.session), failed=True)
        elif self.accepts_keys and node is not None:
            self.push_screen(send_history_dialog(node), partial(self._send_history_answered, node))

    def _send_history_answered(self, node: NodeInfo, answer: str | None) -> None:
        if answer == "send":
            self._work("node", partial(self._send_history, node))

    async def _send_history(self, node: NodeInfo) -> None:
        n = await self.commands.control.send_history()
        counted = pluralize(n, "earlier event is", "earlier events are")
        toast(self, f"{counted} being sent to {masked_line(node.egress, 80)}")


class KeyQueue:
    """Handles keys one at a time, so that keys typed ahead act on the screen or dialog that the one before them opens.

    A key may open a dialog in several steps: the focused list posts a message, which passes through its ancestors to
    the screen, which opens the dialog, whose widgets are mounted later. A callback that takes the same way through
    the same queues arrives after all of that. There is no limit of time: on a busy machine a key that no longer waits
    acts on the wrong screen, or on one that is not ready and ignores it.
    """

    def __init__(self, app: Console) -> None:
        self._app = app
        self._waiting: deque[events.Key] = deque()
        self._waits_in: MessagePump | None = None

    async def add(self, key: events.Key) -> None:
        self._waiting.append(key)
        # a queue that ended with the callback in it never calls it
        if self._waits_in is None or not self._waits_in.is_running:
            await self._handle_next()

    async def _handle_next(self) -> None:
        if not self._waiting:
            self._waits_in = None
            return
        self._waits_in = self._app
        if not self._app.accepts_keys:
            self._app.set_timer(KEY_CHECK_S, self._handle_next)
            return
        path = self._path()
        await self._app.handle_input(self._waiting.popleft())
        await self._follow(path)

    def _path(self) -> Iterator[MessagePump]:
        """Yield the queues that the effects of a key pass through; the last ones as they are when they are reached."""
        yield from (self._app.focused or self._app.screen).ancestors_with_self
        yield self._app.screen
        yield self._app
        yield self._app.screen
        yield self._app

    async def _follow(self, path: Iterator[MessagePump]) -> None:
        for pump in path:
            if pump.is_running and pump.call_later(self._follow, path):
                self._waits_in = pump
                return
        await self._handle_next()


def _fail(failure: BaseException) -> None:
    raise failure


def first_screen(session: Session) -> ScreenSpec:
    """Return the screen to show first; mounting another one first would delay it."""
    if session.logs:
        return LOGS_SCREEN
    return EPISODES_SCREEN if session.control is None else LIVE_SCREEN
