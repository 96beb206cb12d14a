"""The list of what is stored and what runs."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from agentgym_tui.commands.availability import hidden
from agentgym_tui.commands.keymap import bindings, keys_of
from agentgym_tui.config.ui_state import Kept
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_rows import EPISODE_COLUMNS, EpisodeRows, list_line, no_rows, reading_text
from agentgym_tui.presenters.segments import told
from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.safe_text import Safe, own
from agentgym_tui.screens.base import Whole
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.screens.filter import FilterInput
from agentgym_tui.services.working import begin
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.episode_list import USUAL, EpisodeList, hostile_fields
from agentgym_tui.state.models import READING, Link
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.line_list import LineView
from agentgym_tui.widgets.pane import KeyLine, News
from agentgym_tui.widgets.sortable_table import Sortable
from agentgym_tui.widgets.words import MAX_WORDS
from runner.errors import StoreError

LIST: Final = "episodes"
"""The table, also where its filter and order are kept."""

PLACEHOLDER: Final = "words it must hold, such as: wordle error #7"
READING_EVERY_S: Final = 0.1
READ_EVERY_S: Final = 1.0
"""Seconds between two readings of a library that is and one that is not being filled; ten times what one takes if that
is longer."""


class EpisodeTable(Sortable, inherit_bindings=False):
    """Enter is left to the screen, whose footer says what it does."""

    BINDINGS: ClassVar[list[BindingType]] = Sortable.BINDINGS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key may do something here."""
        return action != "choose"


class Episodes(Whole[None]):
    """Stored and running episodes, the newest first.

    Args:
        session: what is looked at.
        kept: filter and order as they were left.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("episodes")]
    PARTS = "#summary, #nothing, #status, EpisodeTable"
    CSS_PATH = "../../styles/episodes.tcss"
    AUTO_FOCUS = "#episodes"

    def __init__(self, session: Session, kept: Kept | None = None) -> None:
        super().__init__()
        self._session = session
        self._kept = kept or Kept()
        self._list = EpisodeList()
        self._list.search(self._kept.filters.get(LIST, ""))
        self._list.sort(self._kept.sorting.get(LIST))
        self._rows = EpisodeRows(self._list)
        self._n_read: int | None = None
        self._reading = self._was_read = False
        self._failure: Safe = own("")

    def compose(self) -> ComposeResult:
        """Heading, filter, list."""
        yield News(self._summary, id="summary")
        words = self._kept.filters.get(LIST, "")
        self.set_class(bool(words), "-filtering")
        yield FilterInput(words, placeholder=PLACEHOLDER, id="filter", max_length=MAX_WORDS)
        yield EpisodeTable(EPISODE_COLUMNS, self._rows, sorting=self._list.sorting, usual=USUAL, id=LIST)
        yield News(self._nothing, id="nothing")
        yield News(self._status, id="status")
        yield KeyLine("episodes", without=hidden(self._session))

    def on_screen_resume(self) -> None:
        """Catch up with what happened meanwhile."""
        self.draw(self._session.store)

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        if not self.is_there:
            return
        if self._list.take_live(store.episodes.values()):
            self._show()
        else:
            self._table.refresh_lines()
            self._show_around()
        if self._session.library is not None and self._n_read != store.n_ended and not self._reading:
            self._reading = True
            begin(self, self._read, group="read")

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

    @on(LineView.Chosen, "#episodes")
    def _chosen(self) -> None:
        if self.whole:
            self.action_open()

    @on(Sortable.Sorted)
    def _sorted(self, event: Sortable.Sorted) -> None:
        if self.is_there:
            self._kept.sort(LIST, event.sorting)
            self._list.sort(event.sorting)
            self._show()

    @on(Input.Changed, "#filter")
    def _searched(self, event: Input.Changed) -> None:
        """Of letters that come together only the last one is looked for."""
        if self.is_there and event.value == event.input.value:
            self._kept.look_for(LIST, event.value)
            self._list.search(event.value)
            self._show()
            self._table.move_to(0)

    @on(FilterInput.Left)
    def _filtered(self, event: FilterInput.Left) -> None:
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
            self._failure = own(f"✗ {told(exc)}")
        else:
            self._failure = own("")
            self._list.take_stored(rows, library.unusable)
        is_first, self._was_read = not self._was_read, True
        if not self.is_there:
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
            self.query_one(f"#{name}", News).show(make)

    def _summary(self, width: int) -> list[Line]:
        state = reading_text(self._session.store.reading) if self._is_reading else own("")
        return [list_line(self._list, state, width), [Cell(self._failure, "bad")]]

    def _nothing(self, width: int) -> list[Line]:
        return [] if self._is_reading else no_rows(self._list, keys_of(self.app).key, self._session.read_only, width)

    @property
    def _is_reading(self) -> bool:
        """Whether more may come of what is stored already."""
        is_library, link = self._session.library is not None, self._session.store.link
        return is_library and (not self._was_read or link in (Link(), READING))

    def _status(self, width: int) -> list[Line]:
        return [status_line(self._session.store, self._session.title, width)]
