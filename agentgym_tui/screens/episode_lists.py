"""The list of stored and running episodes, and the lines that a search in their texts has found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual.message import Message

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_rows import (
    EPISODE_COLUMNS,
    HITS,
    EpisodeRows,
    HitRow,
    empty_episodes_lines,
    hits_heading,
    list_summary,
    search_progress,
)
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.dialogs.curate import clean_up, edit_tags, export
from agentgym_tui.screens.episode import EpisodeFile, mark_or_compare
from agentgym_tui.screens.list_screen import READ_INTERVAL_S, ListScreen, listed
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import Library, ResultLibrary, TextHits, TextSearch, text_values_of
from agentgym_tui.state.episode_list import (
    DEFAULT_SORTING,
    LIST_KEY,
    EpisodeList,
    FoundLog,
    ListedEpisode,
    ListEntry,
    UnreadableFile,
)
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.terminal import Program
from agentgym_tui.widgets.lists import Table
from runner.errors import StoreError

if TYPE_CHECKING:
    from runner.node.retention import CleanUpAction

AHEAD: Final = 100
"""Found lines that are read below the cursor."""
MAX_LINES: Final = 20_000
EPISODES_AT_A_TIME: Final = 10


class EpisodesScreen(ListScreen[ListEntry]):
    """A list of stored and running episodes, the newest first by default; the UI state holds filter and order."""

    SCOPE = "episodes"
    FILTER_HINT = "words and fields, such as: wordle outcome:error,timeout reward>0.5 since:2h -agent:oracle"

    @dataclass
    class LogRequested(Message):
        path: Path

    def __init__(self, context: ScreenContext) -> None:
        self._episodes, self._text_failure = EpisodeList(), ""
        self.opened_from, self._opened_words = "", ""
        rows = EpisodeRows(self._episodes)
        table = Table(EPISODE_COLUMNS, rows, can_sort=True, default_sorting=DEFAULT_SORTING, id=LIST_KEY)
        super().__init__(context, LIST_KEY, self._episodes, table)
        if self.session.library is not None and self.session.library.first_rows:
            self._episodes.set_stored(self.session.library.first_rows)
            self._n_read = self.session.store.n_ended

    @property
    def library(self) -> Library | None:
        return self.session.library

    def draw(self, store: RunStore) -> None:
        self._episodes.set_tags(store.tags)
        self._episodes.update_live(store.episodes.values())
        self.show_rows()
        self.read_changes()

    @property
    def _episode(self) -> ListedEpisode | None:
        entry = self.selected
        return None if isinstance(entry, UnreadableFile) else entry

    def show_words(self, words: str, opened_from: str) -> None:
        """Show what a query finds, until the user goes back to the screen from which it was opened."""
        self.filter.text = self._opened_words = words
        self.opened_from = opened_from

    @property
    def goes_back(self) -> bool:
        return bool(self.opened_from) and self.filter.text == self._opened_words

    def action_clear(self) -> None:
        if not self.goes_back:
            super().action_clear()
            return
        mode, self.opened_from = self.opened_from, ""
        self.app.switch_mode(mode)

    def action_open(self) -> None:
        if isinstance(log := self.selected, FoundLog):
            self.post_message(self.LogRequested(log.path))
        elif key := self.table.key:
            hits = self._text_hits()
            self.post_message(self.OpenEpisode(key, episodes=self._episodes, hits=hits, closed=self._select))

    def _select(self, key: str | None) -> None:
        if key:
            self.table.select(key)

    def action_hits(self) -> None:
        if (hits := self._text_hits()) is None:
            self.toast('add words of a text to the filter, such as text:"locked door"')
        else:
            self.app.push_screen(HitsScreen(self.context, hits, self._episodes, self._select))

    def _text_hits(self) -> TextHits | None:
        library, query = self.session.library, self._episodes.query_text
        if library is None or not text_values_of(query):
            return None
        shown = [entry.episode_id for entry in self._episodes.shown if not isinstance(entry, UnreadableFile)]
        hits = TextHits(library.texts, query, shown)
        return hits if hits.patterns else None

    def action_outside(self, program: Program) -> None:
        if key := self.table.key:
            EpisodeFile(self.app, self.session, self.selected, key).open_outside(program)

    def action_copy_path(self) -> None:
        if key := self.table.key:
            EpisodeFile(self.app, self.session, self.selected, key).copy_path()

    def action_tag(self) -> None:
        chosen = [self._episodes.get(key) for key in self._episodes.selected] or [self.selected]
        edit_tags(self, self.session, chosen)

    def action_compare(self) -> None:
        if self._episode is not None:
            mark_or_compare(self, self.session, self._episode.episode_id, self.ui_state)

    def action_select(self) -> None:
        if self._episodes.toggle(self.table.key):
            self.table.action_move(1)
            self.show_rows()

    def action_select_all(self) -> None:
        self._episodes.select_shown()
        self.show_rows()

    def action_clean_up(self, action: CleanUpAction) -> None:
        def cleaned_up() -> None:
            self._episodes.selected.clear()
            self.action_reload()

        chosen = [*self._episodes.selected] or ([self._episode.episode_id] if self._episode else [])
        clean_up(self, self.session, action, chosen, cleaned_up)

    def action_export(self) -> None:
        export(self, self.session, self._episodes.chosen(), self._episodes.query_text)

    def action_failures(self) -> None:
        from agentgym_tui.screens.results import ClustersScreen

        self.app.push_screen(ClustersScreen(self.context, self._episodes.query_text))

    def search(self, text: str) -> None:
        library = self.session.library
        if library is not None and library.texts.needs(text) and "text" in self._episodes.lookups:
            self.filter.show_error(None)  # that of the text before, for which Enter would go back to the filter
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
            if not self.is_attached or self.filter.text != text:
                return
            super().search(text)
            self._episodes.search_again()
            self.show_rows()
            if texts.progress.is_complete:
                return
            start_worker(self, partial(asyncio.to_thread, self._build, texts), group="text index")
            await asyncio.sleep(max(READ_INTERVAL_S, 5 * (self._now() - started_s)))

    def _build(self, texts: TextSearch) -> None:
        with suppress(StoreError):  # the search reports it
            texts.build()

    async def read(self, library: ResultLibrary) -> None:
        rows = await asyncio.to_thread(library.rows)
        if (stored := self.library) is None:
            return
        if text_values_of(query := self._episodes.query_text):
            await asyncio.to_thread(stored.texts.find, query)
            if not stored.texts.progress.is_complete:
                start_worker(self, partial(self._search_texts, stored.texts, query), group="texts", exclusive=True)
        self._episodes.add_lookups(await asyncio.to_thread(library.lookups))
        self._episodes.set_stored(rows, stored.unreadable)

    def show_read(self, *, first: bool) -> None:
        stay_at_top = first and self.table.cursor == 0  # the user has not selected a row yet
        if first:  # before, a query that looks up notes had an error
            self.search(self.filter.text)
        self.show_rows()
        if stay_at_top:
            self.table.move_to(0)

    @property
    def failure_line(self) -> Line:
        return [Cell(self.failure, "bad")] if self.failure else []

    def heading_lines(self, width: int) -> list[Line]:
        state = self.reading_state or self._search_progress()
        key = keymap_of(self.app).key("episodes.clear")
        effect = "goes back" if self.goes_back else "clears"
        return [list_summary(self._episodes, state, key, width, effect), self.failure_line]

    def _search_progress(self) -> str:
        library = self.session.library
        is_searched = library is not None and bool(text_values_of(self._episodes.query_text))
        return search_progress(library.texts.progress) if library is not None and is_searched else ""

    def nothing_lines(self, width: int) -> list[Line]:
        if self.is_filling:
            return []
        return empty_episodes_lines(self._episodes, keymap_of(self.app).key, self.session.read_only, width)


class HitsScreen(ListScreen[HitRow]):
    """The found lines in the order of a list of episodes; ``choose`` gets the selected one when the screen is left."""

    SCOPE = "hits"

    def __init__(
        self, context: ScreenContext, hits: TextHits, episodes: EpisodeList, choose: Callable[[str], None]
    ) -> None:
        super().__init__(context, "hits", *listed(HITS, id="hits", can_sort=False))
        self._hits, self._episodes, self._choose = hits, episodes, choose
        self._lines: list[HitRow] = []
        self._n_read_episodes = 0
        self._n_passages: int | None = None
        self._is_reading = False

    def on_mount(self) -> None:
        self.cursor_moved()
        start_worker(self, self._count, group="count")

    def selected_env(self) -> str:
        episode = None if self.selected is None else self._episodes.get(self.selected.found.episode_id)
        return "" if episode is None or isinstance(episode, UnreadableFile) else episode.env

    def action_back(self) -> None:
        if self.is_current:
            if self.selected is not None:
                self._choose(self.selected.found.episode_id)
            self.dismiss()

    def action_open(self) -> None:
        if self.selected is not None:
            at = self.selected.found
            self.post_message(self.OpenEpisode(at.episode_id, episodes=self._episodes, hits=self._hits, at=at))

    def cursor_moved(self) -> None:
        if not self._is_reading and self._needs_more:
            self._is_reading = True
            start_worker(self, self._read_lines, group="lines")

    @property
    def _needs_more(self) -> bool:
        n_wanted = min(self.table.cursor + AHEAD, MAX_LINES)
        return len(self._lines) < n_wanted and self._n_read_episodes < len(self._hits.episode_ids)

    async def _read_lines(self) -> None:
        try:
            while self._needs_more and self.is_attached:
                part = self._hits.episode_ids[self._n_read_episodes :][:EPISODES_AT_A_TIME]
                for found in await asyncio.to_thread(self._hits.of_all, part):
                    is_first = not self._lines or self._lines[-1].found.episode_id != found.episode_id
                    entry = self._episodes.get(found.episode_id) if is_first else None
                    self._lines.append(HitRow(found, is_first, None if isinstance(entry, UnreadableFile) else entry))
                self._n_read_episodes += len(part)
                self.rows.set_rows(self._lines)
                self.show_rows()
        finally:
            self._is_reading = False

    async def _count(self) -> None:
        try:
            self._n_passages = await asyncio.to_thread(self._hits.count)
        except StoreError as exc:
            self.failure = f"✗ {masked_line(exc)}"
        self.show_lines("summary")

    def heading_lines(self, width: int) -> list[Line]:
        n_episodes, state = len(self._hits.episode_ids), self.failure or search_progress(self._hits.progress)
        n_lines, n_read = len(self._lines), self._n_read_episodes
        return [hits_heading(self._hits.query, n_lines, n_read, n_episodes, self._n_passages, state, width)]
