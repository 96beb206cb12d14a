"""The views of one episode, each a tab: transcript and picture of a step, trace, file, and the evaluation if any."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import ContentSwitcher

from agentgym_tui.commands import Registry, keymap_of
from agentgym_tui.presenters.cells import Cell, Line, join_parts
from agentgym_tui.presenters.episode_facts import (
    NO_PICTURE,
    answer_parts,
    ended_step,
    has_pictures,
    spans_text,
    spans_with,
    step_world_lines,
    world_heading,
)
from agentgym_tui.presenters.payload import TextRows, pretty_json
from agentgym_tui.presenters.transcript import (
    FOLDS,
    Block,
    StepBlocks,
    WholeEpisode,
    evaluation_blocks,
    failure_blocks,
    missing_file_text,
    step_blocks,
    transcript_text,
)
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.session import LoadedEpisode
from agentgym_tui.state.episode import Episode
from agentgym_tui.widgets.lists import LineList, WrappedText
from agentgym_tui.widgets.payload_view import Tab, TabBar, TextView
from agentgym_tui.widgets.transcript import EpisodeWaterfall, Transcript
from runner.types import Span
from runner.types.cells import MAX_COLUMNS

STEP, WHOLE, TRACE = "transcript", "whole", "trace"
"""Ids of the views of a step's transcript, of the whole episode, and of its spans."""
N_AT_ONCE: Final = 100  # number of steps that are added to the whole episode at a time, within a thirtieth of a second
PAUSE_S: Final = 0.005
_NOTE_WIDTH: Final = 120  # columns of the note right of the tabs


class ShownEpisode(NamedTuple):
    key: str = ""
    loaded: LoadedEpisode | None = None
    failure: str = ""  # why the episode could not be loaded, untrusted text
    step: int = 0  # index of the selected step
    follow: bool = False  # whether to stay at the end while the step grows

    @property
    def episode(self) -> Episode | None:
        """The episode if there are steps to show, or it is running, so that it may get some."""
        loaded = self.loaded
        return loaded.episode if loaded is not None and (loaded.episode.steps or not loaded.missing_reason) else None

    @property
    def failure_blocks(self) -> list[Block]:
        return failure_blocks(self.loaded.missing_reason if self.loaded else self.failure)

    @property
    def spans(self) -> Sequence[Span]:
        return self.loaded.episode.spans.all if self.loaded else ()


class EpisodeContent:
    """What a view shows of an episode in ``widget``, a list whose id is that of the view's entry in the registry."""

    shows_step = False  # whether the content depends on the selected step

    def __init__(self, widget: LineList) -> None:
        self.widget = widget

    def show(self, shown: ShownEpisode) -> None:
        """Show the episode in ``widget``; called when the view is selected, and when what it shows may have changed."""
        raise NotImplementedError

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the content as one text, to copy it; unsanitized if ``raw`` is True."""
        raise NotImplementedError

    def part(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return what is at the cursor, to copy it; by default all of the content."""
        return self.text(shown, raw=raw)

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        """Return the text right of the tabs, after ``show``; ``key`` returns the key label of a command id."""
        return []

    def choose(self) -> None:
        """React to Enter or a double click; ``show`` is called next."""

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        """Unfold what hides a match of an expression; return whether anything was folded, so that ``show`` is due."""
        return False


class StepTranscript(EpisodeContent):
    shows_step = True

    def __init__(self, id: str) -> None:
        self.transcript = Transcript(id=id)
        super().__init__(self.transcript)
        self._subject = ""
        self._show_all_messages = self._has_more = False

    def show(self, shown: ShownEpisode) -> None:
        if (subject := f"{shown.key}/{shown.step}") != self._subject:
            self._subject, self._show_all_messages = subject, False
        blocks = self._blocks(shown)
        self._has_more = any(block.kind == "earlier" for block in blocks)
        self.transcript.show_blocks(blocks, subject=subject, follow=shown.follow)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return transcript_text(self._blocks(shown))

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        if shown.episode is None:
            return []
        action = "fewer" if self._show_all_messages else "all" if self._has_more else ""
        choose = f" · {key('list.choose')}: {action}" if action else ""
        step = [Cell(f"step {shown.step}{choose}", "dim")]
        return join_parts([step, *answer_parts(shown.episode, shown.step)], _NOTE_WIDTH)

    def choose(self) -> None:
        self._show_all_messages = not self._show_all_messages

    def _blocks(self, shown: ShownEpisode) -> list[Block]:
        if shown.episode is None:
            return shown.failure_blocks
        return step_blocks(shown.episode, shown.step, full=self._show_all_messages)


class EpisodeTranscript(EpisodeContent):
    """All steps of the episode as one transcript, which goes to the step that is selected."""

    shows_step = True

    def __init__(self, id: str) -> None:
        self._transcript = Transcript(id=id)
        super().__init__(self._transcript)
        self._steps, self._whole = StepBlocks(), WholeEpisode([], {}, set())
        self._folded, self._hidden = set[str](), set[str]()
        self._episode: Episode | None = None
        self._drawn: tuple[object, ...] | None = None
        self._place = ("", 0)
        self._shown, self._n_steps = ShownEpisode(), 0

    def show(self, shown: ShownEpisode) -> None:
        if shown.key != self._place[0]:
            self._steps, self._n_steps = StepBlocks(), 0
        self._shown = shown
        if shown.loaded is not None:
            n_before = bisect_right(shown.loaded.episode.steps, shown.step, key=attrgetter("index"))
            self._n_steps = max(self._n_steps, n_before + N_AT_ONCE)
        if self._n_left:
            start_worker(self._transcript, self._show_others, group="whole", exclusive=True)
        self._transcript.show_blocks(self._blocks(shown), subject=shown.key, follow=shown.follow)
        is_selected = (shown.key, shown.step) != self._place and not shown.follow
        self._place = shown.key, shown.step
        if is_selected and shown.step in self._whole.starts:
            self._transcript.go_to_block(self._whole.starts[shown.step])

    @property
    def _n_left(self) -> int:
        """Number of steps that are not shown yet."""
        steps = self._shown.loaded.episode.steps if self._shown.loaded else ()
        return max(len(steps) - self._n_steps, 0)

    async def _show_others(self) -> None:
        """Add the other steps, a part at a time, so that keys are handled meanwhile; the end stays at the end."""
        while self._n_left and self._transcript.is_attached:
            await asyncio.sleep(PAUSE_S)
            is_at_end = self._transcript.cursor == len(self._transcript.source) - 1
            self._n_steps += N_AT_ONCE
            self._transcript.show_blocks(self._blocks(self._shown), subject=self._shown.key)
            if is_at_end:
                self._transcript.move_to(len(self._transcript.source) - 1)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        self._n_steps += self._n_left
        return transcript_text(self._blocks(shown))

    def part(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the message at the cursor, or the step whose heading is there."""
        blocks, at = self._blocks(shown), max(self._transcript.block_in_view, 0)
        starts = [*self._whole.starts.values(), len(blocks)]
        end = next(start for start in starts if start > at) if at in starts[:-1] else at + 1
        return transcript_text(blocks[at:end])

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        there = [name for name in FOLDS if self._whole.kinds.intersection(FOLDS[name])]
        named = (("hidden", self._hidden.intersection(there)), ("folded", self._folded.intersection(there)))
        parts = (f"{what}: {', '.join(name for name in there if name in names)}" for what, names in named if names)
        return [Cell(" · ".join(parts), "dim")]

    def fold(self, name: str) -> bool:
        """Fold the blocks of a name of ``FOLDS``, then hide them, then show them again; return False without any."""
        self._n_steps += self._n_left
        self._blocks(self._shown)
        is_there = bool(self._whole.kinds.intersection(FOLDS[name]))
        if is_there and name in self._folded:
            self._folded.remove(name)
            self._hidden.add(name)
        elif is_there and name in self._hidden:
            self._hidden.remove(name)
        elif is_there:
            self._folded.add(name)
        return is_there

    @property
    def step_in_view(self) -> int | None:
        return self._whole.step_of(self._transcript.block_in_view)

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        n_left, before = self._n_left, self._folded | self._hidden
        self._n_steps += n_left
        if shown.loaded is None or not before:
            return bool(n_left)
        found = {
            block.kind
            for block in self._steps.blocks(shown.loaded.episode).blocks
            if expression.search("\n".join(block.lines)) or any(block.matches_hidden(expression))
        }
        for names in (self._folded, self._hidden):
            names -= {name for name in names if found.intersection(FOLDS[name])}
        return bool(n_left) or self._folded | self._hidden != before

    def _blocks(self, shown: ShownEpisode) -> list[Block]:
        if (episode := shown.episode) is None:
            return shown.failure_blocks
        drawn = episode.version, episode.notes, frozenset(self._folded), frozenset(self._hidden), self._n_steps
        if episode is not self._episode or drawn != self._drawn:
            self._episode, self._drawn = episode, drawn
            self._whole = self._steps.blocks(episode, self._folded, self._hidden, self._n_steps)
        return self._whole.blocks


class EpisodeWorld(EpisodeContent):
    """The picture of the environment after the selected step, or before it."""

    shows_step = True

    def __init__(self, id: str) -> None:
        self._view = WrappedText(lambda width: [], id=id)
        super().__init__(self._view)
        self._is_before = False

    def show(self, shown: ShownEpisode) -> None:
        key = keymap_of(self._view.app).key("list.choose")
        step = shown.step if shown.loaded is None else ended_step(shown.loaded.episode, shown.step)
        heading = world_heading(step, key, before=self._is_before)
        self._view.set_lines(lambda width: [heading, [], *self._lines(shown, width)])

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return "\n".join("".join(cell.text for cell in line).rstrip() for line in self._lines(shown, MAX_COLUMNS))

    def choose(self) -> None:
        self._is_before = not self._is_before

    def _lines(self, shown: ShownEpisode, width: int) -> list[Line]:
        if shown.loaded is None:
            return NO_PICTURE
        return step_world_lines(shown.loaded.episode, shown.step, width, before=self._is_before)


class EpisodeTrace(EpisodeContent):
    def __init__(self, id: str) -> None:
        self._waterfall = EpisodeWaterfall(id=id)
        super().__init__(self._waterfall)
        self._key = ""
        self._opened: set[int] = set()

    def show(self, shown: ShownEpisode) -> None:
        if shown.key != self._key:
            self._key = shown.key
            self._opened.clear()
        self._waterfall.show_spans(shown.spans, opened=self._opened, step=self._step(shown))

    def _step(self, shown: ShownEpisode) -> int | None:
        return shown.step if self.shows_step else None

    def zoom(self) -> None:
        """Show the spans of the selected step alone, or those of the whole episode again."""
        self.shows_step = not self.shows_step

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        has_attributes = any(span.attributes for span in shown.spans)
        return [Cell(f"{key('list.choose')}: attributes", "dim")] if has_attributes else []

    def choose(self) -> None:
        if (position := self._waterfall.position) is not None:
            self._opened ^= {position}

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        n_opened = len(self._opened)
        self._opened |= spans_with(shown.spans, expression)
        return len(self._opened) > n_opened

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return spans_text(shown.spans, raw=raw, step=self._step(shown)) if shown.loaded else ""


class EpisodeJson(EpisodeContent):
    """The file of the episode, formatted in a thread because it may have many megabytes."""

    def __init__(self, id: str) -> None:
        self._view = TextView(id=id)
        super().__init__(self._view)
        self._loaded: LoadedEpisode | None = None
        self._text: str | None = None

    def show(self, shown: ShownEpisode) -> None:
        if shown.loaded is not self._loaded or self._text is None:
            self._loaded, self._text = shown.loaded, None
            start_worker(self._view, partial(self._format, shown.loaded), group="json", exclusive=True)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        if raw and shown.loaded is not None and shown.loaded.data is not None:
            return shown.loaded.data.decode("utf-8", "replace")
        return (shown.loaded is self._loaded and self._text) or ""

    async def _format(self, loaded: LoadedEpisode | None) -> None:
        text = missing_file_text(loaded.missing_reason) if loaded else ""
        if loaded and loaded.data is not None:
            text = await asyncio.to_thread(pretty_json, loaded.data)
        shown = await asyncio.to_thread(TextRows, text)
        if loaded is self._loaded and self._view.is_attached:  # else another episode is shown, or the screen was closed
            self._text = text
            self._view.show_text(shown)


class EpisodeEvaluation(EpisodeContent):
    """Verdict, reason and event log of an environment that evaluates its episodes."""

    def __init__(self, id: str) -> None:
        self._transcript = Transcript(id=id)
        super().__init__(self._transcript)

    def show(self, shown: ShownEpisode) -> None:
        self._transcript.show_blocks(self._blocks(shown), subject=shown.key)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return transcript_text(self._blocks(shown))

    def _blocks(self, shown: ShownEpisode) -> list[Block]:
        episode = shown.loaded.episode if shown.loaded else None
        return evaluation_blocks(episode.evaluation, running=episode.running) if episode else []


class EpisodeView(NamedTuple):
    id: str
    title: str
    command: str  # id of the command whose key selects the tab; its action is ``tab('ID')``
    content: Callable[[str], EpisodeContent]  # makes the content for the id
    is_listed: Callable[[Episode], bool] | None = None  # without it every episode has the tab; its key works always


EPISODE_VIEWS: Final = Registry(
    EpisodeView(STEP, "Transcript", "episode.transcript", StepTranscript),
    EpisodeView(WHOLE, "All", "episode.whole", EpisodeTranscript),
    EpisodeView("world", "World", "episode.world", EpisodeWorld, has_pictures),
    EpisodeView(TRACE, "Trace", "episode.trace", EpisodeTrace),
    EpisodeView("json", "Data", "episode.json", EpisodeJson),
    EpisodeView(
        "evaluation", "Evaluation", "episode.evaluation", EpisodeEvaluation, lambda each: bool(each.evaluation)
    ),
)
"""The views in the order of their tabs; the first one is selected at first, and shows why an episode is missing."""


class EpisodeTabs(Vertical):
    class TabShown(Message):
        """Another tab is shown."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown = ShownEpisode()
        self._contents = {view.id: view.content(view.id) for view in EPISODE_VIEWS}
        self._switcher = ContentSwitcher(*(each.widget for each in self._contents.values()), initial=STEP)
        self._bar = TabBar(self._tabs, id="tabs")

    def compose(self) -> ComposeResult:
        yield self._bar
        yield self._switcher

    @property
    def tab(self) -> str:
        return self._switcher.current or STEP

    def select_tab(self, tab: str) -> None:
        self._switcher.current = tab
        self._bar.set_tabs(self._tabs)
        self._bar.select_tab(tab)
        self._fill()
        self.screen.set_focus(self.view)
        self.post_message(self.TabShown())

    def show(self, key: str, loaded: LoadedEpisode | None, failure: str = "") -> None:
        """Show an episode, or ``failure``, why it could not be loaded as untrusted text."""
        self._shown = self._shown._replace(key=key, loaded=loaded, failure=failure)
        self._bar.set_tabs(self._tabs)
        if not self._content.shows_step:  # the step is selected next
            self._fill()

    def show_step(self, index: int, *, follow: bool = False) -> None:
        """Select a step; if ``follow`` is True, stay at its end while it grows."""
        self._shown = self._shown._replace(step=index, follow=follow)
        if self._content.shows_step:
            self._fill()

    def find(self, expression: re.Pattern[str], line: str, *, from_end: bool = False) -> None:
        """Mark the words in the transcript and go to a line of the shown step; see ``Transcript.find``."""
        if self.tab != STEP:
            self.select_tab(STEP)
        if isinstance(content := self._content, StepTranscript):
            content.transcript.find(expression, line, from_end=from_end)

    @property
    def step_in_view(self) -> int | None:
        """Index of the step that the whole episode shows at its cursor; None in other views."""
        return self._content.step_in_view if isinstance(self._content, EpisodeTranscript) else None

    @property
    def view(self) -> LineList:
        return self._content.widget

    def fold(self, kinds: str) -> bool:
        """Fold, hide or show kinds of texts in the whole episode, the new current tab; return False without any."""
        if self.tab != WHOLE:
            self.select_tab(WHOLE)
        is_there = isinstance(self._content, EpisodeTranscript) and self._content.fold(kinds)
        self._fill()
        return is_there

    def zoom(self) -> None:
        """Show the selected step alone in the trace, the new current tab, or the whole episode again."""
        if isinstance(trace := self._contents[TRACE], EpisodeTrace):
            trace.zoom()
        self.select_tab(TRACE)

    def rows_with(self, expression: re.Pattern[str] | None) -> list[int]:
        """Mark an expression in the current tab, unfold what has it, and return the rows with it; None ends this."""
        if expression and self._content.unfold_matches(self._shown, expression):
            self._fill()
        for each in self._contents.values():
            each.widget.found = expression
        return [] if expression is None else self.view.find_rows(expression)

    def text(self, *, raw: bool, whole: bool = False) -> str:
        """Return what is at the cursor of the shown tab, or all of it; ``raw``: trace and file are not sanitized."""
        content = self._contents[STEP] if self._shown.loaded is None else self._content
        return (content.text if whole else content.part)(self._shown, raw=raw)

    @on(TabBar.TabSelected)
    def _tab_selected(self, event: TabBar.TabSelected) -> None:
        self.select_tab(event.tab)

    @on(LineList.Selected)
    def _line_selected(self) -> None:
        self._content.choose()
        self._fill()

    @property
    def _content(self) -> EpisodeContent:
        return self._contents[self.tab]

    @property
    def _tabs(self) -> list[Tab]:
        episode = self._shown.loaded.episode if self._shown.loaded else None
        return [
            Tab(view.id, view.title, view.command)
            for view in EPISODE_VIEWS
            if view.is_listed is None or (episode and view.is_listed(episode)) or view.id == self.tab
        ]

    def _fill(self) -> None:
        self._content.show(self._shown)
        self._bar.set_note(self._content.note(self._shown, keymap_of(self.app).key))
