"""The screen with the lines that a search in the texts has found."""

from __future__ import annotations

import asyncio
from typing import Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.episode_rows import search_progress
from agentgym_tui.presenters.hit_rows import HIT_COLUMNS, HitRows, hits_heading
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ResultScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.session import Session
from agentgym_tui.sessions.text_search import FoundLine, TextHits
from agentgym_tui.state.episode_list import EpisodeList, ListedEpisode, UnreadableFile
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from agentgym_tui.widgets.table import Table
from runner.errors import StoreError

AHEAD: Final = 100
"""Number of lines that are read below the cursor."""
MAX_LINES: Final = 20_000
"""Largest number of lines that are listed."""
EPISODES_AT_A_TIME: Final = 10


class HitsScreen(ResultScreen[str]):
    """The found lines in the order of a list of episodes; its result is the id of the episode of the selected line.

    Args:
        session: provides the episodes.
        hits: the search.
        episodes: the list of episodes.
    """

    SCOPE = "hits"
    REQUIRED_WIDGETS = "#heading, #hits"
    AUTO_FOCUS = "#hits"

    def __init__(self, session: Session, hits: TextHits, episodes: EpisodeList) -> None:
        super().__init__()
        self._session, self._hits, self._episodes = session, hits, episodes
        self._lines: list[FoundLine] = []
        self._n_read = 0
        self._n_passages: int | None = None
        self._failure: str = ""
        self._is_reading = False
        self._table = self.open_from(Table(HIT_COLUMNS, HitRows(self._lines, self._episode), id="hits"))

    def compose(self) -> ComposeResult:
        yield StaticLines(self._heading_lines, id="heading")
        yield self._table
        yield KeyBar(self.SCOPE, self._session)

    def on_mount(self) -> None:
        """Read the first lines, and count all."""
        self._read_ahead()
        start_worker(self, self._count, group="count")

    def selected_env(self) -> str:
        episode = None if self._selected is None else self._episode(self._selected.episode_id)
        return "" if episode is None else episode.env

    def action_back(self) -> None:
        """Go back to the list, to the episode of the selected line."""
        self.leave(self._selected.episode_id if self._selected else None)

    def action_open(self) -> None:
        if (found := self._selected) is not None:
            episode = self.OpenEpisode(found.episode_id, episodes=self._episodes, hits=self._hits, at=found)
            self.post_message(episode)

    @on(LineList.CursorMoved, "#hits")
    def _cursor_moved(self) -> None:
        self._read_ahead()

    def _read_ahead(self) -> None:
        if not self._is_reading and self._needs_more:
            self._is_reading = True
            start_worker(self, self._read, group="read")

    @property
    def _needs_more(self) -> bool:
        n_wanted = min(self._table.cursor + AHEAD, MAX_LINES)
        return len(self._lines) < n_wanted and self._n_read < len(self._hits.episode_ids)

    async def _read(self) -> None:
        """Read episodes until there are enough lines below the cursor."""
        try:
            while self._needs_more and self.is_attached:
                part = self._hits.episode_ids[self._n_read : self._n_read + EPISODES_AT_A_TIME]
                found = await asyncio.to_thread(self._hits.of_all, part)
                self._lines += found
                self._n_read += len(part)
                if self.is_ready:
                    self._table.refresh_lines()
                    self.show_lines("heading")
        finally:
            self._is_reading = False

    async def _count(self) -> None:
        try:
            self._n_passages = await asyncio.to_thread(self._hits.count)
        except StoreError as exc:
            self._failure = f"✗ {masked_line(exc)}"
        self.show_lines("heading")

    def _episode(self, episode_id: str) -> ListedEpisode | None:
        entry = self._episodes.get(episode_id)
        return None if entry is None or isinstance(entry, UnreadableFile) else entry

    @property
    def _selected(self) -> FoundLine | None:
        return self._lines[self._table.cursor] if self._table.cursor < len(self._lines) else None

    def _heading_lines(self, width: int) -> list[Line]:
        n_episodes, state = len(self._hits.episode_ids), self._failure or search_progress(self._hits.progress)
        return [
            hits_heading(self._hits.query, len(self._lines), self._n_read, n_episodes, self._n_passages, state, width)
        ]
