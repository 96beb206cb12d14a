"""The live screen: environments, and the running episode with its steps, transcript, trace and rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.pane_titles import notice_line
from agentgym_tui.presenters.status_line import progress_line, status_lines
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.safe_text import trusted
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS
from agentgym_tui.screens.live.episode_picker import EpisodePicker
from agentgym_tui.screens.live.panes import LivePanes
from agentgym_tui.screens.live.run_actions import RunActionsScreen
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from runner.events.control import StartArgs

HEIGHT_BREAKPOINTS: Final = [(0, "-short"), (32, "-high")]
"""Sizes at which the arrangement of the screen changes."""

_TITLE: Final = (Cell(trusted("Live"), "head"), Cell(trusted(" · "), "dim"))
_INDENT: Final = Cell(trusted("       "))
_MAX_REASON_LINES: Final = 3
"""Status lines that may explain why the node cannot be reached."""


class LiveScreen(RunActionsScreen):
    """The screen that shows the state of a session's node and controls its runs.

    The arguments are those of ``SessionScreen``; the UI state holds sort order and pane sizes.
    """

    CSS_PATH = "../../styles/live.tcss"
    AUTO_FOCUS = "#environments"
    BLANK = True  # fully covered by the panes
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    VERTICAL_BREAKPOINTS = HEIGHT_BREAKPOINTS

    def __init__(
        self, session: Session, ui_state: UiState | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(session, ui_state, now=now)
        self._picker = EpisodePicker()
        self._episode: Episode | None = None
        self._panes = LivePanes(session.store, session.read_only, self.ui_state)
        self._status = StaticLines(self._status_lines, id="status")
        self._progress = StaticLines(self._progress_lines, id="progress")

    def compose(self) -> ComposeResult:
        """Yield status, panes, progress and key bar."""
        yield self._status
        yield self._panes
        yield self._progress
        yield KeyBar(self.SCOPE, self.session)

    def on_screen_resume(self) -> None:
        """Show the changes of the store since the screen was last shown."""
        self.draw(self.session.store)

    def on_resize(self) -> None:
        """Show the status for the new width; a narrow screen needs more lines."""
        self._show_status()

    def draw(self, store: RunStore) -> None:
        """Redraw after the store changed."""
        self._episode = self._picker.select_episode(store, following=self._panes.steps.follow)
        self._show_status()
        self._progress.show(self._progress_lines)
        self._panes.draw(self._episode)

    def selected_env(self) -> str:
        """Return the name of the environment under the cursor, "" if there is none."""
        return self._panes.environments.key

    def watched_episode(self) -> Episode | None:
        """Return the episode that the screen shows; None if there is none."""
        return self._episode

    def started(self, args: StartArgs) -> None:
        """Show the first episode of the started run as soon as that episode exists."""
        self._picker.watch_batch(args.batch_id)
        self.draw(self.session.store)

    def unsafe_text(self) -> str | None:
        """Return the raw text of the selected table row if sanitizing changes it, else None."""
        return self._panes.unsafe_text()

    def action_open(self) -> None:
        """Open the watched episode."""
        from agentgym_tui.screens.episode.screen import EpisodeScreen

        if self._episode is None:
            self.show_toast(trusted("no episode selected"))
        else:
            self.app.push_screen(EpisodeScreen(self.session, self._episode.episode_id, ui_state=self.ui_state))

    def action_events(self) -> None:
        """Show the bus messages of the watched episode."""
        from agentgym_tui.screens.episode.screen import EpisodeScreen

        if self._episode is None:
            self.show_toast(trusted("no episode selected"))
        else:
            self.post_message(EpisodeScreen.EventsRequested(self._episode.episode_id))

    def action_next_running(self) -> None:
        """Watch the next running episode."""
        self._watch_neighbor(1)

    def action_previous_running(self) -> None:
        """Watch the previous running episode."""
        self._watch_neighbor(-1)

    def action_next_view(self) -> None:
        """Show the view that follows the current view in the order transcript, trace, rewards."""
        self._panes.next_view()

    @on(LineList.Selected)
    def _line_selected(self, chosen: LineList.Selected) -> None:
        if chosen.view is self._panes.environments:
            self.action_run_form(chosen.key)
        elif self._episode is not None:
            self.action_open()

    @on(LivePanes.Completed)
    @on(LineList.FollowChanged)
    def _follow_changed(self) -> None:
        self.draw(self.session.store)

    def _watch_neighbor(self, by: int) -> None:
        if self._picker.select_neighbor(self.session.store, by) is None:
            self.show_toast(trusted("no other episode is running"))
        else:
            self.draw(self.session.store)

    def _status_lines(self, width: int) -> Sequence[Line]:
        store, room = self.session.store, max(width - len(_INDENT.text), 0)
        max_cause_lines = _MAX_REASON_LINES if self._episode else 0  # else the welcome text shows it
        first, *more = status_lines(store, self.session.title, room, max_cause_lines=max_cause_lines)
        return [[*_TITLE, *first], *([_INDENT, *each] for each in more)]

    def _show_status(self) -> None:
        lines = self._status_lines(self.size.width - LIST_MARGIN)
        self._status.styles.height = len(lines)
        self._status.show(lambda width: lines)

    def _progress_lines(self, width: int) -> Sequence[Line]:
        store = self.session.store
        if (newest_loss := store.recent_loss) is not None:
            return [notice_line(newest_loss, width)]
        batch = store.active_batch() or (None if store.newest_notice else store.interrupted_batch())
        line = progress_line(batch, width, lost=store.all_nodes_lost, spent=store.usage_of(batch) if batch else None)
        return [line or notice_line(store.newest_notice, width)]
