"""The tabs of an episode, one for each of its views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import ContentSwitcher

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.screens.episode.content import EpisodeContent, ShownEpisode
from agentgym_tui.screens.episode.transcripts import EpisodeTranscript
from agentgym_tui.screens.episode.views import EPISODE_VIEWS
from agentgym_tui.sessions.session import LoadedEpisode
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.payload_view import Tab, TabBar
from agentgym_tui.widgets.transcript import Transcript

WHOLE: Final = "whole"
"""Id of the view of the whole episode."""


class EpisodeTabs(Vertical):
    """The tab bar of an episode and the content of the selected tab."""

    class TabShown(Message):
        """Another tab is shown."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown = ShownEpisode()
        self._contents = {view.id: view.content(view.id) for view in EPISODE_VIEWS}
        self._first = next(iter(self._contents))
        self._switcher = ContentSwitcher(*(each.widget for each in self._contents.values()), initial=self._first)
        self._bar = TabBar(self._tabs, id="tabs")

    def compose(self) -> ComposeResult:
        yield self._bar
        yield self._switcher

    @property
    def tab(self) -> str:
        """Id of the current tab."""
        return self._switcher.current or self._first

    def select_tab(self, tab: str) -> None:
        """Show the tab with id ``tab``."""
        self._switcher.current = tab
        self._bar.set_tabs(self._tabs)
        self._bar.select_tab(tab)
        self._fill()
        self.screen.set_focus(self._content.widget)
        self.post_message(self.TabShown())

    def show(self, key: str, loaded: LoadedEpisode | None, failure: str = "") -> None:
        """Show an episode; if it could not be loaded, show ``failure``, the cause as untrusted text."""
        self._shown = self._shown._replace(key=key, loaded=loaded, failure=failure)
        self._bar.set_tabs(self._tabs)
        if not self._content.shows_step:  # the step is selected next
            self._fill()

    def show_step(self, index: int, *, follow: bool = False) -> None:
        """Select a step; if ``follow`` is True, stay at its end while it grows."""
        self._shown = self._shown._replace(step=index, follow=follow)
        if self._content.shows_step:
            self._fill()

    @property
    def shows_transcript(self) -> bool:
        """Whether the transcript is the current tab."""
        return self.tab == self._first

    def find(self, expressions: Sequence[re.Pattern[str]], line: str, *, from_end: bool = False) -> None:
        """Mark the words in the transcript and go to a line of the shown step; see ``Transcript.find``."""
        if not self.shows_transcript:
            self.select_tab(self._first)
        if isinstance(transcript := self._content.widget, Transcript):
            transcript.find(expressions, line, from_end=from_end)

    @property
    def step_in_view(self) -> int | None:
        """Index of the step that the whole episode shows at its cursor; None in other views."""
        return self._content.step_in_view() if isinstance(self._content, EpisodeTranscript) else None

    @property
    def view(self) -> LineList:
        """The list of the current tab."""
        return self._content.widget

    def fold(self, kinds: str) -> bool:
        """Fold, hide or show kinds of texts in the whole episode, which becomes the current tab.

        Returns:
            False if the episode has no texts of these kinds.
        """
        if not isinstance(self._content, EpisodeTranscript):
            self.select_tab(WHOLE)
        if isinstance(content := self._content, EpisodeTranscript):
            is_there = content.fold(kinds)
            self._fill()
            return is_there
        return False

    def start_search(self) -> None:
        """Make the whole episode the current tab where only one step of it is shown."""
        if self.shows_transcript:
            self.select_tab(WHOLE)

    def rows_with(self, expression: re.Pattern[str] | None) -> list[int]:
        """Mark an expression in the current tab, unfold what has it, and return the rows with it; None ends this."""
        if expression and self._content.unfold_matches(self._shown, expression):
            self._fill()
        for each in self._contents.values():
            each.widget.found = expression
        return [] if expression is None else self._content.widget.find_rows(expression)

    def text(self, *, raw: bool) -> str:
        """Return the content of the shown tab as one text; if ``raw`` is True, trace and file are not sanitized."""
        content = self._contents[self._first] if self._shown.loaded is None else self._content
        return content.text(self._shown, raw=raw)

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
        return [
            Tab(view.id, view.title, view.command)
            for view in EPISODE_VIEWS
            if view.is_listed(self._shown.loaded) or view.id == self.tab
        ]

    def _fill(self) -> None:
        self._content.show(self._shown)
        self._bar.set_note(self._content.note(self._shown, keymap_of(self.app).key))
