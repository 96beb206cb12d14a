"""The screen with the list of stored and running episodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
    search_progress,
)
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.compare import mark_or_compare
from agentgym_tui.screens.dialogs.tags import edit_tags
from agentgym_tui.screens.episode import EpisodeFile
from agentgym_tui.screens.library_screen import READ_INTERVAL_S, LibraryScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import Library
from agentgym_tui.sessions.text_search import TextHits, TextSearch, text_values_of
from agentgym_tui.state.episode_list import DEFAULT_SORTING, LIST_KEY, EpisodeList, FoundLog, UnreadableFile
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.terminal import Program
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.static_lines import StaticLines
from agentgym_tui.widgets.table import SortableTable
from runner.errors import StoreError

if TYPE_CHECKING:
    from runner.node.retention import CleanUpAction


class EpisodesScreen(LibraryScreen[Library]):
    """A list of stored and running episodes, the newest first by default; the UI state holds filter and order."""

    SCOPE = "episodes"
    REQUIRED_WIDGETS = "#summary, #nothing, #status, SortableTable"
    AUTO_FOCUS = "#episodes"
    FILTER_HINT = "words and fields, such as: wordle outcome:error,timeout reward>0.5 since:2h -agent:oracle"

    @dataclass
    class LogRequested(Message):
        """The user has requested a log."""

        path: Path

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self.list_key = LIST_KEY
        self._episodes = EpisodeList()
        self._episodes.search(self.kept_filter)
        self._episodes.sort(self.ui_state.sorting.get(LIST_KEY))
        self._rows = EpisodeRows(self._episodes)
        self._text_failure = ""
        table = SortableTable(
            EPISODE_COLUMNS, self._rows, sorting=self._episodes.sorting, default_sorting=DEFAULT_SORTING, id=LIST_KEY
        )
        self._table = self.open_from(table)
        if self.session.library is not None and self.session.library.first_rows:
            self._episodes.set_stored(self.session.library.first_rows)
            self._n_read = self.session.store.n_ended

    def compose(self) -> ComposeResult:
        yield StaticLines(self.heading_lines, id="summary")
        yield from self.make_filter(self.kept_filter)
        yield self._table
        yield StaticLines(self.nothing_lines, id="nothing")
        yield StaticLines(self.status_lines, id="status")
        yield KeyBar(self.SCOPE, self.session)

    def draw(self, store: RunStore) -> None:
        if not self.is_ready:
            return
        has_new_tags = self._episodes.set_tags(store.tags)
        if self._episodes.update_live(store.episodes.values()) or has_new_tags:
            self._show()
        else:
            self._table.refresh_lines()
            self.show_texts()
        self.read_changes()

    def selected_env(self) -> str:
        entry = self._episodes.get(self._table.key)
        return "" if entry is None or isinstance(entry, UnreadableFile) else entry.env

    def action_open(self) -> None:
        if isinstance(log := self._episodes.get(self._table.key), FoundLog):
            self.post_message(self.LogRequested(log.path))
        elif key := self._table.key:
            hits = self._text_hits()
            self.post_message(self.OpenEpisode(key, episodes=self._episodes, hits=hits, closed=self._episode_closed))

    def action_hits(self) -> None:
        """List the lines that the words of the query find."""
        from agentgym_tui.screens.episodes.hits import HitsScreen

        if (hits := self._text_hits()) is None:
            self.toast('the filter has no words of texts, such as text:"locked door"')
        else:
            self.app.push_screen(HitsScreen(self.session, hits, self._episodes), self._episode_closed)

    def _text_hits(self) -> TextHits | None:
        """Return the search of the filter's query in the listed episodes; None if the query has no words of texts."""
        library, query = self.session.library, self._episodes.query_text
        if library is None or not text_values_of(query):
            return None
        shown = [entry.episode_id for entry in self._episodes.shown if not isinstance(entry, UnreadableFile)]
        hits = TextHits(library.texts, query, shown)
        return hits if hits.patterns else None

    def action_outside(self, program: Program) -> None:
        """Open a copy of the selected episode's file in the pager or editor."""
        if key := self._table.key:
            EpisodeFile(self.app, self.session, self._episodes.get(key), key).open_outside(program)

    def action_tag(self) -> None:
        """Edit the tags of the selected episode."""
        edit_tags(self, self.session, self._episodes.get(self._table.key))

    def action_compare(self) -> None:
        """Mark the selected episode, or compare it with the marked one."""
        entry = self._episodes.get(self._table.key)
        if entry is not None and not isinstance(entry, UnreadableFile):
            mark_or_compare(self, self.session, entry.episode_id, self.ui_state)

    def action_select(self) -> None:
        """Select the episode under the cursor, or deselect it, and go to the next one."""
        if self._episodes.toggle(self._table.key):
            self._table.action_move(1)
            self._show_selection()

    def action_select_all(self) -> None:
        """Select all episodes that match the filter; if all of them are selected, deselect them."""
        self._episodes.select_shown()
        self._show_selection()

    def _show_selection(self) -> None:
        self._table.refresh_lines()
        self.show_texts()

    def chosen_ids(self) -> list[str]:
        """Return the ids of the selected episodes; without a selection, that of the episode under the cursor."""
        entry = self._episodes.get(self._table.key)
        under_cursor = [] if entry is None or isinstance(entry, UnreadableFile) else [entry.episode_id]
        return [*self._episodes.selected] or under_cursor

    def action_clean_up(self, action: CleanUpAction) -> None:
        """Archive or delete the selection after a confirmation."""
        from agentgym_tui.screens.episodes.clean_up import clean_up

        clean_up(self, self.session, action, self.chosen_ids(), self._cleaned_up)

    def action_export(self) -> None:
        """Write the selection, or all episodes that match the filter, in a format of trainers."""
        from agentgym_tui.screens.episodes.clean_up import export

        export(self, self.session, self._episodes.chosen(), self._episodes.query_text)

    def _cleaned_up(self) -> None:
        self._episodes.selected.clear()
        self.read_again()

    def action_failures(self) -> None:
        """Show how the episodes that match the filter failed."""
        from agentgym_tui.screens.results.clusters import ClustersScreen

        context = ScreenContext(self.session, self.ui_state, self._now)
        self.app.push_screen(ClustersScreen(context, self._episodes.query_text))

    def action_reload(self) -> None:
        """Read the library again without waiting."""
        self.read_again()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        if self.is_ready:
            self.ui_state.set_sorting(LIST_KEY, event.sorting)
            self._episodes.sort(event.sorting)
            self._show()

    @property
    def searchable(self) -> EpisodeList:
        return self._episodes

    def show_found(self) -> None:
        self._show()
        self._table.move_to(0)

    def _episode_closed(self, key: str | None) -> None:
        if key:
            self._table.select(key)

    def search(self, text: str) -> None:
        library = self.session.library
        if library is not None and library.texts.needs(text) and "text" in self._episodes.lookups:
            self._show_error(None)  # that of the text before, for which Enter would go back to the filter
            start_worker(self, partial(self._search_texts, library.texts, text), group="texts", exclusive=True)
        else:
            super().search(text)

    async def _search_texts(self, texts: TextSearch, text: str) -> None:
        """Show what a query finds, again each second while the full-text index grows."""
        while True:
            started_s = self._now()
            try:
                await asyncio.to_thread(texts.find, text)
            except StoreError as exc:
                self.failure = self._text_failure = f"✗ {masked_line(exc)}"
                self.show_texts()
                return
            if self.failure == self._text_failure:
                self.failure = ""
            if not self.is_ready or self._filter.value != text:
                return
            super().search(text)
            self._episodes.search_again()
            self._show()
            if texts.progress.is_complete:
                return
            start_worker(self, partial(asyncio.to_thread, self._build, texts), group="text index")
            await asyncio.sleep(max(READ_INTERVAL_S, 5 * (self._now() - started_s)))

    def _build(self, texts: TextSearch) -> None:
        with suppress(StoreError):  # the search reports it
            texts.build()

    @property
    def library(self) -> Library | None:
        return self.session.library

    async def read(self, library: Library) -> None:
        rows = await asyncio.to_thread(library.rows)
        if text_values_of(query := self._episodes.query_text):
            await asyncio.to_thread(library.texts.find, query)
            if not library.texts.progress.is_complete:
                start_worker(self, partial(self._search_texts, library.texts, query), group="texts", exclusive=True)
        self._episodes.add_lookups(await asyncio.to_thread(library.lookups))
        self._episodes.set_stored(rows, library.unreadable)

    def show_read(self, *, first: bool) -> None:
        stay_at_top = first and self._table.cursor == 0  # the user has not selected a row yet
        if first:  # before, a query that looks up notes had an error
            self.search(self._filter.value)
        self._show()
        if stay_at_top:
            self._table.move_to(0)

    def _show(self) -> None:
        self._table.show(self._rows)
        self.show_texts()

    def show_texts(self) -> None:
        self.set_class(not self._episodes.shown and not self.is_filling, "-empty")
        self.set_class(bool(self.failure), "-failed")
        super().show_texts()
        self.show_lines("status")

    def heading_lines(self, width: int) -> list[Line]:
        state = reading_progress(self.session.store.read_progress) if self.is_filling else self._search_progress()
        return [
            list_summary(self._episodes, state, keymap_of(self.app).key("episodes.clear"), width),
            [Cell(self.failure, "bad")],
        ]

    def _search_progress(self) -> str:
        library = self.session.library
        is_searched = library is not None and bool(text_values_of(self._episodes.query_text))
        return search_progress(library.texts.progress) if library is not None and is_searched else ""

    def nothing_lines(self, width: int) -> list[Line]:
        if self.is_filling:
            return []
        return empty_episodes_lines(self._episodes, keymap_of(self.app).key, self.session.read_only, width)
