"""The live screen: environments, the steps of the episode that runs, what was said, where the time goes, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands.availability import hidden_commands
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.pane_titles import notice_line
from agentgym_tui.presenters.status_line import progress_line, status_lines
from agentgym_tui.presenters.text_width import LIST_MARGIN
from agentgym_tui.safe_text import trusted
from agentgym_tui.screens.live.episode_picker import EpisodePicker
from agentgym_tui.screens.live.panes import LivePanes
from agentgym_tui.screens.live.run_actions import RunActionsScreen
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.models import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText
from runner.events.control import StartArgs

WIDTH_BREAKPOINTS: Final = [(0, "-narrow"), (110, "-wide")]
HEIGHT_BREAKPOINTS: Final = [(0, "-short"), (32, "-high")]
"""Sizes from which on the screen is arranged in another way."""

_NAME: Final = (Cell(trusted("Live"), "head"), Cell(trusted(" · "), "dim"))
_INDENT: Final = Cell(trusted("       "))
_WHY: Final = 3
"""Lines of the status that may say why there is no way to the node."""


class LiveScreen(RunActionsScreen):
    """Shows what a session's node does, and has it do things.

    Args:
        session: what is looked at.
        kept: how it was left.
    """

    CSS_PATH = "../../styles/live.tcss"
    AUTO_FOCUS = "#environments"
    BLANK = True  # as of panes
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    VERTICAL_BREAKPOINTS = HEIGHT_BREAKPOINTS

    def __init__(self, session: Session, kept: UiState | None = None) -> None:
        super().__init__(session)
        self._kept = kept or UiState()
        self._watch = EpisodePicker()
        self._episode: Episode | None = None
        self._panes = LivePanes(session.store, session.read_only, self._kept)
        self._status = StatusText(self._status_lines, id="status")
        self._progress = StatusText(self._progress_lines, id="progress")

    def compose(self) -> ComposeResult:
        """Status, panes, progress, keys."""
        yield self._status
        yield self._panes
        yield self._progress
        yield KeyBar("live", without=hidden_commands(self.session))

    def on_screen_resume(self) -> None:
        """Catch up."""
        self.draw(self.session.store)

    def on_resize(self) -> None:
        """The status takes more lines where there is little room."""
        self._fit_status()

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        self._episode = self._watch.pick(store, following=self._panes.steps.follow)
        self._fit_status()
        self._status.show(self._status_lines)
        self._progress.show(self._progress_lines)
        self._panes.draw(self._episode)

    def selected(self) -> str:
        """The environment of the cursor."""
        return self._panes.environments.key

    def watched(self) -> Episode | None:
        """The episode that is shown."""
        return self._episode

    def started(self, args: StartArgs) -> None:
        """Watch it as soon as it begins."""
        self._watch.want(args.batch_id)
        self.draw(self.session.store)

    def zoom(self) -> None:
        """The focused pane alone, and back."""
        self._panes.zoom()

    def resize(self, direction: str) -> bool:
        """Change the size of the focused pane."""
        return self._panes.resize(direction)

    def hostile_text(self) -> str | None:
        """What is behind the line of a table's cursor, where cleaning changes it."""
        return self._panes.hostile_text()

    def action_open(self) -> None:
        """Show the watched episode on a screen of its own."""
        from agentgym_tui.screens.episode.screen import EpisodeScreen

        if self._episode is None:
            self.tell(trusted("there is no episode to open"))
        else:
            self.app.push_screen(EpisodeScreen(self.session, self._episode.episode_id, kept=self._kept))

    def action_events(self) -> None:
        """What was said of the watched episode on the bus."""
        from agentgym_tui.screens.episode.screen import EpisodeScreen

        if self._episode is None:
            self.tell(trusted("there is no episode to look for"))
        else:
            self.post_message(EpisodeScreen.EventsRequested(self._episode.episode_id))

    def action_next_running(self) -> None:
        """Watch the next episode that runs."""
        self._watch_beside(1)

    def action_previous_running(self) -> None:
        """Watch the one before."""
        self._watch_beside(-1)

    def action_next_view(self) -> None:
        """Another one of the views that share a place."""
        self._panes.next_view()

    @on(LineList.Selected)
    def _chosen_line(self, chosen: LineList.Selected) -> None:
        if chosen.view is self._panes.environments:
            self.action_run_form(chosen.key)
        elif self._episode is not None:
            self.action_open()

    @on(LivePanes.Completed)
    @on(LineList.FollowChanged)
    def _followed(self) -> None:
        self.draw(self.session.store)

    def _watch_beside(self, by: int) -> None:
        if self._watch.beside(self.session.store, by) is None:
            self.tell(trusted("no other episode runs"))
        else:
            self.draw(self.session.store)

    def _status_lines(self, width: int) -> Sequence[Line]:
        store, room = self.session.store, max(width - len(_INDENT.text), 0)
        n_why = _WHY if self._episode else 0  # else the welcome says it
        first, *more = status_lines(store, self.session.title, room, n_why=n_why)
        return [[*_NAME, *first], *([_INDENT, *each] for each in more)]

    def _fit_status(self) -> None:
        self._status.styles.height = len(self._status_lines(self.size.width - LIST_MARGIN))

    def _progress_lines(self, width: int) -> Sequence[Line]:
        store = self.session.store
        if (loss := store.recent_loss) is not None:
            return [notice_line(loss, width)]
        batch = store.active_batch()
        line = progress_line(batch, width, lost=store.all_nodes_lost, spent=store.usage_of(batch) if batch else None)
        return [line or notice_line(store.newest_notice, width)]
