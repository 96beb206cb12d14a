"""The live screen: the environments beside one episode with its steps, transcript, trace and rewards, each a pane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical

from agentgym_tui.commands import SCREENS, Registry, keymap_of
from agentgym_tui.config import UiState
from agentgym_tui.presenters.bottleneck import present_bottleneck
from agentgym_tui.presenters.cells import LIST_MARGIN, SEPARATOR, Cell, Line
from agentgym_tui.presenters.episode_facts import bottleneck_line, ended_step, step_world_lines, world_at, world_title
from agentgym_tui.presenters.live import (
    ENV_COLUMNS,
    EnvironmentRows,
    beside,
    environments_title,
    is_idle,
    notice_line,
    rewards_title,
    screen_lines,
    steps_title,
    trace_title,
    transcript_title,
    welcome_lines,
    welcome_title,
)
from agentgym_tui.presenters.machine import MachineView, machine_summary
from agentgym_tui.presenters.run_rows import ended_line
from agentgym_tui.presenters.status_line import progress_line, status_lines
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, RunControl, ScreenContext, SessionScreen, needs_node
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.run_commands import MAX_TOAST_CHARS, unfinished_batches
from agentgym_tui.sessions.session import EpisodeLoadError, Session, load_episode
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines, Table, WrappedText
from agentgym_tui.widgets.split import Share, Split, unzoom
from agentgym_tui.widgets.transcript import RewardPlot, StepTable, Transcript, Waterfall
from runner.events.control import ServerInfo

HEIGHT_BREAKPOINTS: Final = [(0, "-short"), (32, "-high")]  # sizes at which the arrangement of the screen changes
ENVIRONMENTS_KEY: Final = "environments"  # id of the table; also the key of its order in the UI state
WORLD_KEY: Final = "world"
"""Id of the picture of the environment, and class of the panes while they show it instead of the transcript."""
SIDE_SHARES: Final = (
    Share("left", "live.wide.left", "width", 20, 80, "-wide"),
    Share("left", "live.narrow.left", "height", 40, 80, "-narrow"),
)
_TITLE: Final = (Cell("Live", "head"), SEPARATOR)
_INDENT: Final = Cell("       ")
_MAX_REASON_LINES: Final = 3  # status lines that may explain why the node cannot be reached


class PaneTitle(StaticLines):
    """The title line of a pane, with a bar at the left while the pane has the focus."""

    def mark(self, index: int) -> str:
        return "▌" if isinstance(self.parent, LivePane) and self.parent.has_class("-focused") else " "


class LivePane(Vertical):
    """A pane of the live screen: the list ``view`` under a title; the id of the list is that of the pane's entry.

    It is drawn again only if its content has changed.
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
        self.add_class("-focused")
        self._title.refresh()

    def on_descendant_blur(self) -> None:
        self.remove_class("-focused")
        self._title.refresh()

    def draw(self, live: LivePanes, *, time_only: bool = False) -> None:
        """Draw the title, and the content if it has changed; ``time_only``: also what changes with the time alone."""
        previous, self._drawn_version = self._drawn_version, self.version(live)
        if previous is self._drawn_version is None:
            return
        self._title.show(lambda width: [self.title(live, width)])
        if self._drawn_version != previous:
            self.update(live)
        elif time_only:
            self.view.refresh_lines()  # only rows that have changed are repainted

    def title(self, live: LivePanes, width: int) -> Line:
        raise NotImplementedError

    def version(self, live: LivePanes) -> object:
        """Return what the content depends on; the pane is updated when this value changes. None: nothing to show."""
        raise NotImplementedError

    def update(self, live: LivePanes) -> None:
        """Show the content for ``live``, whose version is not None."""
        raise NotImplementedError

    def follow_key(self, live: LivePanes) -> str:
        """Return the key that goes to the end of the list; "" while the list follows its end."""
        return "" if self.view.follow else live.key("list.bottom")


class EnvironmentsPane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        sorting = ui_state.sorting.get(ENVIRONMENTS_KEY)
        self.table = Table(ENV_COLUMNS, can_sort=True, sorting=sorting, id=ENVIRONMENTS_KEY)
        super().__init__(self.table)

    def on_resize(self) -> None:
        self.table.fit_again()  # fewer rows, or less room, may need other columns
        self.table.refresh()

    def title(self, live: LivePanes, width: int) -> Line:
        return environments_title(live.store, live.selected_env, width)

    def version(self, live: LivePanes) -> object:
        return self.table.sorting, live.store.env_registry.version

    def update(self, live: LivePanes) -> None:
        self.table.show(EnvironmentRows(live.store, self.table.sorting))


class StepsPane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.table = StepTable()
        super().__init__(self.table)

    def title(self, live: LivePanes, width: int) -> Line:
        open_key = live.key("live.open") if live.shows_last else ""
        return steps_title(live.store, live.episode, self.follow_key(live), width, open_key)

    def version(self, live: LivePanes) -> object:
        return live.episode and (live.episode.episode_id, live.episode.version)

    def update(self, live: LivePanes) -> None:
        episode = live.episode
        self.table.show_steps(episode, lambda: live.store.answer_wait_s(episode) if episode else None)


class TracePane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.waterfall = Waterfall(id="trace")
        super().__init__(self.waterfall)

    def title(self, live: LivePanes, width: int) -> Line:
        return trace_title(len(live.episode.spans) if live.episode else 0, self.follow_key(live), width)

    def version(self, live: LivePanes) -> object:
        return live.episode and (live.episode.episode_id, len(live.episode.spans))

    def update(self, live: LivePanes) -> None:
        self.waterfall.show_spans(live.episode.spans.all if live.episode else ())


class TranscriptPane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.transcript = Transcript(id="transcript")
        super().__init__(self.transcript)
        self._subject = ""

    def title(self, live: LivePanes, width: int) -> Line:
        if (episode := live.episode) is None:
            return []
        return transcript_title(episode, live.step, self.follow_key(live), width, live.store.answer_wait_s(episode))

    def version(self, live: LivePanes) -> object:
        return live.episode and (live.subject, live.episode.version)

    def update(self, live: LivePanes) -> None:
        if live.episode is not None:
            previous, self._subject = self._subject, live.subject
            follow = live.steps.follow if self._subject != previous else None
            self.transcript.show_blocks(step_blocks(live.episode, live.step), subject=self._subject, follow=follow)


class WorldPane(LivePane):
    """The picture of the environment after the selected step, in the place of the transcript."""

    def __init__(self, ui_state: UiState) -> None:
        self.picture = WrappedText(lambda width: [], id=WORLD_KEY)
        super().__init__(self.picture)

    def title(self, live: LivePanes, width: int) -> Line:
        return world_title(live.episode, live.step, live.key("live.world")) if live.episode else []

    def version(self, live: LivePanes) -> object:
        episode = live.episode if live.shows_world else None
        return episode and (live.subject, episode.running, world_at(episode, ended_step(episode, live.step)))

    def update(self, live: LivePanes) -> None:
        if (episode := live.episode) is not None and live.shows_world:
            self.picture.set_lines(lambda width: step_world_lines(episode, live.step, width))


class RewardsPane(LivePane):
    def __init__(self, ui_state: UiState) -> None:
        self.plot = RewardPlot(id="rewards")
        super().__init__(self.plot)

    def title(self, live: LivePanes, width: int) -> Line:
        return rewards_title(live.plotted_env, width)

    def version(self, live: LivePanes) -> object:
        return live.plotted_env, tuple(live.store.rewards.get(live.plotted_env, ()))

    def update(self, live: LivePanes) -> None:
        self.plot.show_points(list(live.store.rewards.get(live.plotted_env, ())))


class WelcomePane(LivePane):
    """The keys to press and what is missing, while nothing runs."""

    def __init__(self, ui_state: UiState) -> None:
        self.text = WrappedText(lambda width: [], id="welcome")
        super().__init__(self.text)

    def on_resize(self) -> None:
        self.query_ancestor(LivePanes).fit()  # at another width, the text has another number of rows

    def title(self, live: LivePanes, width: int) -> Line:
        return welcome_title(live.store, live.key, live.session.read_only, width)

    def version(self, live: LivePanes) -> object:
        return live.store.version if live.shows_welcome else None

    def update(self, live: LivePanes) -> None:
        if live.shows_welcome:
            self.text.set_lines(live.welcome)


class PaneSpec(NamedTuple):
    """A pane of the live screen; its id is also that of the pane's list."""

    id: str
    side: Literal["left", "right"]
    """The side of a wide screen on which the pane is; a narrow screen has the right side below the left one."""
    factory: Callable[[UiState], LivePane]
    takes_turns: bool = False
    """Whether a narrow screen shows this pane only while the user has selected it among such panes."""
    shares: Sequence[Share] = ()  # its adjustable sizes; a pane without one takes the rest


_ENVIRONMENTS_SHARES: Final = (
    Share("environments-pane", "live.wide.environments", "height", 10, 45, "-wide"),
    Share("environments-pane", "live.narrow.environments", "height", 15, 60, "-narrow"),
)
_TRACE_SHARES: Final = (Share("trace-pane", "live.wide.trace", "height", 10, 45, "-wide"),)
_WELCOME_SHARES: Final = (Share("welcome-pane", "live.welcome", "height", 10, 60),)
_REWARDS_SHARES: Final = (Share("rewards-pane", "live.wide.rewards", "height", 10, 80, "-wide"),)
LIVE_PANES: Final = Registry(
    PaneSpec(ENVIRONMENTS_KEY, "left", EnvironmentsPane, shares=_ENVIRONMENTS_SHARES),
    PaneSpec("steps", "left", StepsPane),
    PaneSpec("welcome", "right", WelcomePane, shares=_WELCOME_SHARES),
    PaneSpec("transcript", "right", TranscriptPane, takes_turns=True),
    PaneSpec(WORLD_KEY, "right", WorldPane, takes_turns=True),
    PaneSpec("trace", "left", TracePane, takes_turns=True, shares=_TRACE_SHARES),
    PaneSpec("rewards", "right", RewardsPane, takes_turns=True, shares=_REWARDS_SHARES),
)
"""The panes in the order in which they are drawn and take turns; the steps come before what shows the selected one."""

PaneType = TypeVar("PaneType", bound=LivePane)


def live_shares() -> list[Share]:
    return [*SIDE_SHARES, *(share for spec in LIVE_PANES for share in spec.shares)]


class LivePanes(Split):
    """All panes in their places: which are shown, which one is zoomed, and which episode they show.

    Those that need an episode are mounted with the first one: the first paint has only what an empty screen shows.
    """

    def __init__(self, session: Session, ui_state: UiState) -> None:
        shares = live_shares()
        super().__init__(shares, ui_state.sizes, classes="-empty")
        self.session, self.store, self._ui_state = session, session.store, ui_state
        self.episode: Episode | None = None
        self.selected_env = self.plotted_env = ""  # the one under the cursor, and the one whose rewards are shown
        self._n_rows = (0, 0)  # of the panes with heights of their own
        self._panes = {spec.id: spec.factory(ui_state) for spec in LIVE_PANES}
        self._environments, self._steps = self._pane(EnvironmentsPane), self._pane(StepsPane)
        self._transcript, self._world = self._pane(TranscriptPane), self._pane(WorldPane)
        self._welcome = self._pane(WelcomePane)
        self.environments, self.steps = self._environments.table, self._steps.table
        self._turns = [self._panes[spec.id] for spec in LIVE_PANES if spec.takes_turns]
        for pane in self._turns:
            pane.add_class("-turn", update=False)
        self._turn = self._turns[0]
        self._turn.add_class("-current", update=False)
        self._left = Split(shares, ui_state.sizes, self._environments, id="left")
        self._right = Split(shares, ui_state.sizes, self._welcome, id="right")

    def compose(self) -> ComposeResult:
        yield from (self._left, self._right)

    def on_mount(self) -> None:
        if self.episode is not None:  # it was drawn before its panes could be mounted
            self.draw(self.episode)

    def _pane(self, kind: type[PaneType]) -> PaneType:
        return next(pane for pane in self._panes.values() if isinstance(pane, kind))

    def draw(self, episode: Episode | None) -> None:
        """Show the current state of the store and the episode ``episode``."""
        previous, self.episode = self.episode, episode
        if episode is not None and self._left.is_attached and not self._steps.is_attached:
            for side in (self._left, self._right):
                panes = [self._panes[spec.id] for spec in LIVE_PANES if spec.side == side.id]
                side.mount(*(pane for pane in panes if pane not in (self._environments, self._welcome)))
        is_new = (episode is None, is_idle(self.store, episode))
        if (self.has_class("-empty"), self.has_class("-idle")) != is_new:
            if self._welcome.has_focus_within:
                self.screen.set_focus(self.steps)
            for name, has_class in zip(("-empty", "-idle"), is_new, strict=True):
                self.set_class(has_class, name)
            unzoom(self.screen)
            self.fit()
        if episode is not None and (previous is None or previous.episode_id != episode.episode_id):
            self.steps.follow, self.plotted_env = True, episode.env
        for pane in self._panes.values():
            if pane.is_attached:
                pane.draw(self)
        if (n_rows := (len(self.store.envs), self._n_welcome_rows)) != self._n_rows:
            self._n_rows = n_rows
            self.fit()

    @property
    def shows_last(self) -> bool:
        """Whether the episode is the last one of an idle node, or was stored before this console started."""
        episode, store = self.episode, self.store
        return episode is not None and (is_idle(store, episode) or episode.episode_id not in store.episodes)

    @property
    def shows_welcome(self) -> bool:
        return self.episode is None or self.has_class("-idle")

    def welcome(self, width: int) -> list[Line]:
        """Return what is shown while nothing runs; without an episode there is room for the other screens, too."""
        is_brief, is_wide = self.episode is not None, width >= WIDTH_BREAKPOINTS[1][0] - LIST_MARGIN
        left_width = width if is_brief or not is_wide else width // 2
        lines = welcome_lines(self.store, left_width, self.key, self.session.read_only, is_brief=is_brief)
        if is_brief:
            return lines
        known = (screen for screen in SCREENS if screen.available.is_met(self.session))
        screens = screen_lines([(self.key(screen.command.id), screen.command.help) for screen in known])
        return beside(lines, screens, width) if is_wide else [*lines, (), *screens]

    @property
    def _n_welcome_rows(self) -> int:
        """Rows of the welcome beside an episode, with its title."""
        if not self.has_class("-idle"):
            return 0
        return min(len(self.welcome(self._right.size.width - LIST_MARGIN)) + 1, max(5, self.size.height // 4))

    def draw_waiting(self) -> None:
        """Draw again for how long the endpoint of the watched episode has sent nothing."""
        if self.episode is not None and self.store.answer_wait_s(self.episode) is not None:
            for pane in (self._steps, self._transcript):
                pane.draw(self, time_only=True)

    @property
    def step(self) -> int:
        return self.steps.step

    @property
    def subject(self) -> str:
        """Identifies the selected step."""
        return f"{self.episode.episode_id if self.episode else ''}/{self.step}"

    @property
    def shows_world(self) -> bool:
        return self.has_class(f"-{WORLD_KEY}")

    def key(self, command: str) -> str:
        return keymap_of(self.app).key(command)

    def next_view(self) -> None:
        """Show the next of the panes that take turns, of transcript and picture the one that is not hidden."""
        if self.episode is not None:
            hidden = self._transcript if self.shows_world else self._world
            turns = [pane for pane in self._turns if pane is not hidden]
            self._select_turn(turns[(turns.index(self._turn) + 1) % len(turns)])
            self.screen.set_focus(self._turn.view)

    def toggle_world(self) -> None:
        """Show the picture of the environment instead of the transcript, or the transcript again."""
        hidden, shown = (self._transcript, self._world)[:: -1 if self.shows_world else 1]
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
                self._world.draw(self)
            self.fit()

    @on(LineList.CursorMoved, "#steps")
    def _step_moved(self) -> None:
        for pane in (self._transcript, self._world):
            pane.draw(self)

    @on(LineList.CursorMoved, "#environments")
    def _environment_moved(self, moved: LineList.CursorMoved) -> None:
        # the initial selection is not a choice of the user
        previous, self.selected_env = self.selected_env, moved.key
        if previous or not self.plotted_env:
            self.plotted_env = moved.key
        self._environments.draw(self)
        if (rewards := self._pane(RewardsPane)).is_attached:
            rewards.draw(self)

    @on(Table.Sorted, f"#{ENVIRONMENTS_KEY}")
    def _sorted(self, event: Table.Sorted) -> None:
        self._ui_state.set_sorting(ENVIRONMENTS_KEY, event.sorting)
        self._environments.draw(self)

    @on(LineList.FollowChanged)
    def _follow_changed(self, followed: LineList.FollowChanged) -> None:
        # all together: reading an old reply must not jump to the next step
        transcript = self._transcript.transcript
        if followed.view is transcript:
            self.steps.follow = followed.following
        elif followed.view is self.steps:
            transcript.follow = self._pane(TracePane).waterfall.follow = followed.following

    def fit(self) -> None:
        is_empty = self.episode is None
        self.fixed = is_empty or (self.has_class("-turn-left") and self.screen.has_class("-narrow"))
        n_rows = max(4, min(len(self.store.envs) + 2, self.size.height // (2 if is_empty else 4)))
        self._left.default_sizes = {"environments-pane": n_rows}
        self._right.default_sizes = {"welcome-pane": n} if (n := self._n_welcome_rows) else {}
        super().fit()
        for side in (self._left, self._right):
            side.fixed = is_empty
            side.fit()


class EpisodePicker:
    """Selects the episode that the live screen shows; ``episode_id`` is "" if there is none."""

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
    if active:
        return (same or active)[-1]
    return shown if shown is not None and shown.running else next(reversed(store.episodes.values()), None)


class LiveScreen(SessionScreen):
    """The screen that shows a session's node and controls its runs."""

    SCOPE = "live"
    AUTO_FOCUS = "#environments"
    BLANK = True  # fully covered by the panes
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    VERTICAL_BREAKPOINTS = HEIGHT_BREAKPOINTS

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self.control = RunControl(self, context.commands)
        self._picker = EpisodePicker()
        self._episode: Episode | None = None
        self._loaded_id = self._started_id = ""
        self._loaded: Episode | None = None
        self._panes = LivePanes(self.session, self.ui_state)
        self._status, self._progress = StaticLines(id="status"), StaticLines(id="progress")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._panes
        yield self._progress
        yield KeyBar(self.SCOPE, self.session, first="run")

    def on_mount(self) -> None:
        self.control.draw_time_left(self.draw_time_left)

    def on_resize(self) -> None:
        self._show_status()  # a narrow screen needs more lines

    def draw(self, store: RunStore) -> None:
        if (last := self.control.commands.last_run) is not None and last.batch_id != self._started_id:
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
        if episode := self._watched():
            self.post_message(self.OpenEpisode(episode.episode_id))

    def action_events(self) -> None:
        if episode := self._watched():
            self.post_message(self.EventsRequested(episode.episode_id))

    def action_neighbor(self, by: int) -> None:
        if self._picker.select_neighbor(self.session.store, by) is None:
            self.toast("no other episode is running")
        else:
            self.draw(self.session.store)

    def action_next_view(self) -> None:
        self._panes.next_view()

    def action_world(self) -> None:
        if self._watched():
            self._panes.toggle_world()

    def _watched(self) -> Episode | None:
        if self._episode is None:
            self.toast("no episode selected")
        return self._episode

    @needs_node
    def action_cancel(self) -> None:
        """Cancel the running batch; if its battery has more batches, let the user choose how much to cancel."""
        if (batch := self._batch()) is None:
            self.toast("no batch is running")
            return
        battery = [each for each in unfinished_batches(self.session.store) if each.battery_id == batch.battery_id]
        if not batch.battery_id or len(battery) < 2:
            self.control.cancel([batch])
            return
        from agentgym_tui.screens.dialogs.texts import cancel_dialog

        def dialog_closed(answer: str | None) -> None:
            if answer in ("batch", "battery"):
                self.control.cancel([batch] if answer == "batch" else battery)

        self.app.push_screen(cancel_dialog(batch, len(battery) - 1), dialog_closed)

    @needs_node
    def action_pause(self) -> None:
        """Pause or resume the batch of the watched episode, also between two; else resume an interrupted one."""
        if (batch := self._batch() or self.session.store.batch_registry.interrupted()) is None:
            self.toast("no batch is running")
        else:
            self.control.pause_or_resume(batch.batch_id, [batch])

    @needs_node
    def action_step(self) -> None:
        if self._episode is None or not self._episode.running:
            self.toast("no running episode selected")
        else:
            self.control.send(partial(self.control.commands.step, self._episode))

    @needs_node
    def action_start_server(self) -> None:
        if env := self._panes.environments.key:
            self.control.send(partial(self._change_server, self.control.commands.control.start_server, env))

    @needs_node
    def action_stop_server(self) -> None:
        """Stop the server of the selected environment; first ask if episodes run there."""
        from agentgym_tui.screens.dialogs.texts import running_in, stop_server_dialog

        env, store = self._panes.environments.key, self.session.store

        def dialog_closed(answer: str | None) -> None:
            if answer == "stop":
                self.control.send(partial(self._change_server, self.control.commands.control.stop_server, env))

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
        """Return the episode, or the newest stored one.

        One that ended before the console saw its steps is replaced by its file once loaded.
        """
        id = self.session.store.newest_stored if episode is None else episode.episode_id
        if not id or (episode is not None and (episode.running or episode.steps or not episode.rounds)):
            return episode
        if self._loaded_id != id:
            self._loaded_id, self._loaded = id, None
            start_worker(self, partial(self._load, id, episode), group="file", exclusive=True)
        return self._loaded or episode

    async def _load(self, id: str, episode: Episode | None) -> None:
        try:
            loaded = (await load_episode(self.session, None, id)).episode
        except EpisodeLoadError:  # the outcome stays visible, and opening the episode shows the reason
            return
        if loaded is not episode and self._loaded_id == id:
            loaded.version = (0 if episode is None else episode.version) + 1
            self._loaded = loaded
            self.draw(self.session.store)

    def _show_status(self) -> None:
        store, room = self.session.store, max(self.size.width - LIST_MARGIN - len(_INDENT.text), 0)
        max_cause_lines = _MAX_REASON_LINES if self._episode else 0  # else the welcome text shows it
        view = MachineView(store, keymap_of(self.app).key, self.session.read_only)
        problem = machine_summary(view, min(room // 2, 80))
        first, *more = status_lines(store, self.session.title, room, max_cause_lines=max_cause_lines, problem=problem)
        lines = [[*_TITLE, *first], *([_INDENT, *each] for each in more)]
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
        lost, spent = (store.is_lost(batch), store.usage_of(batch)) if batch else (False, None)
        n_waiting, currency = store.batch_registry.n_waiting, store.currency
        line = progress_line(
            batch, width, now=store.now(), lost=lost, spent=spent, n_waiting=n_waiting, currency=currency
        )
        line = line or notice_line(store.notice_list.newest, width)
        return [line or ended_line(store, keymap_of(self.app).key("run.summary"), width)]

    def _batch(self) -> BatchRun | None:
        store, episode = self.session.store, self._episode
        batch = store.batches.get(episode.batch_id) if episode is not None and episode.running else None
        return batch or store.batch_registry.active() or next(iter(unfinished_batches(store)), None)

    @property
    def _shown_batch(self) -> BatchRun | None:
        batches = self.session.store.batch_registry
        return batches.active() or (None if self.session.store.notice_list.newest else batches.interrupted())

    async def _change_server(self, change: Callable[[str], Awaitable[ServerInfo]], env: str) -> None:
        info = await change(env)
        cause = f": {sanitize_message(info.cause, MAX_TOAST_CHARS)}" if info.cause else ""
        self.toast(f"server of {info.env} {info.status}{cause}", failed=info.status == "failed")
