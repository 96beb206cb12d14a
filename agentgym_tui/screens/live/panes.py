"""The panes of the live screen: each is drawn again only when what it shows has changed."""

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
from agentgym_tui.state.models import EnvironmentState, Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.cached_widgets import CachedContainer
from agentgym_tui.widgets.charts import RewardPlot, Waterfall
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.pane import Pane
from agentgym_tui.widgets.pane_layouts import LIVE_NARROW, LIVE_NARROW_TRACE, LIVE_WIDE, PaneLayout
from agentgym_tui.widgets.pane_sizes import PaneSizes, SplitView
from agentgym_tui.widgets.static_lines import WrappedText
from agentgym_tui.widgets.table import SortableTable, Table
from agentgym_tui.widgets.transcript import Transcript

ENVIRONMENTS: Final = "environments"
"""The table, also where its order is kept."""

_ALL_OF: Final = attrgetter(*EnvironmentState.__struct_fields__)
VIEWS: Final = ("transcript", "trace", "rewards")
"""The panes that share one place where there is little room."""


class LivePanes(SplitView):
    """Environments, and of one episode steps, transcript, trace and rewards; or how to begin.

    Args:
        store: what is known.
        read_only: why nothing can be played from here, "" when it can.
        kept: the order of the environments, and the sizes of panes, as they were left.
    """

    class Completed(Message):
        """All panes are there."""

    def __init__(self, store: RunStore, read_only: str = "", kept: UiState | None = None) -> None:
        super().__init__(classes=f"-view-{VIEWS[0]} -empty")
        self._read_only = read_only
        self._kept = kept or UiState()
        self._store = store
        self._complete = False
        self._episode: Episode | None = None
        self._view = VIEWS[0]
        self._plotted = self._selected = ""
        self._seen: dict[str, object] = {}
        self.environments = SortableTable(ENV_COLUMNS, sorting=self._kept.sorting.get(ENVIRONMENTS), id=ENVIRONMENTS)
        self.steps = Table(STEP_COLUMNS, id="steps")
        self._trace = Waterfall(id="trace")
        self._transcript = Transcript(id="transcript")
        self._rewards = RewardPlot(id="rewards")
        self._welcome = WrappedText(self._welcome_lines, id="welcome")
        views = (self.environments, self.steps, self._trace, self._transcript, self._rewards, self._welcome)
        self._panes = {str(view.id): Pane(view, id=f"{view.id}-pane") for view in views}
        self._sizes = PaneSizes(self, self._kept, LIVE_WIDE, LIVE_NARROW, LIVE_NARROW_TRACE)

    def compose(self) -> ComposeResult:
        """What there is to see and do at the left, what was said and came of it at the right."""
        yield CachedContainer(self._panes["environments"], id="left")
        yield CachedContainer(self._panes["welcome"], id="right")

    def on_mount(self) -> None:
        """The panes of an episode come after the first paint, which they would make late."""
        self._panes["welcome"].set_title(lambda _: [[Cell(trusted("Welcome"), "head")]])
        self.call_after_refresh(self._mount_others)

    async def _mount_others(self) -> None:
        for side, first, second in (("left", "steps", "trace"), ("right", "transcript", "rewards")):
            if not self.is_attached:  # left before it was there
                return
            await self.query_one(f"#{side}").mount(self._panes[first], self._panes[second])
        self._complete = True
        self.steps.follow = True
        self.post_message(self.Completed())

    def on_resize(self) -> None:
        """The panes take their share of another size."""
        self._fit()

    def draw(self, episode: Episode | None) -> None:
        """Show what the store knows now, and this episode."""
        before, self._episode = self._episode, episode if self._complete else None
        episode = self._episode
        if self.has_class("-empty") != (episode is None):
            if self._welcome.has_focus:
                self.screen.set_focus(self.steps)
            self.set_class(episode is None, "-empty")
            self._unzoom()
        if episode is None:
            self._draw_welcome()
        elif before is None or before.episode_id != episode.episode_id:
            self.steps.follow, self._plotted = True, episode.env
        self._draw_environments()
        self._draw_steps()
        self._draw_rewards()

    def zoom(self) -> None:
        """The focused pane alone, and back."""
        pane = next((pane for pane in self._panes.values() if pane.has_focus_within), None)
        if self.has_class("-zoomed") or pane is None:
            self._unzoom()
            return
        self.add_class("-zoomed")
        pane.add_class("-zoomed")
        if isinstance(side := pane.parent, CachedContainer):
            side.add_class("-zoomed")
        self._fit()

    def resize(self, direction: str) -> bool:
        """Change the size of the focused pane; False where that cannot be."""
        if self.has_class("-zoomed") or self._episode is None:
            return False
        focused = self.screen.focused
        if done := self._sizes.resize(self._layout(), focused.id if focused is not None else None, direction):
            self._fit()
        return done

    @on(SplitView.Dragged)
    def _dragged(self, event: SplitView.Dragged) -> None:
        self._sizes.drag(self._layout(), event.share)
        self._fit()

    def next_view(self) -> None:
        """Transcript, trace, rewards, transcript, and so on."""
        if self._episode is None:
            return
        self._pick(VIEWS[(VIEWS.index(self._view) + 1) % len(VIEWS)])
        self.screen.set_focus(self.query_one(f"#{self._view}"))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Where there is room for one of them only, it is the one that was looked at last."""
        if event.widget.id in VIEWS:
            self._pick(event.widget.id)

    def _pick(self, view: str) -> None:
        if view != self._view:
            self.remove_class(f"-view-{self._view}")
            self._view = view
            self.add_class(f"-view-{view}")
            self._fit()

    def hostile_text(self) -> str | None:
        """What is behind the line of a table's cursor, where cleaning changes it."""
        env = self._store.envs.get(self.environments.key)
        if self.environments.has_focus and env is not None:
            return unsafe_environment_text(env)
        episode, rows = self._episode, self.steps.source
        if not self.steps.has_focus or episode is None or not isinstance(rows, StepRows):
            return None
        step = rows.step(self.steps.cursor)
        return (unsafe_step_text(step) if step is not None else None) or unsafe_episode_text(episode)

    @on(LineList.CursorMoved, "#steps")
    def _step_selected(self) -> None:
        self._draw_transcript()

    @on(LineList.CursorMoved, "#environments")
    def _environment_selected(self, moved: LineList.CursorMoved) -> None:
        """The rewards are those of the environment that somebody goes to, but not of the one it starts with."""
        before, self._selected = self._selected, moved.key
        if before or not self._plotted:
            self._plotted = moved.key
        self._title_environments()
        self._draw_rewards()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        self._kept.set_sorting(ENVIRONMENTS, event.sorting)
        self._draw_environments()

    @on(LineList.FollowChanged)
    def _followed(self, followed: LineList.FollowChanged) -> None:
        """Transcript and steps follow together; who reads an old reply does not want the next step."""
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
        if self._changed("environments", (sorting, [*map(_ALL_OF, store.envs.values())])):
            self.environments.show(EnvironmentRows(store, sorting))
            self._fit()
        self._title_environments()

    def _title_environments(self) -> None:
        store, selected = self._store, self._selected
        self._panes["environments"].set_title(lambda width: environments_title(store, selected, width))

    def _draw_steps(self) -> None:
        store, episode, key = self._store, self._episode, self._key_to(self.steps)
        self._panes["steps"].set_title(lambda width: steps_title(store, episode, key, width))
        if episode is None:
            if self._changed("steps", None):
                self.steps.show(FixedLines(()))
            return
        if self._changed("steps", (episode.episode_id, list(episode.steps), episode.streaming, episode.running)):
            self.steps.show(StepRows(episode))
        if self._changed("spans", (episode.episode_id, len(episode.spans))):
            self._trace.show_spans(episode.spans.all)
        n_spans, tail = len(episode.spans), self._key_to(self._trace)
        self._panes["trace"].set_title(lambda width: trace_title(n_spans, tail, width))
        self._draw_transcript()

    def _draw_transcript(self) -> None:
        episode, rows = self._episode, self.steps.source
        if episode is None or not isinstance(rows, StepRows):
            return
        index, key = self._step_index(episode, rows), self._key_to(self._transcript)
        self._panes["transcript"].set_title(lambda width: transcript_title(episode, index, key, width))
        subject = f"{episode.episode_id}/{index}"
        ending = (episode.streaming, episode.error_type, episode.error_message)
        if self._changed("transcript", (subject, list(episode.steps), list(episode.reset_observation), ending)):
            follow = self.steps.follow if self._changed("subject", subject) else None
            self._transcript.show_blocks(step_blocks(episode, index), subject=subject, follow=follow)

    def _key_to(self, view: LineList) -> str:
        """The key that has a list follow its end, "" where it does."""
        return "" if view.follow else keymap_of(self.app).key("list.bottom")

    def _step_index(self, episode: Episode, rows: StepRows) -> int:
        """The step of the cursor, of a gap the first one that is missing."""
        if (step := rows.step(self.steps.cursor)) is not None:
            return step.index
        key = self.steps.key.removeprefix("gap")
        return int(key) if key.isdecimal() and episode.steps else 0

    def _draw_rewards(self) -> None:
        env, points = self._plotted, self._store.rewards.get(self._plotted, ())
        if self._changed("rewards", (env, len(points), points[-1] if points else None)):
            self._rewards.show_points(list(points))
            self._panes["rewards"].set_title(lambda width: rewards_title(env, width))

    def _unzoom(self) -> None:
        self.remove_class("-zoomed")
        self.query(".-zoomed").remove_class("-zoomed")
        self._fit()

    def _fit(self) -> None:
        """Sizes that a person chose; else as many rows as there are environments, unless that is too much."""
        if self.has_class("-zoomed"):
            self._sizes.apply(None)
            return
        most = self.size.height // (2 if self._episode is None else 4)
        fits = max(4, min(len(self._store.envs) + 2, most))
        self._sizes.apply(None if self._episode is None else self._layout(), {"environments-pane": fits})

    def _layout(self) -> PaneLayout:
        if self.screen.has_class("-wide"):
            return LIVE_WIDE
        return LIVE_NARROW_TRACE if self._view == "trace" else LIVE_NARROW

    def _changed(self, what: str, now: object) -> bool:
        """Whether something is another than at the last look."""
        if what in self._seen and self._seen[what] == now:
            return False
        self._seen[what] = now
        return True
