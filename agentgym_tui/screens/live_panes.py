"""The panes of the live screen: the environments beside one episode, or beside a welcome text without one.

Each pane has a title and content, and is drawn again only if its content has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical

from agentgym_tui.commands import Registry, keymap_of
from agentgym_tui.config import UiState
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.live import (
    ENV_COLUMNS,
    EnvironmentRows,
    environments_title,
    rewards_title,
    steps_title,
    trace_title,
    transcript_title,
    welcome_lines,
)
from agentgym_tui.presenters.steps import (
    ended_step,
    step_world_lines,
    world_at,
    world_title,
)
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.lists import LineList, StaticLines, WrappedText
from agentgym_tui.widgets.split import Share, Split, unzoom
from agentgym_tui.widgets.table import Table
from agentgym_tui.widgets.transcript import RewardPlot, StepTable, Transcript, Waterfall

ENVIRONMENTS_KEY: Final = "environments"
"""Id of the table; also the key of its order in the UI state."""
WORLD_KEY: Final = "world"
"""Id of the picture of the environment, and class of the panes while they show it instead of the transcript."""
SIDES: Final = ("left", "right")
SIDE_SHARES: Final = (
    Share("left", "live.wide.left", "width", 20, 80, "-wide"),
    Share("left", "live.narrow.left", "height", 40, 80, "-narrow"),
)


class LiveState(NamedTuple):
    """What the panes of the live screen show.

    Attributes:
        key: returns the label of a command's key, by command id.
        read_only: why this console cannot start runs, "" if it can.
        episode: the watched episode; None if there is none.
        step: index of the selected step.
        following: whether the newest step is selected whenever one arrives.
        selected_env, plotted_env: the environment under the cursor, and that whose rewards are shown; "" for none.
        shows_world: whether the picture of the environment is shown instead of the transcript.
    """

    store: RunStore
    key: Callable[[str], str]
    read_only: str
    episode: Episode | None
    step: int
    following: bool
    selected_env: str
    plotted_env: str
    shows_world: bool

    @property
    def subject(self) -> str:
        """Identifies the selected step."""
        return f"{self.episode.episode_id if self.episode else ''}/{self.step}"


class PaneTitle(StaticLines):
    """The title line of a pane, with a bar at the left while the pane has the focus."""

    def mark(self, index: int) -> str:
        return "▌" if isinstance(self.parent, LivePane) and self.parent.has_class("-focused") else " "


class LivePane(Vertical):
    """A pane of the live screen: the list ``view`` under a title; the id of the list is that of the pane's entry."""

    BLANK = True  # fully covered by children; Textual need not draw the background

    def __init__(self, view: LineList) -> None:
        super().__init__(id=f"{view.id}-pane")
        self.view, self._title = view, PaneTitle()
        self._drawn_version: object = None

    def compose(self) -> ComposeResult:
        yield self._title
        yield self.view

    def on_descendant_focus(self) -> None:
        self.add_class("-focused")
        self._title.refresh()

    def on_descendant_blur(self) -> None:
        self.remove_class("-focused")
        self._title.refresh()

    def draw(self, state: LiveState, *, time_only: bool = False) -> None:
        """Draw the title, and the content if it has changed; ``time_only``: also what changes with the time alone."""
        previous, self._drawn_version = self._drawn_version, self.version(state)
        if previous is self._drawn_version is None:
            return
        self._title.show(lambda width: [self.title(state, width)])
        if self._drawn_version != previous:
            self.update(state)
        elif time_only:
            self.view.refresh_lines()  # only rows that have changed are repainted

    def title(self, state: LiveState, width: int) -> Line:
        """Return the title for ``width`` columns."""
        raise NotImplementedError

    def version(self, state: LiveState) -> object:
        """Return what the content depends on; the pane is updated when this value changes. None: nothing to show."""
        raise NotImplementedError

    def update(self, state: LiveState) -> None:
        """Show the content for ``state``, whose version is not None."""
        raise NotImplementedError

    def follow_key(self, state: LiveState) -> str:
        """Return the label of the key that goes to the end of the list; "" while the list follows its end."""
        return "" if self.view.follow else state.key("list.bottom")


class EnvironmentsPane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.table = Table(
            ENV_COLUMNS, can_sort=True, sorting=ui_state.sorting.get(ENVIRONMENTS_KEY), id=ENVIRONMENTS_KEY
        )
        super().__init__(self.table)

    def title(self, state: LiveState, width: int) -> Line:
        return environments_title(state.store, state.selected_env, width)

    def version(self, state: LiveState) -> object:
        return self.table.sorting, state.store.env_registry.version

    def update(self, state: LiveState) -> None:
        self.table.show(EnvironmentRows(state.store, self.table.sorting))


class StepsPane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.table = StepTable()
        super().__init__(self.table)

    def title(self, state: LiveState, width: int) -> Line:
        return steps_title(state.store, state.episode, self.follow_key(state), width)

    def version(self, state: LiveState) -> object:
        return state.episode and (state.episode.episode_id, state.episode.version)

    def update(self, state: LiveState) -> None:
        episode = state.episode
        self.table.show_steps(episode, lambda: state.store.answer_wait_s(episode) if episode else None)


class TracePane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.waterfall = Waterfall(id="trace")
        super().__init__(self.waterfall)

    def title(self, state: LiveState, width: int) -> Line:
        return trace_title(len(state.episode.spans) if state.episode else 0, self.follow_key(state), width)

    def version(self, state: LiveState) -> object:
        return state.episode and (state.episode.episode_id, len(state.episode.spans))

    def update(self, state: LiveState) -> None:
        if state.episode is not None:
            self.waterfall.show_spans(state.episode.spans.all)


class TranscriptPane(LivePane):
    """The transcript of the selected step."""

    def __init__(self, ui_state: UiState) -> None:
        self.transcript = Transcript(id="transcript")
        super().__init__(self.transcript)
        self._subject = ""

    def title(self, state: LiveState, width: int) -> Line:
        if (episode := state.episode) is None:
            return []
        return transcript_title(episode, state.step, self.follow_key(state), width, state.store.answer_wait_s(episode))

    def version(self, state: LiveState) -> object:
        return state.episode and (state.subject, state.episode.version)

    def update(self, state: LiveState) -> None:
        if state.episode is not None:
            previous, self._subject = self._subject, state.subject
            follow = state.following if self._subject != previous else None
            self.transcript.show_blocks(step_blocks(state.episode, state.step), subject=self._subject, follow=follow)


class WorldPane(LivePane):
    """The picture of the environment after the selected step, in the place of the transcript."""

    def __init__(self, ui_state: UiState) -> None:
        self.picture = WrappedText(lambda width: [], id=WORLD_KEY)
        super().__init__(self.picture)

    def title(self, state: LiveState, width: int) -> Line:
        return world_title(state.episode, state.step, state.key("live.world")) if state.episode else []

    def version(self, state: LiveState) -> object:
        episode = state.episode if state.shows_world else None
        return episode and (state.subject, episode.running, world_at(episode, ended_step(episode, state.step)))

    def update(self, state: LiveState) -> None:
        if (episode := state.episode) is not None and state.shows_world:
            self.picture.set_lines(lambda width: step_world_lines(episode, state.step, width))


class RewardsPane(LivePane):
    """The rewards of one environment's episodes."""

    def __init__(self, ui_state: UiState) -> None:
        self.plot = RewardPlot(id="rewards")
        super().__init__(self.plot)

    def title(self, state: LiveState, width: int) -> Line:
        return rewards_title(state.plotted_env, width)

    def version(self, state: LiveState) -> object:
        return state.plotted_env, tuple(state.store.rewards.get(state.plotted_env, ()))

    def update(self, state: LiveState) -> None:
        self.plot.show_points(list(state.store.rewards.get(state.plotted_env, ())))


class WelcomePane(LivePane):
    """The keys to press and what is missing, while there is no episode to watch."""

    def __init__(self, ui_state: UiState) -> None:
        self.text = WrappedText(lambda width: [], id="welcome")
        super().__init__(self.text)

    def title(self, state: LiveState, width: int) -> Line:
        return [Cell("Welcome", "head")]

    def version(self, state: LiveState) -> object:
        return state.store.version if state.episode is None else None

    def update(self, state: LiveState) -> None:
        if state.episode is None:
            self.text.set_lines(lambda width: welcome_lines(state.store, width, state.key, state.read_only))


class PaneSpec(NamedTuple):
    """A pane of the live screen.

    Attributes:
        id: the id, which is also the id of the pane's list.
        side: the side of a wide screen on which the pane is; a narrow screen has the right side below the left one.
        factory: makes the pane from the saved UI state.
        takes_turns: whether a narrow screen shows this pane only while the user has selected it among such panes.
        shares: its adjustable sizes; a pane without one takes the rest.
    """

    id: str
    side: Literal["left", "right"]
    factory: Callable[[UiState], LivePane]
    takes_turns: bool = False
    shares: Sequence[Share] = ()


_ENVIRONMENTS_SHARES: Final = (
    Share("environments-pane", "live.wide.environments", "height", 10, 45, "-wide"),
    Share("environments-pane", "live.narrow.environments", "height", 15, 60, "-narrow"),
)
_TRACE_SHARES: Final = (Share("trace-pane", "live.wide.trace", "height", 10, 45, "-wide"),)
_REWARDS_SHARES: Final = (Share("rewards-pane", "live.wide.rewards", "height", 10, 80, "-wide"),)
LIVE_PANES: Final = Registry(
    PaneSpec(ENVIRONMENTS_KEY, "left", EnvironmentsPane, shares=_ENVIRONMENTS_SHARES),
    PaneSpec("steps", "left", StepsPane),
    PaneSpec("welcome", "right", WelcomePane),
    PaneSpec("transcript", "right", TranscriptPane, takes_turns=True),
    PaneSpec(WORLD_KEY, "right", WorldPane, takes_turns=True),
    PaneSpec("trace", "left", TracePane, takes_turns=True, shares=_TRACE_SHARES),
    PaneSpec("rewards", "right", RewardsPane, takes_turns=True, shares=_REWARDS_SHARES),
)
"""The panes in the order in which they are drawn and take turns; the steps come before what shows the selected one."""

PaneType = TypeVar("PaneType", bound=LivePane)


class LivePanes(Split):
    """All panes in their places: which are shown, which one is zoomed, and which episode they show.

    ``ui_state`` has the saved order of the environments and the sizes of the panes; it is updated in place.
    """

    def __init__(self, store: RunStore, read_only: str = "", ui_state: UiState | None = None) -> None:
        self._ui_state = ui_state or UiState()
        shares = live_shares()
        super().__init__(shares, self._ui_state.sizes, classes="-empty")
        self._read_only = read_only
        self._store = store
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
            Split(
                shares,
                self._ui_state.sizes,
                *(self._panes[spec.id] for spec in LIVE_PANES if spec.side == side),
                id=side,
            )
            for side in SIDES
        )

    def compose(self) -> ComposeResult:
        yield from (self._left, self._right)

    def on_mount(self) -> None:
        self.steps.follow = True

    def _pane(self, kind: type[PaneType]) -> PaneType:
        return next(pane for pane in self._panes.values() if isinstance(pane, kind))

    def draw(self, episode: Episode | None) -> None:
        """Show the current state of the store and the episode ``episode``."""
        previous, self._episode = self._episode, episode
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
                pane.draw(self._state, time_only=True)

    @property
    def _state(self) -> LiveState:
        return LiveState(
            self._store,
            keymap_of(self.app).key,
            self._read_only,
            self._episode,
            self.steps.step,
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

    @on(Table.Sorted, f"#{ENVIRONMENTS_KEY}")
    def _sorted(self, event: Table.Sorted) -> None:
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
