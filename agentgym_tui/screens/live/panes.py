"""The live screen's panes in their places: which are shown, which one is zoomed, and which episode they show."""

from __future__ import annotations

from typing import Final, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.message import Message

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.screens.live.live_panes import (
    ENVIRONMENTS_KEY,
    LIVE_PANES,
    WORLD_KEY,
    EnvironmentsPane,
    LivePane,
    LiveState,
    RewardsPane,
    StepsPane,
    TracePane,
    TranscriptPane,
    WelcomePane,
    WorldPane,
)
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.split import Share, Split, unzoom
from agentgym_tui.widgets.table import SortableTable

PaneType = TypeVar("PaneType", bound=LivePane)

SIDES: Final = ("left", "right")
MAX_NODE_WAIT_S: Final = 0.5
"""Seconds for which the panes of an episode wait until a node is shown."""

SIDE_SHARES: Final = (
    Share("left", "live.wide.left", "width", 20, 80, "-wide"),
    Share("left", "live.narrow.left", "height", 40, 80, "-narrow"),
)


class LivePanes(Split):
    """The environments beside one episode with its steps, or beside a welcome text without one.

    Args:
        store: the console's state.
        read_only: why this console cannot start runs, "" if it can.
        ui_state: saved sort order of the environments and sizes of the panes; updated in place.

    Attributes:
        environments: the list of environments.
        steps: the list of steps.
    """

    class Completed(Message):
        """All panes are mounted."""

    def __init__(self, store: RunStore, read_only: str = "", ui_state: UiState | None = None) -> None:
        self._ui_state = ui_state or UiState()
        shares = live_shares()
        super().__init__(shares, self._ui_state.sizes, classes="-empty")
        self._read_only = read_only
        self._store = store
        self._is_complete = self._is_completing = False
        self._episode: Episode | None = None
        self._plotted_env = self._selected_env = ""
        self._n_envs = 0
        self._panes = {spec.id: spec.factory(self._ui_state) for spec in LIVE_PANES}
        self._environments, self._steps = self._pane(EnvironmentsPane), self._pane(StepsPane)
        self._transcript, self._world = self._pane(TranscriptPane), self._pane(WorldPane)
        self.environments, self.steps = self._environments.table, self._steps.table
        self._turns = [self._panes[spec.id] for spec in LIVE_PANES if spec.takes_turns]
        for pane in self._turns:
            pane.add_class("-turn", update=False)
        self._turn = self._turns[0]
        self._turn.add_class("-current", update=False)
        self._left, self._right = (
            Split(shares, self._ui_state.sizes, *self._panes_of(side, is_first=True), id=side) for side in SIDES
        )

    def compose(self) -> ComposeResult:
        yield from (self._left, self._right)

    def on_mount(self) -> None:
        if self._store.link.status in ("starting", "connecting"):
            self.call_after_refresh(self.set_timer, MAX_NODE_WAIT_S, self._mount_others)
        else:
            self.call_after_refresh(self._mount_others)

    async def _mount_others(self) -> None:
        if self._is_completing:
            return
        self._is_completing = True
        for split, side in zip((self._left, self._right), SIDES, strict=True):
            if not self.is_attached:  # the screen was closed before the first paint
                return
            await split.mount(*self._panes_of(side, is_first=False))
        self._is_complete = True
        self.steps.follow = True
        self.post_message(self.Completed())

    def _panes_of(self, side: str, *, is_first: bool) -> list[LivePane]:
        return [self._panes[spec.id] for spec in LIVE_PANES if (spec.side, spec.is_first) == (side, is_first)]

    def _pane(self, kind: type[PaneType]) -> PaneType:
        return next(pane for pane in self._panes.values() if isinstance(pane, kind))

    def draw(self, episode: Episode | None) -> None:
        """Show the current state of the store and the episode ``episode``."""
        if not self._is_completing and self._store.nodes:
            self.call_after_refresh(self._mount_others)
        previous, self._episode = self._episode, episode if self._is_complete else None
        episode = self._episode
        if self.has_class("-empty") != (episode is None):
            if self._pane(WelcomePane).has_focus_within:
                self.screen.set_focus(self.steps)
            self.set_class(episode is None, "-empty")
            unzoom(self.screen)
            self.fit()
        if episode is not None and (previous is None or previous.episode_id != episode.episode_id):
            self.steps.follow, self._plotted_env = True, episode.env
        state = self._state
        for pane in self._panes.values():
            pane.draw(state)
            if pane is self._steps:  # drawing the steps may select another one
                state = self._state
        if (n_envs := len(self._store.envs)) != self._n_envs:
            self._n_envs = n_envs
            self.fit()

    def draw_waiting(self) -> None:
        """Draw again for how long the endpoint of the watched episode has sent nothing."""
        if self._episode is not None and self._store.answer_wait_s(self._episode) is not None:
            for pane in (self._steps, self._transcript):
                pane.draw_time(self._state)

    @property
    def _state(self) -> LiveState:
        return LiveState(
            self._store,
            keymap_of(self.app).key,
            self._read_only,
            self._episode,
            self._steps.step,
            self.steps.follow,
            self._selected_env,
            self._plotted_env,
            self._shows_world,
        )

    def next_view(self) -> None:
        """Show the next of the panes that take turns; the picture is in the place of the transcript or hidden."""
        if self._episode is None:
            return
        hidden = self._transcript if self._shows_world else self._world
        turns = [pane for pane in self._turns if pane is not hidden]
        self._select_turn(turns[(turns.index(self._turn) + 1) % len(turns)])
        self.screen.set_focus(self._turn.view)

    def toggle_world(self) -> None:
        """Show the picture of the environment instead of the transcript, or the transcript again."""
        if self._episode is None:
            return
        hidden, shown = (self._transcript, self._world)[:: -1 if self._shows_world else 1]
        if hidden.has_focus_within:
            self.screen.set_focus(self.steps)
        self._select_turn(shown)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Select the focused pane; the narrow layout shows only the selected one of those that take turns."""
        if (pane := event.widget.parent) in self._turns:
            self._select_turn(pane)

    def _select_turn(self, pane: LivePane) -> None:
        if pane is not self._turn:
            self._turn.remove_class("-current")
            self._turn = pane
            pane.add_class("-current")
            self.set_class(pane.parent is self._left, "-turn-left")
            if pane in (self._transcript, self._world):
                self.set_class(pane is self._world, f"-{WORLD_KEY}")
                self._world.draw(self._state)
            self.fit()

    @property
    def _shows_world(self) -> bool:
        return self.has_class(f"-{WORLD_KEY}")

    @property
    def _focused_pane(self) -> LivePane | None:
        return next((pane for pane in self._panes.values() if pane.has_focus_within), None)

    @on(LineList.CursorMoved, "#steps")
    def _step_moved(self) -> None:
        for pane in (self._transcript, self._world):
            pane.draw(self._state)

    @on(LineList.CursorMoved, "#environments")
    def _environment_moved(self, moved: LineList.CursorMoved) -> None:
        # the initial selection is not a choice of the user
        previous, self._selected_env = self._selected_env, moved.key
        if previous or not self._plotted_env:
            self._plotted_env = moved.key
        self._environments.draw(self._state)
        self._pane(RewardsPane).draw(self._state)

    @on(SortableTable.Sorted, f"#{ENVIRONMENTS_KEY}")
    def _sorted(self, event: SortableTable.Sorted) -> None:
        self._ui_state.set_sorting(ENVIRONMENTS_KEY, event.sorting)
        self._environments.draw(self._state)

    @on(LineList.FollowChanged)
    def _follow_changed(self, followed: LineList.FollowChanged) -> None:
        # all together: reading an old reply must not jump to the next step
        transcript = self._transcript.transcript
        if followed.view is transcript:
            self.steps.follow = followed.following
        elif followed.view is self.steps:
            transcript.follow = self._pane(TracePane).waterfall.follow = followed.following

    def fit(self) -> None:
        is_empty = self._episode is None
        self.fixed = is_empty or (self.has_class("-turn-left") and self.screen.has_class("-narrow"))
        n_rows = max(4, min(len(self._store.envs) + 2, self.size.height // (2 if is_empty else 4)))
        self._left.default_sizes = {"environments-pane": n_rows}
        super().fit()
        for side in (self._left, self._right):
            side.fixed = is_empty
            side.fit()


def live_shares() -> list[Share]:
    """Return the adjustable sizes of the sides and of all panes."""
    return [*SIDE_SHARES, *(share for spec in LIVE_PANES for share in spec.shares)]
