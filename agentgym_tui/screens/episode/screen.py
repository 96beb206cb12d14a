"""The screen of one episode: its steps, the transcript of the selected step, its trace, and its file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.timer import Timer

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.answering_endpoint import shares_line
from agentgym_tui.presenters.cells import FixedLines, Line
from agentgym_tui.presenters.episode_heading import episode_heading, has_last_line
from agentgym_tui.presenters.step_rows import StepRows
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, ConsoleScreen
from agentgym_tui.screens.dialogs.tags import edit_tags
from agentgym_tui.screens.episode.file_actions import EpisodeFile
from agentgym_tui.screens.episode.reading import ReadingScreen
from agentgym_tui.services import copy_to_clipboard, start_worker
from agentgym_tui.sessions.session import (
    EpisodeLoadError,
    LoadedEpisode,
    Session,
    load_episode,
    load_notes,
    select_episodes,
)
from agentgym_tui.sessions.text_search import FoundLine, TextHits
from agentgym_tui.state.episode_list import EpisodeList, ListEntry, UnreadableFile
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.terminal import Program
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.static_lines import StaticLines

if TYPE_CHECKING:
    from runner.types.notes import Note

SHARES: Final = (
    Share("steps", "episode.wide.steps", "width", 15, 80, "-wide"),
    Share("steps", "episode.narrow.steps", "height", 15, 80, "-narrow"),
)
FROM_END: Final = ("observation", "error")
"""Kinds of texts that come last in a step, where the texts before may repeat them."""
CLEAR_AFTER_S: Final = 0.2
"""Seconds after which the previous episode is cleared while the next one is loading."""


class EpisodeScreen(ReadingScreen):
    """A screen that shows one episode; its result is the key of the episode shown last.

    Args:
        session: provides the episode.
        key: key of the episode in ``episodes``.
        episodes: the list in which to look up the next and the previous episode; by default the episodes in the store.
        ui_state: saved pane sizes; updated in place.
        hits: the search whose lines the keys of ``hit`` go through; None for none.
        at: the found line that is shown first; by default the first one of the episode.
    """

    SCOPE = "episode"
    REQUIRED_WIDGETS = "#heading, #steps, #views"
    AUTO_FOCUS = "#steps"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

    @dataclass
    class EventsRequested(Message):
        """The user has requested the bus messages of an episode."""

        episode_id: str

    def __init__(
        self,
        session: Session,
        key: str,
        episodes: EpisodeList | None = None,
        *,
        ui_state: UiState | None = None,
        hits: TextHits | None = None,
        at: FoundLine | None = None,
    ) -> None:
        super().__init__()
        self._hits, self._hit = hits, at
        if hits is not None:
            add_bindings(self, bindings("hit"))
        self._ui_state = ui_state or UiState()
        self._session = session
        self._key = key
        self._episodes = episodes or EpisodeList()
        self._episodes.update_live(session.store.episodes.values())
        self._failure = ""
        self._state: str = ""
        self._drawn_version = -1
        self._clear_timer: Timer | None = None
        self._load_context: tuple[object, ...] | None = None
        self._notes_state = session.library.notes_state if session.library is not None else None

    def compose(self) -> ComposeResult:
        yield StaticLines(id="heading")
        with Split(SHARES, self._ui_state.sizes, id="episode"):
            yield self._steps
            yield self._views
        yield self._find
        yield KeyBar(self.SCOPE, self._session, first="hit" if self._hits else "")

    def on_mount(self) -> None:
        """Load the first episode."""
        if self.is_ready:
            self._open(self._key)

    def draw(self, store: RunStore) -> None:
        if not self.is_ready:
            return
        if (library := self._session.library) is not None and library.notes_state != self._notes_state:
            self._notes_state = library.notes_state
            start_worker(self, self._read_notes, group="notes", exclusive=True)
        has_new_tags = self._episodes.set_tags(store.tags)
        if self._episodes.update_live(store.episodes.values()) or has_new_tags:
            self._show_heading(self._state)  # its position in the list may have changed
        if (loaded := self._loaded) is None or loaded.missing_reason:
            self._retry_load()
            return
        if loaded.data is not None:
            return
        if not loaded.episode.running:
            self._open(self._key)
        elif loaded.episode.version != self._drawn_version:
            self._drawn_version = loaded.episode.version
            self._show(loaded)

    def selected_env(self) -> str:
        entry = self._entry
        return "" if entry is None or isinstance(entry, UnreadableFile) else entry.env

    def action_back(self) -> None:
        """End the search in the view, or go back to the previous screen."""
        if self._find.is_open:
            self._find.end()
        else:
            self.leave(self._key)

    def action_neighbor(self, by: int) -> None:
        """Show the episode ``by`` rows after this one in the list."""
        if (key := self._episodes.neighbor(self._key, by)) is None:
            self.toast("this is the last episode" if by > 0 else "this is the first episode")
        else:
            self._open(key)

    def action_hit(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line with the words that were searched for, or to the current one (0)."""
        start_worker(self, partial(self._find_hit, by), group="hit", exclusive=True)

    async def _find_hit(self, by: int) -> None:
        """Find the line, open its episode if it is another one, and show the line."""
        hit, hits, key = self._hit, self._hits, self._key
        if hits is None:
            return
        if by:
            number = hit.number if hit is not None and hit.episode_id == key else -1
            found = await asyncio.to_thread(hits.beyond, key, number, by)
        else:
            found = hit if hit is not None and hit.episode_id == key else None
            found = found or next(iter(await asyncio.to_thread(hits.of, key)), None)
        if found is None and by:
            self.toast("this is the last line" if by > 0 else "this is the first line")
        elif found is not None and self.is_ready and key == self._key:
            self._hit = found
            if found.episode_id != self._key:
                self._open(found.episode_id)
            elif by or self._views.shows_transcript:
                self._show_hit()

    def _show_hit(self) -> None:
        """Select the step of the found line, and show the line in the transcript."""
        hit, hits = self._hit, self._hits
        if hits is not None and hit is not None and hit.episode_id == self._key:
            self._steps.select(str(hit.hit.step or 0))
            self._show_step()
            self._views.find(hits.expressions, hit.hit.line, from_end=hit.hit.kind in FROM_END)

    def action_tab(self, tab: str) -> None:
        """Show the tab with id ``tab``."""
        self._views.select_tab(tab)
        if self._find.is_open:
            self._find.search_again()

    def action_copy(self, raw: bool = False) -> None:
        """Copy the text of the shown tab; visible symbols replace control characters unless ``raw`` is True."""
        copy_to_clipboard(self.app, self._views.text(raw=raw), raw=raw, whole="export writes all of it")

    def action_copy_path(self) -> None:
        """Copy the path of the episode's file, or the id of the episode where the file is not on this machine."""
        copy_to_clipboard(self.app, str(self._path or self._key), raw=False)

    def action_compare(self) -> None:
        """Mark the episode, or compare it with the marked one."""
        from agentgym_tui.screens.episode.compare import mark_or_compare  # that screen opens this one

        if not isinstance(self._entry, UnreadableFile):
            mark_or_compare(self, self._session, self._key, self._ui_state)

    def action_tag(self) -> None:
        """Edit the tags and notes of the episode."""
        edit_tags(self, self._session, self._entry, on_change=self._show_notes)

    def action_note(self) -> None:
        """Edit the tags and notes of the selected step."""
        if self._loaded is not None:
            edit_tags(self, self._session, self._entry, self._step, self._show_notes)

    def action_export(self) -> None:
        """Write the episode's file to the working directory."""
        self._file.export()

    def action_outside(self, program: Program) -> None:
        """Open a copy of the episode's file in the pager or editor."""
        self._file.open_outside(program)

    def action_events(self) -> None:
        """Request the bus messages of this episode."""
        self.post_message(self.EventsRequested(self._key))

    @on(LineList.CursorMoved, "#steps")
    def _step_selected(self) -> None:
        if self.is_ready:
            self._show_step()

    @on(LineList.Selected, "#steps")
    def _step_opened(self) -> None:
        if self.is_ready:
            self.action_tab("transcript")

    @property
    def _entry(self) -> ListEntry | None:
        known = self._loaded.episode if self._loaded else None
        return known if known and known.episode_id == self._key else self._episodes.get(self._key)

    @property
    def _file(self) -> EpisodeFile:
        return EpisodeFile(self.app, self._session, self._episodes.get(self._key), self._key, self._loaded)

    @property
    def _path(self) -> Path | None:
        loaded = self._loaded
        return loaded.path if loaded is not None and loaded.episode.episode_id == self._key else None

    def _retry_load(self) -> None:
        if self._load_context not in (None, now := self._current_context()):
            self._load_context = now
            start_worker(self, partial(self._load, self._key), group="load", exclusive=True)

    def _current_context(self) -> tuple[object, ...]:
        store, entry = self._session.store, self._episodes.get(self._key)
        node = store.nodes.get(entry.node) if entry and not isinstance(entry, UnreadableFile) else None
        return (store.link.status, *((node.boot, node.lost) if node else ()))

    def _open(self, key: str) -> None:
        # the previous episode stays until the new one is loaded, which avoids flicker
        self._key, self._load_context = key, None
        self._show_heading("loading …")
        self._clear_timer = self._clear_timer or self.set_timer(CLEAR_AFTER_S, self._clear_while_loading)
        start_worker(self, partial(self._load, key), group="load", exclusive=True)

    async def _load(self, key: str) -> None:
        loaded: LoadedEpisode | EpisodeLoadError
        load_context = self._current_context()
        try:
            loaded = await load_episode(self._session, self._episodes.get(key), key)
        except EpisodeLoadError as exc:
            loaded = exc
        if not self.is_ready:  # the screen was closed meanwhile
            return
        self._load_context = load_context
        if isinstance(loaded, EpisodeLoadError):
            self._clear(str(loaded))
            self._show_heading("✗ cannot be shown")
        else:
            is_shown = self._loaded is not None and self._loaded.episode.episode_id == key
            self._cancel_clear()
            self._loaded, self._failure, self._drawn_version = loaded, "", loaded.episode.version
            self._show(loaded, is_new=not is_shown)

    def _cancel_clear(self) -> None:
        if self._clear_timer is not None:
            self._clear_timer.stop()
            self._clear_timer = None

    def _clear_while_loading(self) -> None:
        """Empty the panes, unless the episode was loaded while the call of the timer waited."""
        if self._clear_timer is not None:
            self._clear()

    def _clear(self, failure: str = "") -> None:
        """Empty the panes; show ``failure``, an untrusted text, if it is not empty."""
        self._cancel_clear()
        if not self.is_ready:
            return
        self._loaded, self._failure = None, failure
        self._steps.show(FixedLines(()), follow=False)
        self._views.show(self._key, None, failure)
        self._show_step()

    def _show(self, loaded: LoadedEpisode, *, is_new: bool = False) -> None:
        """Show an episode; select the first step of a newly opened episode, but the last step of a running one."""
        running = loaded.episode.running
        self._show_heading("file not available here" if loaded.missing_reason else "")
        rows = StepRows(loaded.episode)
        self._steps.set_columns(rows.columns)
        self._steps.show(rows, follow=running if is_new or not running else None)
        if is_new and not running:
            self._steps.move_to(0)
        self._views.show(self._key, loaded)
        self._show_step()
        if is_new and self._hits is not None:
            self.action_hit(0)

    async def _read_notes(self) -> None:
        if (loaded := self._loaded) is not None:
            notes = await load_notes(self._session, loaded.episode.episode_id)
            if loaded is self._loaded:
                self._show_notes(notes)

    def _show_notes(self, notes: Sequence[Note]) -> None:
        """Show the tags and notes that the episode has now."""
        if self._loaded is not None and self.is_ready and notes != self._loaded.episode.notes:
            self._loaded.episode.notes = notes
            self._show(self._loaded)

    def _show_heading(self, state: str) -> None:
        self._state, entry, path = state, self._entry, self._path
        tags = self._session.store.tags.get(self._key, ())
        shares = shares_line(self._loaded.episode.steps) if self._loaded else []
        index = self._episodes.place_of(self._key)
        position = "" if index is None else f"{index + 1:,} of {len(self._episodes.shown):,}"

        def make_lines(width: int) -> list[Line]:
            return episode_heading(entry, state, position, width, path, tags, shares, self._session.store.currency)

        self.query_one("#heading", StaticLines).show(make_lines)
        self.set_class(has_last_line(entry, shares), "-four-lines")


def open_among(screen: ConsoleScreen[Any], session: Session, episode_id: str, query: str, ui_state: UiState) -> None:
    """Open an episode from ``screen``; the next and the previous ones are among those that a query selects.

    The episode is opened even if the query has an error or the others cannot be read.
    """

    async def read_and_open() -> None:
        episodes = await select_episodes(session, query, episode_id)
        screen.app.push_screen(EpisodeScreen(session, episode_id, episodes, ui_state=ui_state))

    start_worker(screen, read_and_open, group="open", exclusive=True)
