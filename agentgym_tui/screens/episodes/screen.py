"""The screen with the list of stored and running episodes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.message import Message

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_rows import (
    EPISODE_COLUMNS,
    EpisodeRows,
    empty_episodes_lines,
    list_summary,
    reading_progress,
    unsafe_fields,
)
from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.safe_text import SafeText, masked_line, trusted
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.screens.line_browser import FilteredScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.state.data_model import READING_FILES, BusLink
from agentgym_tui.state.episode_list import DEFAULT_SORTING, LIST_KEY, EpisodeList, FoundLog, UnreadableFile
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from agentgym_tui.widgets.table import SortableTable
from runner.errors import StoreError

READ_WHILE_FILLING_S: Final = 0.1
READ_INTERVAL_S: Final = 1.0
"""Seconds between two reads of a complete library and of one that is still being filled; at least ten times the
duration of a read.
"""


class EpisodesScreen(FilteredScreen):
    """A list of stored and running episodes, the newest first by default; the UI state holds filter and order."""

    SCOPE = "episodes"
    REQUIRED_WIDGETS = "#summary, #nothing, #status, SortableTable"
    CSS_PATH = "../../styles/episodes.tcss"
    AUTO_FOCUS = "#episodes"
    FILTER_HINT = "words to match, such as: wordle error #7"

    @dataclass
    class LogRequested(Message):
        """The user has requested a log."""

        path: Path

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self._episodes = EpisodeList()
        self._episodes.search(self.ui_state.filters.get(LIST_KEY, ""))
        self._episodes.sort(self.ui_state.sorting.get(LIST_KEY))
        self._rows = EpisodeRows(self._episodes)
        self._table = SortableTable(
            EPISODE_COLUMNS, self._rows, sorting=self._episodes.sorting, default_sorting=DEFAULT_SORTING, id=LIST_KEY
        )
        self._table.handles_enter = False  # so that the key bar shows the command
        self._n_read: int | None = None
        if self.session.library is not None and self.session.library.first_rows:
            self._episodes.set_stored(self.session.library.first_rows)
            self._n_read = self.session.store.n_ended
        self._reading = self._has_read = False
        self._failure: SafeText = trusted("")

    def compose(self) -> ComposeResult:
        """Yield heading, filter, list, status and key bar."""
        yield StaticLines(self.heading_lines, id="summary")
        yield self.make_filter(self.ui_state.filters.get(LIST_KEY, ""))
        yield self._table
        yield StaticLines(self.nothing_lines, id="nothing")
        yield StaticLines(self._status_lines, id="status")
        yield KeyBar(self.SCOPE, self.session)

    def draw(self, store: RunStore) -> None:
        """Redraw after the store changed."""
        if not self.is_ready:
            return
        if self._episodes.update_live(store.episodes.values()):
            self._show()
        else:
            self._table.refresh_lines()
            self.show_texts()
        if self.session.library is not None and self._n_read != store.n_ended and not self._reading:
            self._reading = True
            start_worker(self, self._read, group="read")

    def unsafe_text(self) -> str | None:
        """Return the raw text of the selected row if sanitizing changed it, else None."""
        return unsafe_fields(self._episodes.get(self._table.key))

    def selected_env(self) -> str:
        """Return the environment of the selected episode."""
        entry = self._episodes.get(self._table.key)
        return "" if entry is None or isinstance(entry, UnreadableFile) else entry.env

    def action_open(self) -> None:
        """Open the selected episode or log."""
        if isinstance(log := self._episodes.get(self._table.key), FoundLog):
            self.post_message(self.LogRequested(log.path))
        elif key := self._table.key:
            self.app.push_screen(
                EpisodeScreen(self.session, key, self._episodes, ui_state=self.ui_state), self._episode_closed
            )

    def action_reload(self) -> None:
        """Read the library again without waiting."""
        self._n_read = None
        self.draw(self.session.store)

    @on(LineList.Selected, "#episodes")
    def _row_opened(self) -> None:
        if self.accepts_keys:
            self.action_open()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        if self.is_ready:
            self.ui_state.set_sorting(LIST_KEY, event.sorting)
            self._episodes.sort(event.sorting)
            self._show()

    def search(self, text: str) -> None:
        """Show only the episodes that contain the words of ``text``."""
        self.ui_state.set_filter(LIST_KEY, text)
        self._episodes.search(text)
        self._show()
        self._table.move_to(0)

    def _episode_closed(self, key: str | None) -> None:
        if key:
            self._table.select(key)

    async def _read(self) -> None:
        """Read the library; repeat as long as further episodes have ended since the previous read."""
        store = self.session.store
        try:
            while self._n_read != store.n_ended and self.is_current:
                self._n_read, started_s = store.n_ended, self._now()
                await self._read_once()
                await self._pause(10 * (self._now() - started_s))
        finally:
            self._reading = False

    async def _pause(self, least_s: float) -> None:
        """Wait before the next read; a library that was being filled is read as soon as it is complete."""
        if not self._is_filling:
            await asyncio.sleep(max(READ_INTERVAL_S, least_s))
        waited_s = 0.0
        while self._is_filling and waited_s < max(READ_WHILE_FILLING_S, least_s):
            await asyncio.sleep(READ_WHILE_FILLING_S)
            waited_s += READ_WHILE_FILLING_S

    async def _read_once(self) -> None:
        library = self.session.library
        if library is None:
            return
        try:
            rows = await asyncio.to_thread(library.rows)
        except StoreError as exc:
            self._failure = trusted(f"✗ {masked_line(exc)}")
        else:
            self._failure = trusted("")
            self._episodes.set_stored(rows, library.unreadable)
        is_first, self._has_read = not self._has_read, True
        if not self.is_ready:
            return
        stay_at_top = is_first and self._table.cursor == 0  # the user has not selected a row yet
        self._show()
        if stay_at_top:
            self._table.move_to(0)

    def _show(self) -> None:
        self._table.show(self._rows)
        self.show_texts()

    def show_texts(self) -> None:
        """Redraw the heading, the text that replaces an empty list, and the status."""
        self.set_class(not self._episodes.shown and not self._is_filling, "-empty")
        self.set_class(bool(self._failure), "-failed")
        super().show_texts()
        self.query_one("#status", StaticLines).show(self._status_lines)

    def heading_lines(self, width: int) -> list[Line]:
        """Return the lines above the list: counts, filter and order, and why the library cannot be read."""
        state = reading_progress(self.session.store.read_progress) if self._is_filling else trusted("")
        return [
            list_summary(self._episodes, state, keymap_of(self.app).key("episodes.clear"), width),
            [Cell(self._failure, "bad")],
        ]

    def nothing_lines(self, width: int) -> list[Line]:
        """Return the lines that replace an empty list, unless it is still being filled."""
        if self._is_filling:
            return []
        return empty_episodes_lines(self._episodes, keymap_of(self.app).key, self.session.read_only, width)

    @property
    def _is_filling(self) -> bool:
        is_library, link = self.session.library is not None, self.session.store.link
        return is_library and (not self._has_read or link in (BusLink(), READING_FILES))

    def _status_lines(self, width: int) -> list[Line]:
        return [status_line(self.session.store, self.session.title, width)]
