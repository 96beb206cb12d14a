"""The panes of the live screen: each has a title and content, and is drawn again only if its content has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from textual.app import ComposeResult
from textual.containers import Vertical

from agentgym_tui.commands.registry import Registry
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.environment_rows import ENV_COLUMNS, EnvironmentRows
from agentgym_tui.presenters.pane_titles import (
    environments_title,
    rewards_title,
    steps_title,
    trace_title,
    transcript_title,
)
from agentgym_tui.presenters.step_rows import STEP_COLUMNS, StepRows
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.presenters.welcome import welcome_lines
from agentgym_tui.presenters.world import ended_step, step_world_lines, world_at, world_title
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.charts import RewardPlot, Waterfall
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.split import Share
from agentgym_tui.widgets.static_lines import StaticLines, WrappedText
from agentgym_tui.widgets.table import SortableTable, Table
from agentgym_tui.widgets.transcript import Transcript

ENVIRONMENTS_KEY: Final = "environments"
"""Id of the table; also the key of its order in the UI state."""
WORLD_KEY: Final = "world"
"""Id of the picture of the environment, and class of the panes while they show it instead of the transcript."""


class LiveState(NamedTuple):
    """What the panes of the live screen show.

    Attributes:
        store: the state of the console.
        key: returns the label of a command's key, by command id.
        read_only: why this console cannot start runs, "" if it can.
        episode: the watched episode; None if there is none.
        step: index of the selected step.
        following: whether the newest step is selected whenever one arrives.
        selected_env: the environment under the cursor, "" if there is none.
        plotted_env: the environment whose rewards are shown, "" if there is none.
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


class PaneTitle(StaticLines):
    """The title line of a pane, with a bar at the left while the pane has the focus."""

    def mark(self, index: int) -> str:
        return "▌" if isinstance(self.parent, LivePane) and self.parent.has_class("-focused") else " "


class LivePane(Vertical):
    """A pane of the live screen: a list under a title.

    Args:
        view: the list; its id is the id of the pane's entry in ``LIVE_PANES``.

    Attributes:
        view: the list.
    """

    BLANK = True  # fully covered by children; Textual need not draw the background

    def __init__(self, view: LineList) -> None:
        super().__init__(id=f"{view.id}-pane")
        self.view, self._title = view, PaneTitle()
        self._drawn_version: object = None

    def compose(self) -> ComposeResult:
        yield self._title
        yield self.view

    def on_descendant_focus(self) -> None:
        """Mark the pane as focused."""
        self.add_class("-focused")
        self._title.refresh()

    def on_descendant_blur(self) -> None:
        """Remove the focus mark."""
        self.remove_class("-focused")
        self._title.refresh()

    def draw(self, state: LiveState) -> None:
        """Draw the title, and the content if it has changed since the last drawing."""
        previous, self._drawn_version = self._drawn_version, self.version(state)
        if previous is self._drawn_version is None:
            return
        self._title.show(lambda width: self.title(state, width))
        if self._drawn_version != previous:
            self.update(state)

    def draw_time(self, state: LiveState) -> None:
        """Draw again what changes with the time alone; only rows that have changed are repainted."""
        self._title.show(lambda width: self.title(state, width))
        self.view.refresh_lines()

    def title(self, state: LiveState, width: int) -> list[Line]:
        """Return the lines of the title for ``width`` columns."""
        raise NotImplementedError

    def version(self, state: LiveState) -> object:
        """Return what the content depends on; the pane is updated when this value changes. None: nothing to show."""
        raise NotImplementedError

    def update(self, state: LiveState) -> None:
        """Show the content for ``state``."""
        raise NotImplementedError

    def follow_key(self, state: LiveState) -> str:
        """Return the label of the key that goes to the end of the list; "" while the list follows its end."""
        return "" if self.view.follow else state.key("list.bottom")


class EnvironmentsPane(LivePane):
    """The environments of all nodes."""

    def __init__(self, ui_state: UiState) -> None:
        self.table = SortableTable(ENV_COLUMNS, sorting=ui_state.sorting.get(ENVIRONMENTS_KEY), id=ENVIRONMENTS_KEY)
        super().__init__(self.table)

    def title(self, state: LiveState, width: int) -> list[Line]:
        return environments_title(state.store, state.selected_env, width)

    def version(self, state: LiveState) -> object:
        return self.table.sorting, state.store.env_registry.version

    def update(self, state: LiveState) -> None:
        self.table.show(EnvironmentRows(state.store, self.table.sorting))


class StepsPane(LivePane):
    """The steps of the watched episode."""

    def __init__(self, ui_state: UiState) -> None:
        self.table = Table(STEP_COLUMNS, id="steps")
        super().__init__(self.table)

    @property
    def step(self) -> int:
        """Index of the selected step; in a gap, of its first missing step."""
        rows = self.table.source
        if isinstance(rows, StepRows) and (step := rows.step(self.table.cursor)) is not None:
            return step.index
        key = self.table.key.removeprefix("gap")
        return int(key) if key.isdecimal() and len(rows) else 0

    def title(self, state: LiveState, width: int) -> list[Line]:
        return steps_title(state.store, state.episode, self.follow_key(state), width)

    def version(self, state: LiveState) -> object:
        return state.episode and (state.episode.episode_id, state.episode.version)

    def update(self, state: LiveState) -> None:
        episode, store = state.episode, state.store
        if episode is None:
            self.table.show(FixedLines(()))
            return
        rows = StepRows(episode, lambda: store.answer_wait_s(episode))
        self.table.set_columns(rows.columns)
        self.table.show(rows)


class TracePane(LivePane):
    """The spans of the watched episode."""

    def __init__(self, ui_state: UiState) -> None:
        self.waterfall = Waterfall(id="trace")
        super().__init__(self.waterfall)

    def title(self, state: LiveState, width: int) -> list[Line]:
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

    def title(self, state: LiveState, width: int) -> list[Line]:
        if state.episode is None:
            return []
        waiting_s = state.store.answer_wait_s(state.episode)
        return transcript_title(state.episode, state.step, self.follow_key(state), width, waiting_s)

    def version(self, state: LiveState) -> object:
        return state.episode and (_subject(state), state.episode.version)

    def update(self, state: LiveState) -> None:
        if state.episode is not None:
            previous, self._subject = self._subject, _subject(state)
            follow = state.following if self._subject != previous else None
            self.transcript.show_blocks(step_blocks(state.episode, state.step), subject=self._subject, follow=follow)


class WorldPane(LivePane):
    """The picture of the environment after the selected step, in the place of the transcript."""

    def __init__(self, ui_state: UiState) -> None:
        self.picture = WrappedText(lambda width: [], id=WORLD_KEY)
        super().__init__(self.picture)

    def title(self, state: LiveState, width: int) -> list[Line]:
        if state.episode is None:
            return []
        return [world_title(state.episode, state.step, state.key("live.world"))]

    def version(self, state: LiveState) -> object:
        episode = state.episode if state.shows_world else None
        return episode and (_subject(state), episode.running, world_at(episode, ended_step(episode, state.step)))

    def update(self, state: LiveState) -> None:
        if state.episode is not None and state.shows_world:
            episode, step = state.episode, state.step
            self.picture.set_lines(lambda width: step_world_lines(episode, step, width))


class RewardsPane(LivePane):
    """The rewards of one environment's episodes."""

    def __init__(self, ui_state: UiState) -> None:
        self.plot = RewardPlot(id="rewards")
        super().__init__(self.plot)

    def title(self, state: LiveState, width: int) -> list[Line]:
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

    def title(self, state: LiveState, width: int) -> list[Line]:
        return [[Cell("Welcome", "head")]]

    def version(self, state: LiveState) -> object:
        return state.store.version if state.episode is None else None

    def update(self, state: LiveState) -> None:
        if state.episode is None:
            self.text.set_lines(lambda width: welcome_lines(state.store, width, state.key, state.read_only))


def _subject(state: LiveState) -> str:
    return f"{state.episode.episode_id if state.episode else ''}/{state.step}"


class PaneSpec(NamedTuple):
    """A pane of the live screen.

    Attributes:
        id: the id, which is also the id of the pane's list.
        side: the side of a wide screen on which the pane is; a narrow screen has the right side below the left one.
        factory: makes the pane from the saved UI state.
        takes_turns: whether a narrow screen shows this pane only while the user has selected it among such panes.
        is_first: whether the pane is mounted before the first paint.
        shares: its adjustable sizes; a pane without one takes the rest.
    """

    id: str
    side: Literal["left", "right"]
    factory: Callable[[UiState], LivePane]
    takes_turns: bool = False
    is_first: bool = False
    shares: Sequence[Share] = ()


LIVE_PANES: Final = Registry(
    PaneSpec(
        ENVIRONMENTS_KEY,
        "left",
        EnvironmentsPane,
        is_first=True,
        shares=(
            Share("environments-pane", "live.wide.environments", "height", 10, 45, "-wide"),
            Share("environments-pane", "live.narrow.environments", "height", 15, 60, "-narrow"),
        ),
    ),
    PaneSpec("steps", "left", StepsPane),
    PaneSpec("welcome", "right", WelcomePane, is_first=True),
    PaneSpec("transcript", "right", TranscriptPane, takes_turns=True),
    PaneSpec(WORLD_KEY, "right", WorldPane, takes_turns=True),
    PaneSpec(
        "trace",
        "left",
        TracePane,
        takes_turns=True,
        shares=(Share("trace-pane", "live.wide.trace", "height", 10, 45, "-wide"),),
    ),
    PaneSpec(
        "rewards",
        "right",
        RewardsPane,
        takes_turns=True,
        shares=(Share("rewards-pane", "live.wide.rewards", "height", 10, 80, "-wide"),),
    ),
)
"""The panes in the order in which they are drawn and take turns; the steps come before what shows the selected one."""
