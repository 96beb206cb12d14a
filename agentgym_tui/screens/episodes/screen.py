"""The list of what is stored and what runs."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from agentgym_tui.commands.availability import hidden_commands
from agentgym_tui.commands.keymap import bindings, keymap_of
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import Cell, Line, masked_line
from agentgym_tui.presenters.episode_rows import (
    EPISODE_COLUMNS,
    EpisodeRows,
    empty_episodes_lines,
    hostile_fields,
    list_summary,
    reading_progress,
)
from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.safe_text import SafeText, trusted
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.episode_list import DEFAULT_SORTING, EpisodeList
from agentgym_tui.state.models import READING_FILES, BusLink
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.inputs import MAX_QUERY_CHARS, FilterInput
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText
from agentgym_tui.widgets.table import SortableTable
from runner.errors import StoreError

LIST: Final = "episodes"
"""The table, also where its filter and order are kept."""

PLACEHOLDER: Final = "words it must hold, such as: wordle error #7"
READING_EVERY_S: Final = 0.1
READ_EVERY_S: Final = 1.0
"""Seconds between two readings of a library that is and one that is not being filled; ten times what one takes if that
is longer."""


class EpisodeTable(SortableTable, inherit_bindings=False):
    """Enter is left to the screen, whose footer says what it does."""

    BINDINGS: ClassVar[list[BindingType]] = SortableTable.BINDINGS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key may do something here."""
        return action != "choose"


class EpisodesScreen(ConsoleScreen[None]):
    """Stored and running episodes, the newest first.

    Args:
        session: what is looked at.
        kept: filter and order as they were left.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("episodes")]
    REQUIRED_WIDGETS = "#summary, #nothing, #status, EpisodeTable"
    CSS_PATH = "../../styles/episodes.tcss"
    AUTO_FOCUS = "#episodes"

    def __init__(self, session: Session, kept: UiState | None = None) -> None:
        super().__init__()
        self._session = session
        self._kept = kept or UiState()
        self._list = EpisodeList()
        self._list.search(self._kept.filters.get(LIST, ""))
        self._list.sort(self._kept.sorting.get(LIST))
        self._rows = EpisodeRows(self._list)
        self._n_read: int | None = None
        self._reading = self._was_read = False
        self._failure: SafeText = trusted("")

    def compose(self) -> ComposeResult:
        """Heading, filter, list."""
        yield StatusText(self._summary, id="summary")
        words = self._kept.filters.get(LIST, "")
        self.set_class(bool(words), "-filtering")
        yield FilterInput(words, placeholder=PLACEHOLDER, id="filter", max_length=MAX_QUERY_CHARS)
        yield EpisodeTable(EPISODE_COLUMNS, self._rows, sorting=self._list.sorting, default_sorting=DEFAULT_SORTING, id=LIST)
        yield StatusText(self._nothing, id="nothing")
        yield StatusText(self._status, id="status")
        yield KeyBar("episodes", without=hidden_commands(self._session))

    def on_screen_resume(self) -> None:
        """Catch up with what happened meanwhile."""
        self.draw(self._session.store)

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        if not self.is_ready:
            return
        if self._list.update_live(store.episodes.values()):
            self._show()
        else:
            self._table.refresh_lines()
            self._show_around()
        if self._session.library is not None and self._n_read != store.n_ended and not self._reading:
            self._reading = True
            start_worker(self, self._read, group="read")

    def hostile_text(self) -> str | None:
        """What is behind the selected row where cleaning changed it."""
        return hostile_fields(self._list.get(self._table.key))

    def action_open(self) -> None:
        """Show the selected episode."""
        if key := self._table.key:
            self.app.push_screen(EpisodeScreen(self._session, key, self._list, kept=self._kept), self._opened)

    def action_filter(self) -> None:
        """Ask what to look for."""
        self.add_class("-filtering")
        self.set_focus(self.query_one(FilterInput))

    def action_clear_filter(self) -> None:
        """Show all again."""
        self.query_one(FilterInput).action_clear()

    def action_reload(self) -> None:
        """Read the library again now."""
        self._n_read = None
        self.draw(self._session.store)

    @on(LineList.Selected, "#episodes")
    def _chosen(self) -> None:
        if self.accepts_keys:
            self.action_open()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        if self.is_ready:
            self._kept.set_sorting(LIST, event.sorting)
            self._list.sort(event.sorting)
            self._show()

    @on(Input.Changed, "#filter")
    def _searched(self, event: Input.Changed) -> None:
        """Of letters that come together only the last one is looked for."""
        if self.is_ready and event.value == event.input.value:
            self._kept.set_filter(LIST, event.value)
            self._list.search(event.value)
            self._show()
            self._table.move_to(0)

    @on(FilterInput.Closed)
    def _filtered(self, event: FilterInput.Closed) -> None:
        self.set_class(not event.cleared, "-filtering")

    @property
    def _table(self) -> EpisodeTable:
        return self.query_one(EpisodeTable)

    def _opened(self, key: str | None) -> None:
        """Back from an episode: where its neighbours led to."""
        if key:
            self._table.select(key)

    async def _read(self) -> None:
        """Read the library as long as something ended since."""
        store = self._session.store
        try:
            while self._n_read != store.n_ended and self.is_current:
                self._n_read, began = store.n_ended, time.monotonic()
                await self._read_once()
                least = READING_EVERY_S if self._is_reading else READ_EVERY_S
                await asyncio.sleep(max(least, 10 * (time.monotonic() - began)))
        finally:
            self._reading = False

    async def _read_once(self) -> None:
        library = self._session.library
        if library is None:
            return
        try:
            rows = await asyncio.to_thread(library.rows)
        except StoreError as exc:
            self._failure = trusted(f"✗ {masked_line(exc)}")
        else:
            self._failure = trusted("")
            self._list.set_stored(rows, library.unreadable)
        is_first, self._was_read = not self._was_read, True
        if not self.is_ready:
            return
        self._show()
        if is_first:  # nobody has chosen yet what is above the rows that came
            self._table.move_to(0)

    def _show(self) -> None:
        self._table.show(self._rows)
        self._show_around()

    def _show_around(self) -> None:
        self.set_class(not self._list.shown and not self._is_reading, "-empty")
        self.set_class(bool(self._failure), "-failed")
        for name, make in (("summary", self._summary), ("nothing", self._nothing), ("status", self._status)):
            self.query_one(f"#{name}", StatusText).show(make)

    def _summary(self, width: int) -> list[Line]:
        state = reading_progress(self._session.store.read_progress) if self._is_reading else trusted("")
        return [list_summary(self._list, state, width), [Cell(self._failure, "bad")]]

    def _nothing(self, width: int) -> list[Line]:
        return [] if self._is_reading else empty_episodes_lines(self._list, keymap_of(self.app).key, self._session.read_only, width)

    @property
    def _is_reading(self) -> bool:
        """Whether more may come of what is stored already."""
        is_library, link = self._session.library is not None, self._session.store.link
        return is_library and (not self._was_read or link in (BusLink(), READING_FILES))

    def _status(self, width: int) -> list[Line]:
        return [status_line(self._session.store, self._session.title, width)]
