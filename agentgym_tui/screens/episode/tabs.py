"""The tabs of an episode: transcript of a step, trace, file, and the environment's evaluation if it has one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ContentSwitcher

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.presenters.answering_endpoint import answer_parts
from agentgym_tui.presenters.cells import Cell, Line, join_parts
from agentgym_tui.presenters.chat_blocks import Block
from agentgym_tui.presenters.evaluation import evaluation_blocks
from agentgym_tui.presenters.payload import pretty_json
from agentgym_tui.presenters.span_rows import spans_text
from agentgym_tui.presenters.transcript import (
    failure_blocks,
    missing_file_text,
    step_blocks,
    transcript_text,
)
from agentgym_tui.safe_text import trusted
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.episode_loader import LoadedEpisode
from agentgym_tui.widgets.charts import Waterfall
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.payload_view import TextView
from agentgym_tui.widgets.tab_bar import Tab, TabBar
from agentgym_tui.widgets.transcript import Transcript

TABS: Final = (
    Tab("transcript", trusted("Transcript"), "episode.transcript"),
    Tab("trace", trusted("Trace"), "episode.trace"),
    Tab("json", trusted("JSON"), "episode.json"),
)
EVALUATION: Final = Tab("evaluation", trusted("Evaluation"), "episode.evaluation")
"""Tab that is listed only for an episode with an evaluation; its key works for every episode."""

_NOTE_WIDTH: Final = 120
"""Columns of the note right of the tabs."""


class EpisodeTabs(Vertical):
    """The tab bar of an episode and the content of the selected tab."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._key = ""
        self._loaded: LoadedEpisode | None = None
        self._failure = ""
        self._step = 0
        self._show_all_messages = False
        self._follow = False
        self._blocks: list[Block] = []
        self._evaluation: list[Block] = []
        self._json: str | None = None

    def compose(self) -> ComposeResult:
        """Yield the tab bar and the content of each tab."""
        yield TabBar(TABS, id="tabs")
        with ContentSwitcher(initial=TABS[0].id):
            yield Transcript(id="transcript")
            yield Waterfall(id="trace")
            yield TextView(id="json")
            yield Transcript(id="evaluation")

    @property
    def tab(self) -> str:
        """Id of the current tab."""
        return self.query_one(ContentSwitcher).current or TABS[0].id

    def select_tab(self, tab: str) -> None:
        """Show the tab with id ``tab``."""
        self.query_one(ContentSwitcher).current = tab
        self._show_tabs()
        self.query_one(TabBar).select_tab(tab)
        self.query_one(TabBar).set_note(self._note())
        self._fill_tab()
        self.screen.set_focus(self.query_one(f"#{tab}", LineList))

    def show(self, key: str, loaded: LoadedEpisode | None, failure: str = "") -> None:
        """Show an episode; if it could not be loaded, show ``failure``, the cause as untrusted text."""
        if loaded is not self._loaded:
            self._json = None
        self._key, self._loaded, self._failure = key, loaded, failure
        self._show_tabs()
        self._fill_tab()

    def show_step(self, index: int, *, follow: bool = False) -> None:
        """Show the transcript of a step; if ``follow`` is True, stay at the end while the transcript grows."""
        self._show_all_messages = self._show_all_messages and index == self._step
        self._step, self._follow = index, follow
        self._show_blocks()

    def unsafe_text(self) -> str | None:
        """Return the raw text of the shown tab if sanitizing changed it, else None."""
        return self.query_one(f"#{self.tab}", LineList).unsafe_text()

    def text(self, *, raw: bool) -> str:
        """Return the content of the shown tab as one text; if ``raw`` is True, trace and file are not sanitized."""
        loaded = self._loaded
        if self.tab == "transcript" or loaded is None:
            return transcript_text(self._blocks)
        if self.tab == "evaluation":
            return transcript_text(self._evaluation)
        if self.tab == "trace":
            return spans_text(loaded.episode.spans.all, raw=raw)
        if raw and loaded.data is not None:
            return loaded.data.decode("utf-8", "replace")
        return self._json or ""

    @on(TabBar.TabSelected)
    def _tab_selected(self, event: TabBar.TabSelected) -> None:
        self.select_tab(event.tab)

    @on(LineList.Selected, "#transcript")
    def _toggle_earlier(self) -> None:
        self._show_all_messages = not self._show_all_messages
        self._show_blocks()

    def _show_blocks(self) -> None:
        if self._loaded is None or not self._has_steps:
            self._blocks = failure_blocks(self._loaded.missing_reason if self._loaded else self._failure)
        else:
            self._blocks = step_blocks(self._loaded.episode, self._step, full=self._show_all_messages)
        subject = f"{self._key}/{self._step}"
        self.query_one("#transcript", Transcript).show_blocks(self._blocks, subject=subject, follow=self._follow)
        self.query_one(TabBar).set_note(self._note())

    @property
    def _has_steps(self) -> bool:
        loaded = self._loaded
        return loaded is not None and bool(loaded.episode.steps or not loaded.missing_reason)

    def _note(self) -> Line:
        """Return the step number, the effect of Enter if Enter has one, and the timings of the endpoint."""
        if not self._has_steps or self.tab != "transcript":
            return []
        has_more = any(shown.kind == "earlier" for shown in self._blocks)
        action = "fewer" if self._show_all_messages else "all" if has_more else ""
        choose = keymap_of(self.app).key("list.choose")
        step = [Cell(trusted(f"step {self._step}" + f" · {choose}: {action} messages" * bool(action)), "dim")]
        return join_parts(
            [step, *(answer_parts(self._loaded.episode, self._step) if self._loaded else ())], _NOTE_WIDTH
        )

    def _show_tabs(self) -> None:
        has_evaluation = self._loaded is not None and self._loaded.episode.evaluation is not None
        is_listed = has_evaluation or self.tab == EVALUATION.id
        self.query_one(TabBar).set_tabs((*TABS, EVALUATION) if is_listed else TABS)

    def _fill_tab(self) -> None:
        loaded = self._loaded
        if self.tab == "trace":
            self.query_one(Waterfall).show_spans(loaded.episode.spans.all if loaded else ())
        elif self.tab == "evaluation":
            episode = loaded.episode if loaded else None
            self._evaluation = evaluation_blocks(episode.evaluation, running=episode.running) if episode else []
            self.query_one(f"#{self.tab}", Transcript).show_blocks(self._evaluation, subject=self._key)
        elif self.tab == "json" and self._json is None:
            start_worker(self, partial(self._format_json, loaded), group="json", exclusive=True)

    async def _format_json(self, loaded: LoadedEpisode | None) -> None:
        if loaded is None:
            text = ""
        elif loaded.data is None:
            text = missing_file_text(loaded.missing_reason)
        else:
            text = await asyncio.to_thread(pretty_json, loaded.data)
        if loaded is self._loaded and self.query(TextView):  # else another episode is shown, or the screen was closed
            self._json = text
            self.query_one(TextView).show_text(text)
