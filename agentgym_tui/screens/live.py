"""The live screen: environments, the steps of the episode that runs, what was said, where the time goes, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Container

from agentgym_tui.cells import Cell, FixedLines, Line
from agentgym_tui.clean import own
from agentgym_tui.screens.runs import RunScreen
from agentgym_tui.session import Session
from agentgym_tui.state import Episode
from agentgym_tui.store import RunStore
from agentgym_tui.views import ENV_COLUMNS, STEP_COLUMNS, EnvRows, StepRows
from agentgym_tui.views_episode import blocks
from agentgym_tui.views_live import (
    environment_text,
    environments_title,
    notice_line,
    rewards_title,
    step_text,
    steps_title,
    trace_title,
    transcript_title,
)
from agentgym_tui.views_status import empty_lines, machine_line, place_line, progress_line, status_line
from agentgym_tui.watching import Watch
from agentgym_tui.widgets.drawn_lines import NoLines
from agentgym_tui.widgets.lines import LineView
from agentgym_tui.widgets.plot_view import PlotView
from agentgym_tui.widgets.status import KeyLine, News, Pane
from agentgym_tui.widgets.table import Table
from agentgym_tui.widgets.transcript import Transcript
from agentgym_tui.widgets.waterfall import Waterfall
from runner.events.control import StartArgs

VIEWS: Final = ("transcript", "trace", "rewards")
"""The panes that share one place where there is little room."""

ONE_STATUS: Final = 150
"""Columns from which on one line is enough for the status."""

WIDTHS: Final = [(0, "-narrow"), (110, "-wide")]
HEIGHTS: Final = [(0, "-short"), (32, "-high")]
"""Sizes from which on the screen is arranged in another way."""


class LiveScreen(RunScreen):
    """Shows what a session's node does, and has it do things.

    Args:
        session: what is looked at.
    """

    AUTO_FOCUS = "#environments"
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._watch = Watch()
        self._episode: Episode | None = None
        self._view = VIEWS[0]
        self._plotted = ""
        self._seen: dict[str, object] = {}
        self._envs = Table(ENV_COLUMNS, id="environments")
        self._steps = Table(STEP_COLUMNS, id="steps")
        self._trace = Waterfall(id="trace")
        self._transcript = Transcript(id="transcript")
        self._rewards = PlotView(id="rewards")
        self._welcome = LineView(cursor_type="none", id="welcome")
        views = (self._envs, self._steps, self._trace, self._transcript, self._rewards, self._welcome)
        self._panes = {str(view.id): Pane(view, id=f"{view.id}-pane") for view in views}

    def compose(self) -> ComposeResult:
        """Status, panes, progress, keys."""
        yield News(self._status_lines, id="status")
        with Container(id="body"):
            with Container(id="left"):
                yield from (self._panes[name] for name in ("environments", "steps", "trace"))
            with Container(id="right"):
                yield from (self._panes[name] for name in ("welcome", "transcript", "rewards"))
        yield News(self._progress_lines, id="progress")
        yield KeyLine("live")

    def on_mount(self) -> None:
        """Follow."""
        self.add_class("-view-transcript")
        self._panes["welcome"].title(lambda _: [[Cell(own("Welcome"), "head")]])
        self._steps.follow = True

    def on_screen_resume(self) -> None:
        """Catch up."""
        self.draw(self.session.store)

    def on_resize(self) -> None:
        """The environments take their share of another height."""
        self.query_one("#status").styles.height = 1 if self.size.width >= ONE_STATUS else 2
        self._fit_environments()

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        before = self._watch.episode_id
        self._episode = self._watch.pick(store, following=self._steps.follow)
        self._draw_frame(store)
        self._draw_environments(store)
        if self._episode is None:
            self._welcome.show(FixedLines(empty_lines(store)))
        elif before != self._episode.episode_id:
            self._steps.follow, self._plotted = True, self._episode.env
        self._draw_steps(store)
        self._draw_rewards(store)

    def selected(self) -> str:
        """The environment of the cursor."""
        return self._envs.key

    def watched(self) -> Episode | None:
        """The episode that is shown."""
        return self._episode

    def started(self, args: StartArgs) -> None:
        """Watch it as soon as it begins."""
        self._watch.want(args.batch_id)
        self.draw(self.session.store)

    def zoom(self) -> None:
        """The focused pane alone, and back."""
        pane = next((pane for pane in self._panes.values() if pane.has_focus_within), None)
        if self.has_class("-zoomed") or pane is None:
            self.remove_class("-zoomed")
            self.query(".-zoomed").remove_class("-zoomed")
        else:
            self.add_class("-zoomed")
            for shown in (pane, pane.parent):
                if isinstance(shown, Container | Pane):
                    shown.add_class("-zoomed")
        self._fit_environments()

    def hostile_text(self) -> str | None:
        """What is behind the line of the cursor, where cleaning changes it."""
        env = self.session.store.envs.get(self._envs.key)
        if self._envs.has_focus and env is not None:
            return environment_text(env)
        if self._steps.has_focus and self._episode is not None and isinstance(rows := self._steps.source, StepRows):
            return step_text(self._episode, rows.step(self._steps.cursor))
        return None

    def action_open(self) -> None:
        """Show the watched episode on a screen of its own."""
        from agentgym_tui.screens.episode import EpisodeScreen

        if self._episode is None:
            self.tell(own("there is no episode to open"))
        else:
            self.app.push_screen(EpisodeScreen(self.session, self._episode.episode_id))

    def action_next_running(self) -> None:
        """Watch the next episode that runs."""
        self._watch_beside(1)

    def action_previous_running(self) -> None:
        """Watch the one before."""
        self._watch_beside(-1)

    def action_next_view(self) -> None:
        """Transcript, trace, rewards, transcript, and so on."""
        self.remove_class(f"-view-{self._view}")
        self._view = VIEWS[(VIEWS.index(self._view) + 1) % len(VIEWS)]
        self.add_class(f"-view-{self._view}")
        self.query_one(f"#{self._view}").focus()

    @on(LineView.Moved, "#steps")
    def _step_selected(self) -> None:
        self._draw_transcript()

    @on(LineView.Moved, "#environments")
    def _environment_selected(self, moved: LineView.Moved) -> None:
        if self._changed("environment", moved.key) and self._seen.get("first environment") is not None:
            self._plotted = moved.key
            self._draw_rewards(self.session.store)
        self._draw_environments(self.session.store)
        self._seen["first environment"] = True

    @on(LineView.Chosen)
    def _chosen_line(self, chosen: LineView.Chosen) -> None:
        if chosen.view is self._envs:
            self.action_run_form(chosen.key)
        elif chosen.view in (self._steps, self._trace, self._transcript):
            self.action_open()

    @on(LineView.Followed)
    def _followed(self, followed: LineView.Followed) -> None:
        """Transcript and steps follow together; who reads an old reply does not want the next step."""
        if followed.view is self._transcript:
            self._steps.follow = followed.following
        elif followed.view is self._steps:
            self._transcript.follow = self._trace.follow = followed.following
        self.draw(self.session.store)

    def _watch_beside(self, by: int) -> None:
        if self._watch.beside(self.session.store, by) is None:
            self.tell(own("no other episode runs"))
            return
        self._steps.follow = True
        self._seen.clear()
        self.draw(self.session.store)

    def _draw_frame(self, store: RunStore) -> None:
        if self._changed("empty", self._episode is None):
            self.set_class(self._episode is None, "-empty")
            if self.has_class("-zoomed"):
                self.zoom()
            self._fit_environments()
        self.query_one("#status", News).show(self._status_lines)
        self.query_one("#progress", News).show(self._progress_lines)

    def _draw_environments(self, store: RunStore) -> None:
        if self._changed("environments", [astuple(env) for env in store.envs.values()]):
            self._envs.show(EnvRows(store))
            self._fit_environments()
        selected = self._envs.key
        self._panes["environments"].title(lambda width: environments_title(store, selected, width))

    def _draw_steps(self, store: RunStore) -> None:
        episode = self._episode
        following = self._steps.follow
        self._panes["steps"].title(lambda width: steps_title(store, episode, following, width))
        if episode is None:
            self._steps.show(NoLines())
            return
        known = (episode.episode_id, list(episode.steps), episode.streaming, episode.running)
        if self._changed("steps", known):
            self._steps.show(StepRows(episode))
        if self._changed("spans", (episode.episode_id, len(episode.spans))):
            self._trace.show_spans(episode.spans)
        n_spans, tail = len(episode.spans), self._trace.follow
        self._panes["trace"].title(lambda width: trace_title(n_spans, tail, width))
        self._draw_transcript()

    def _draw_transcript(self) -> None:
        episode, rows = self._episode, self._steps.source
        if episode is None or not isinstance(rows, StepRows):
            return
        index = self._step_index(episode, rows)
        following = self._transcript.follow
        self._panes["transcript"].title(lambda width: transcript_title(index, following, width))
        ending = (episode.streaming, episode.error_type, episode.error_message)
        known = (episode.episode_id, index, list(episode.steps[-1:]), len(episode.steps), ending)
        if self._changed("transcript", known):
            subject = f"{episode.episode_id}/{index}"
            follow = self._steps.follow if self._changed("subject", subject) else None
            self._transcript.show_blocks(blocks(episode, index), subject=subject, follow=follow)

    def _step_index(self, episode: Episode, rows: StepRows) -> int:
        """The step of the cursor; while one is streamed the one before, which its text comes after."""
        if (step := rows.step(self._steps.cursor)) is not None:
            return step.index
        key = self._steps.key.removeprefix("gap")
        if episode.streaming and episode.steps and self._steps.cursor >= len(rows) - 1:
            return episode.steps[-1].index
        return int(key) if key.isdecimal() and episode.steps else 0

    def _draw_rewards(self, store: RunStore) -> None:
        points = store.rewards.get(self._plotted, ())
        if self._changed("rewards", (self._plotted, len(points), points[-1] if points else None)):
            env = self._plotted
            self._rewards.show_points(list(points))
            self._panes["rewards"].title(lambda width: rewards_title(env, width))

    def _fit_environments(self) -> None:
        """As many rows as there are environments, unless that is too much."""
        pane = self._panes["environments"]
        if self._episode is None or self.has_class("-zoomed"):
            pane.styles.height = None
        else:
            pane.styles.height = max(4, min(len(self.session.store.envs) + 2, self.size.height // 4))

    def _changed(self, what: str, now: object) -> bool:
        """Whether something is another than at the last look."""
        if what in self._seen and self._seen[what] == now:
            return False
        self._seen[what] = now
        return True

    def _status_lines(self, width: int) -> Sequence[Line]:
        store, title = self.session.store, self.session.title
        name, room = [Cell(own("Live"), "head"), Cell(own(" · "), "dim")], max(width - 7, 0)
        if self.size.width >= ONE_STATUS:
            return [[*name, *status_line(store, title, room)]]
        return [[*name, *place_line(store, title, room)], [Cell(own("       ")), *machine_line(store, room)]]

    def _progress_lines(self, width: int) -> Sequence[Line]:
        store = self.session.store
        line = progress_line(store.active_batch(), width)
        return [line or notice_line(store.notices[-1] if store.notices else None, width)]
