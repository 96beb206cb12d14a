"""The panes of the live screen, each redrawn only if its content has changed."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from textual import events, on
from textual.app import ComposeResult
from textual.message import Message

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.environment_rows import ENV_COLUMNS, EnvironmentRows, unsafe_environment_text
from agentgym_tui.presenters.pane_titles import (
    environments_title,
    rewards_title,
    steps_title,
    trace_title,
    transcript_title,
)
from agentgym_tui.presenters.step_rows import STEP_COLUMNS, StepRows, unsafe_episode_text, unsafe_step_text
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.presenters.welcome import welcome_lines
from agentgym_tui.safe_text import trusted
from agentgym_tui.state.data_model import EnvironmentState, Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.charts import RewardPlot, Waterfall
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.pane import Pane
from agentgym_tui.widgets.split import Share, Split, unzoom
from agentgym_tui.widgets.static_lines import WrappedText
from agentgym_tui.widgets.table import SortableTable, Table
from agentgym_tui.widgets.transcript import Transcript

ENVIRONMENTS_KEY: Final = "environments"
"""Id of the table; also the key of its order in the UI state."""

_env_fields: Final = attrgetter(*EnvironmentState.__struct_fields__)
VIEWS: Final = ("transcript", "trace", "rewards")
"""The panes that share one place on a narrow screen."""

SHARES: Final = (
    Share("left", "live.wide.left", "width", 20, 80, "-wide"),
    Share("left", "live.narrow.left", "height", 40, 80, "-narrow"),
    Share("environments-pane", "live.wide.environments", "height", 10, 45, "-wide"),
    Share("environments-pane", "live.narrow.environments", "height", 15, 60, "-narrow"),
    Share("trace-pane", "live.wide.trace", "height", 10, 45, "-wide"),
    Share("rewards-pane", "live.wide.rewards", "height", 10, 80, "-wide"),
)


class LivePanes(Split):
    """The environments beside one episode (steps, transcript, trace, rewards), or beside a welcome text without one.

    Args:
        store: the console's state.
        read_only: why this console cannot start runs, "" if it can.
        ui_state: saved sort order of the environments and sizes of the panes; updated in place.
    """

    class Completed(Message):
        """All panes are mounted."""

    def __init__(self, store: RunStore, read_only: str = "", ui_state: UiState | None = None) -> None:
        self._ui_state = ui_state or UiState()
        super().__init__(SHARES, self._ui_state.sizes, classes=f"-view-{VIEWS[0]} -empty")
        self._read_only = read_only
        self._store = store
        self._is_complete = False
        self._episode: Episode | None = None
        self._view = VIEWS[0]
        self._plotted_env = self._selected_env = ""
        self._drawn: dict[str, object] = {}
        self.environments = SortableTable(
            ENV_COLUMNS, sorting=self._ui_state.sorting.get(ENVIRONMENTS_KEY), id=ENVIRONMENTS_KEY
        )
        self.steps = Table(STEP_COLUMNS, id="steps")
        self._trace = Waterfall(id="trace")
        self._transcript = Transcript(id="transcript")
        self._rewards = RewardPlot(id="rewards")
        self._welcome = WrappedText(self._welcome_lines, id="welcome")
        views = (self.environments, self.steps, self._trace, self._transcript, self._rewards, self._welcome)
        self._panes = {str(view.id): Pane(view, id=f"{view.id}-pane") for view in views}
        self._sides = [
            Split(SHARES, self._ui_state.sizes, self._panes[view], id=side)
            for side, view in (("left", "environments"), ("right", "welcome"))
        ]

    def compose(self) -> ComposeResult:
        """Yield the environments at the left and the welcome text at the right."""
        yield from self._sides

    def on_mount(self) -> None:
        """Mount the panes of the episode after the first paint, because mounting them earlier would delay it."""
        self._panes["welcome"].set_title(lambda _: [[Cell(trusted("Welcome"), "head")]])
        self.call_after_refresh(self._mount_others)

    async def _mount_others(self) -> None:
        for side, first, second in zip(self._sides, ("steps", "transcript"), ("trace", "rewards"), strict=True):
            if not self.is_attached:  # the screen was closed before the first paint
                return
            await side.mount(self._panes[first], self._panes[second])
        self._is_complete = True
        self.steps.follow = True
        self.post_message(self.Completed())

    def draw(self, episode: Episode | None) -> None:
        """Show the current state of the store and the episode ``episode``."""
        previous, self._episode = self._episode, episode if self._is_complete else None
        episode = self._episode
        if self.has_class("-empty") != (episode is None):
            if self._welcome.has_focus:
                self.screen.set_focus(self.steps)
            self.set_class(episode is None, "-empty")
            unzoom(self.screen)
            self.fit()
        if episode is None:
            self._draw_welcome()
        elif previous is None or previous.episode_id != episode.episode_id:
            self.steps.follow, self._plotted_env = True, episode.env
        self._draw_environments()
        self._draw_steps()
        self._draw_rewards()

    def next_view(self) -> None:
        """Show the view that follows the current view in the order transcript, trace, rewards."""
        if self._episode is None:
            return
        self._select_view(VIEWS[(VIEWS.index(self._view) + 1) % len(VIEWS)])
        self.screen.set_focus(self.query_one(f"#{self._view}"))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Select the focused view; the narrow layout shows only the selected view."""
        if event.widget.id in VIEWS:
            self._select_view(event.widget.id)

    def _select_view(self, view: str) -> None:
        if view != self._view:
            self.remove_class(f"-view-{self._view}")
            self._view = view
            self.add_class(f"-view-{view}")
            self.fit()

    def unsafe_text(self) -> str | None:
        """Return the raw text of the selected table row if sanitizing changes it, else None."""
        env = self._store.envs.get(self.environments.key)
        if self.environments.has_focus and env is not None:
            return unsafe_environment_text(env)
        episode, rows = self._episode, self.steps.source
        if not self.steps.has_focus or episode is None or not isinstance(rows, StepRows):
            return None
        step = rows.step(self.steps.cursor)
        return (unsafe_step_text(step) if step is not None else None) or unsafe_episode_text(episode)

    @on(LineList.CursorMoved, "#steps")
    def _step_moved(self) -> None:
        self._draw_transcript()

    @on(LineList.CursorMoved, "#environments")
    def _environment_moved(self, moved: LineList.CursorMoved) -> None:
        # the initial selection is not a choice of the user
        previous, self._selected_env = self._selected_env, moved.key
        if previous or not self._plotted_env:
            self._plotted_env = moved.key
        self._draw_environments_title()
        self._draw_rewards()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        self._ui_state.set_sorting(ENVIRONMENTS_KEY, event.sorting)
        self._draw_environments()

    @on(LineList.FollowChanged)
    def _follow_changed(self, followed: LineList.FollowChanged) -> None:
        # all together: reading an old reply must not jump to the next step
        if followed.view is self._transcript:
            self.steps.follow = followed.following
        elif followed.view is self.steps:
            self._transcript.follow = self._trace.follow = followed.following

    def _draw_welcome(self) -> None:
        self._welcome.set_lines(self._welcome_lines)

    def _welcome_lines(self, width: int) -> list[Line]:
        return welcome_lines(self._store, width, keymap_of(self.app).key, self._read_only)

    def _draw_environments(self) -> None:
        store, sorting = self._store, self.environments.sorting
        if self._has_changed("environments", (sorting, [*map(_env_fields, store.envs.values())])):
            self.environments.show(EnvironmentRows(store, sorting))
            self.fit()
        self._draw_environments_title()

    def _draw_environments_title(self) -> None:
        store, selected_env = self._store, self._selected_env
        self._panes["environments"].set_title(lambda width: environments_title(store, selected_env, width))

    def _draw_steps(self) -> None:
        store, episode, key = self._store, self._episode, self._follow_key(self.steps)
        self._panes["steps"].set_title(lambda width: steps_title(store, episode, key, width))
        if episode is None:
            if self._has_changed("steps", None):
                self.steps.show(FixedLines(()))
            return
        if self._has_changed("steps", (episode.episode_id, list(episode.steps), episode.streaming, episode.running)):
            self.steps.show(StepRows(episode))
        if self._has_changed("spans", (episode.episode_id, len(episode.spans))):
            self._trace.show_spans(episode.spans.all)
        n_spans, tail = len(episode.spans), self._follow_key(self._trace)
        self._panes["trace"].set_title(lambda width: trace_title(n_spans, tail, width))
        self._draw_transcript()

    def _draw_transcript(self) -> None:
        episode, rows = self._episode, self.steps.source
        if episode is None or not isinstance(rows, StepRows):
            return
        index, key = self._selected_step(episode, rows), self._follow_key(self._transcript)
        self._panes["transcript"].set_title(lambda width: transcript_title(episode, index, key, width))
        subject = f"{episode.episode_id}/{index}"
        ending = (episode.streaming, episode.error_type, episode.error_message)
        if self._has_changed("transcript", (subject, list(episode.steps), list(episode.reset_observation), ending)):
            follow = self.steps.follow if self._has_changed("subject", subject) else None
            self._transcript.show_blocks(step_blocks(episode, index), subject=subject, follow=follow)

    def _follow_key(self, view: LineList) -> str:
        return "" if view.follow else keymap_of(self.app).key("list.bottom")

    def _selected_step(self, episode: Episode, rows: StepRows) -> int:
        if (step := rows.step(self.steps.cursor)) is not None:
            return step.index
        key = self.steps.key.removeprefix("gap")
        return int(key) if key.isdecimal() and episode.steps else 0

    def _draw_rewards(self) -> None:
        env, points = self._plotted_env, self._store.rewards.get(self._plotted_env, ())
        if self._has_changed("rewards", (env, len(points), points[-1] if points else None)):
            self._rewards.show_points(list(points))
            self._panes["rewards"].set_title(lambda width: rewards_title(env, width))

    def fit(self) -> None:
        """Fit all panes; by default the environments pane is as high as its content, within limits."""
        is_empty = self._episode is None
        self.fixed = is_empty or (self._view == "trace" and self.screen.has_class("-narrow"))
        n_rows = max(4, min(len(self._store.envs) + 2, self.size.height // (2 if is_empty else 4)))
        self._sides[0].default_sizes = {"environments-pane": n_rows}
        super().fit()
        for side in self._sides:
            side.fixed = is_empty
            side.fit()

    def _has_changed(self, key: str, value: object) -> bool:
        if key in self._drawn and self._drawn[key] == value:
            return False
        self._drawn[key] = value
        return True
