"""The live screen: environments, and the running episode with its steps, transcript, trace and rewards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.bottleneck import present_bottleneck
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_facts import bottleneck_line
from agentgym_tui.presenters.live import notice_line
from agentgym_tui.presenters.machine import MachineView, machine_summary
from agentgym_tui.presenters.run_rows import ended_line
from agentgym_tui.presenters.status_line import progress_line, status_lines
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, ScreenContext
from agentgym_tui.screens.control import ControlScreen, needs_node
from agentgym_tui.screens.live_panes import LivePanes
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.run_commands import MAX_TOAST_CHARS, unfinished_batches
from agentgym_tui.sessions.session import EpisodeLoadError, load_episode
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines
from runner.events.control import ServerInfo

HEIGHT_BREAKPOINTS: Final = [(0, "-short"), (32, "-high")]
"""Sizes at which the arrangement of the screen changes."""
_TITLE: Final = (Cell("Live", "head"), Cell(" · ", "dim"))
_INDENT: Final = Cell("       ")
_MAX_REASON_LINES: Final = 3
"""Status lines that may explain why the node cannot be reached."""


class EpisodePicker:
    """Selects the episode that the live screen shows.

    Attributes:
        episode_id: the selected episode, "" if there is none.
    """

    def __init__(self) -> None:
        self.episode_id = ""
        self._awaited_id = ""

    def watch_batch(self, run_id: str) -> None:
        """Select an episode of the batch or battery ``run_id`` as soon as the first episode exists."""
        self._awaited_id = run_id

    def select_episode(self, store: RunStore, *, following: bool) -> Episode | None:
        """Return the episode to show; another episode replaces an ended episode only if ``following`` is True."""
        shown = store.episodes.get(self.episode_id)
        of_run = (e for e in reversed(store.episodes.values()) if self._awaited_id in (e.batch_id, e.battery_id))
        if self._awaited_id and (awaited := next(of_run, None)) is not None:
            shown, self._awaited_id = awaited, ""
        elif shown is None or (following and not shown.is_active):
            shown = _next_episode(store, shown)
        self.episode_id = shown.episode_id if shown else ""
        return shown

    def select_neighbor(self, store: RunStore, by: int) -> Episode | None:
        """Select the running episode ``by`` positions on, wrapping around; return None if no other one is running."""
        running = store.running_episodes()
        positions = [position for position, episode in enumerate(running) if episode.episode_id == self.episode_id]
        if not running or (positions and len(running) == 1):
            return None
        start = positions[0] if positions else (-1 if by > 0 else 0)
        episode = running[(start + by) % len(running)]
        self.episode_id, self._awaited_id = episode.episode_id, ""
        return episode


def _next_episode(store: RunStore, shown: Episode | None) -> Episode | None:
    """Return the newest active episode, preferably of the batch of ``shown``.

    Without an active episode, ``shown`` remains if it has no outcome; else this is the newest episode, as whole batches
    can start and end between two selections.
    """
    active = [episode for episode in store.running_episodes() if episode.is_active]
    same = [episode for episode in active if shown is not None and episode.batch_id == shown.batch_id]
    for choice in (same, active):
        if choice:
            return choice[-1]
    return shown if shown is not None and shown.running else next(reversed(store.episodes.values()), None)


class LiveScreen(ControlScreen):
    """The screen that shows a session's node and controls its runs; the UI state holds sort order and pane sizes."""

    SCOPE = "live"
    AUTO_FOCUS = "#environments"
    BLANK = True  # fully covered by the panes
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    VERTICAL_BREAKPOINTS = HEIGHT_BREAKPOINTS

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        session = self.session
        self._picker = EpisodePicker()
        self._episode: Episode | None = None
        self._loaded_id = self._started_id = ""
        self._loaded: Episode | None = None
        self._panes = LivePanes(session.store, session.read_only, self.ui_state)
        self._status = StaticLines(self._status_lines, id="status")
        self._progress = StaticLines(self._progress_lines, id="progress")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._panes
        yield self._progress
        yield KeyBar(self.SCOPE, self.session, first="run")

    def on_resize(self) -> None:
        self._show_status()  # a narrow screen needs more lines

    def draw(self, store: RunStore) -> None:
        super().draw(store)
        if (last := self.commands.last_run) is not None and last.batch_id != self._started_id:
            self._started_id = last.batch_id
            self._picker.watch_batch(last.batch_id)  # its first episode is shown once it exists
        self._episode = self._with_steps(self._picker.select_episode(store, following=self._panes.steps.follow))
        self._show_status()
        self._show_progress()
        self._panes.draw(self._episode)

    def draw_time_left(self) -> None:
        self._show_progress()
        self._panes.draw_waiting()

    def selected_env(self) -> str:
        return self._panes.environments.key

    def action_open(self) -> None:
        if self._episode is None:
            self.toast("no episode selected")
        else:
            self.post_message(self.OpenEpisode(self._episode.episode_id))

    def action_events(self) -> None:
        """Show the bus messages of the watched episode."""
        if self._episode is None:
            self.toast("no episode selected")
        else:
            self.post_message(self.EventsRequested(self._episode.episode_id))

    def action_neighbor(self, by: int) -> None:
        """Watch the running episode ``by`` positions after this one."""
        if self._picker.select_neighbor(self.session.store, by) is None:
            self.toast("no other episode is running")
        else:
            self.draw(self.session.store)

    def action_next_view(self) -> None:
        """Show the view that follows the current view in the order transcript or picture, trace, rewards."""
        self._panes.next_view()

    def action_world(self) -> None:
        """Switch between the transcript of the selected step and the picture of the environment after it."""
        if self._episode is None:
            self.toast("no episode selected")
        else:
            self._panes.toggle_world()

    @needs_node
    def action_cancel(self) -> None:
        """Cancel the running batch; if its battery has more batches, let the user choose how much to cancel."""
        batch = self._batch()
        if batch is None:
            self.toast("no batch is running")
            return
        unfinished = unfinished_batches(self.session.store)
        others = [each for each in unfinished if each.battery_id and each.battery_id == batch.battery_id]
        if len(others) < 2:
            self.cancel([batch])
            return
        from agentgym_tui.screens.dialogs.confirm import cancel_dialog

        def dialog_closed(answer: str | None) -> None:
            if answer in ("batch", "battery"):
                self.cancel([batch] if answer == "batch" else others)

        self.app.push_screen(cancel_dialog(batch, len(others) - 1), dialog_closed)

    @needs_node
    def action_pause(self) -> None:
        """Pause or resume the batch of the watched episode; this also works between two episodes."""
        if (batch := self._batch()) is None:
            self.toast("no batch is running")
        else:
            self.pause_or_resume(batch.batch_id, [batch])

    @needs_node
    def action_step(self) -> None:
        """Advance the watched episode by one step."""
        if self._episode is None or not self._episode.running:
            self.toast("no running episode selected")
        else:
            self.run_command(partial(self.commands.step, self._episode))

    @needs_node
    def action_start_server(self) -> None:
        """Start the server of the selected environment."""
        if env := self._panes.environments.key:
            self.run_command(partial(self._change_server, self.commands.control.start_server, env))

    @needs_node
    def action_stop_server(self) -> None:
        """Stop the server of the selected environment; first ask if episodes run there."""
        from agentgym_tui.screens.dialogs.confirm import running_in, stop_server_dialog

        env, store = self._panes.environments.key, self.session.store

        def dialog_closed(answer: str | None) -> None:
            if answer == "stop":
                self.run_command(partial(self._change_server, self.commands.control.stop_server, env))

        if env and running_in(store, env):
            self.app.push_screen(stop_server_dialog(store, env), dialog_closed)
        elif env:
            dialog_closed("stop")

    @on(LineList.Selected)
    def _line_selected(self, chosen: LineList.Selected) -> None:
        if chosen.view is self._panes.environments:
            self.post_message(self.EpisodesRequested(chosen.key))
        elif self._episode is not None:
            self.action_open()

    @on(LineList.FollowChanged)
    def _follow_changed(self) -> None:
        self.draw(self.session.store)

    def _with_steps(self, episode: Episode | None) -> Episode | None:
        """Return the episode; one that ended before the console saw its steps is replaced by its file once loaded."""
        if episode is None or episode.running or episode.steps or not episode.rounds:
            return episode
        if self._loaded_id != episode.episode_id:
            self._loaded_id, self._loaded = episode.episode_id, None
            start_worker(self, partial(self._load, episode), group="file", exclusive=True)
        return self._loaded or episode

    async def _load(self, episode: Episode) -> None:
        try:
            loaded = (await load_episode(self.session, None, episode.episode_id)).episode
        except EpisodeLoadError:  # the outcome stays visible, and opening the episode shows the reason
            return
        if loaded is not episode and self._loaded_id == episode.episode_id:
            loaded.version = episode.version + 1
            self._loaded = loaded
            self.draw(self.session.store)

    def _status_lines(self, width: int) -> Sequence[Line]:
        store, room = self.session.store, max(width - len(_INDENT.text), 0)
        max_cause_lines = _MAX_REASON_LINES if self._episode else 0  # else the welcome text shows it
        view = MachineView(store, keymap_of(self.app).key, self.session.read_only)
        problem = machine_summary(view, min(room // 2, 80))
        first, *more = status_lines(store, self.session.title, room, max_cause_lines=max_cause_lines, problem=problem)
        return [[*_TITLE, *first], *([_INDENT, *each] for each in more)]

    def _show_status(self) -> None:
        lines = self._status_lines(self.size.width - LIST_MARGIN)
        self._status.styles.height = len(lines)
        self._status.show(lambda width: lines)

    def _show_progress(self) -> None:
        bottleneck = present_bottleneck(self.session.store)
        self._progress.styles.height = 1 + bool(bottleneck.sentence)
        self._progress.show(lambda width: [*self._progress_lines(width), bottleneck_line(bottleneck, width)])

    def _progress_lines(self, width: int) -> Sequence[Line]:
        store = self.session.store
        if (newest_loss := store.notice_list.recent_loss) is not None:
            return [notice_line(newest_loss, width)]
        batch = self._shown_batch
        line = progress_line(
            batch,
            width,
            now=store.now(),
            lost=batch is not None and store.is_lost(batch),
            spent=store.usage_of(batch) if batch else None,
            n_waiting=store.batch_registry.n_waiting,
            currency=store.currency,
        )
        line = line or notice_line(store.notice_list.newest, width)
        return [line or ended_line(store, keymap_of(self.app).key("run.summary"), width)]

    def _batch(self) -> BatchRun | None:
        store, episode = self.session.store, self._episode
        batch = store.batches.get(episode.batch_id) if episode is not None and episode.running else None
        return batch or self._shown_batch or next(iter(unfinished_batches(store)), None)

    @property
    def _shown_batch(self) -> BatchRun | None:
        """The batch of the progress line."""
        store = self.session.store
        batches = store.batch_registry
        return batches.active() or (None if store.notice_list.newest else batches.interrupted())

    async def _change_server(self, change: Callable[[str], Awaitable[ServerInfo]], env: str) -> None:
        info = await change(env)
        cause = f": {sanitize_message(info.cause, MAX_TOAST_CHARS)}" if info.cause else ""
        self.toast(f"server of {info.env} {info.status}{cause}", failed=info.status == "failed")
