"""The screen that compares two episodes step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.config import UiState
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.episode import ALIGNED_COLUMNS, AlignedRows, aligned_step_lines, alignment_heading
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.episode_files import record_from_bytes
from agentgym_tui.sessions.session import EpisodeLoadError, LoadedEpisode, Session, load_file
from agentgym_tui.state.episode_list import exact_terms
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines, WrappedText
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.table import Table
from runner.errors import StoreError

if TYPE_CHECKING:
    from runner.results.alignment import AlignedEpisodes, AlignedStep

SHARES: Final = (Share("aligned", "compare.steps", "height", 15, 80, ""),)


class CompareScreen(ConsoleScreen[None]):
    """Two episodes, A and B, aligned by step; starts at the first step that differs."""

    SCOPE = "compare"
    AUTO_FOCUS = "#aligned"

    def __init__(self, session: Session, keys: tuple[str, str], ui_state: UiState) -> None:
        super().__init__()
        self._session, self._keys, self._ui_state = session, keys, ui_state
        self._loaded: list[LoadedEpisode] = []
        self._aligned: AlignedEpisodes | None = None
        self._failure: str = ""
        self._table = Table(ALIGNED_COLUMNS, id="aligned")
        self._texts = WrappedText(lambda width: aligned_step_lines(self._selected, width), id="texts")

    def compose(self) -> ComposeResult:
        yield StaticLines(self._heading_lines, id="heading")
        with Split(SHARES, self._ui_state.sizes, id="comparison"):
            yield self._table
            yield self._texts
        yield KeyBar(self.SCOPE, self._session)

    def on_mount(self) -> None:
        start_worker(self, self._load, group="load", exclusive=True)

    def selected_env(self) -> str:
        return self._loaded[0].episode.env if self._loaded else ""

    def action_back(self) -> None:
        """Go back to the previous screen."""
        self.leave()

    def action_open_side(self, side: int) -> None:
        """Open episode A (0) or B (1); the next and the previous ones are the two."""
        self.post_message(self.OpenEpisode(self._keys[side], exact_terms(id=self._keys)))

    def action_difference(self, by: int) -> None:
        """Go to the next (1) or previous (-1) step that differs."""
        steps = self._aligned.steps if self._aligned else []
        rows = [row for row, step in enumerate(steps) if step.differences]
        beyond = [row for row in rows if (row - self._table.cursor) * by > 0]
        if beyond:
            self._table.move_to(beyond[0] if by > 0 else beyond[-1])
        else:
            self.toast("this is the last difference" if by > 0 else "this is the first difference")

    async def _load(self) -> None:
        try:
            self._loaded = [await load_file(self._session, None, key) for key in self._keys]
            self._aligned = await asyncio.to_thread(_align, self._loaded)
        except (EpisodeLoadError, StoreError) as exc:
            self._failure = f"the episodes cannot be compared: {masked_line(exc)}"
        if not self.is_attached:  # the screen was closed meanwhile
            return
        self.show_lines("heading")
        if self._aligned is not None:
            self._table.show(AlignedRows(self._aligned), follow=False)
            self._table.move_to(self._aligned.divergence or 0)
        self._step_selected()

    def _heading_lines(self, width: int) -> list[Line]:
        return alignment_heading([each.episode for each in self._loaded], self._aligned, width, failure=self._failure)

    @property
    def _selected(self) -> AlignedStep | None:
        row = self._table.cursor
        steps = self._aligned.steps if self._aligned else []
        return steps[row] if 0 <= row < len(steps) else None

    @on(LineList.CursorMoved, "#aligned")
    def _step_selected(self) -> None:
        self._texts.set_lines(lambda width: aligned_step_lines(self._selected, width))


def _align(loaded: Sequence[LoadedEpisode]) -> AlignedEpisodes:
    from runner.results.alignment import align

    left, right = (record_from_bytes(each.data or b"", Path("episode.json")) for each in loaded)
    return align(left, right)


def mark_or_compare(screen: ConsoleScreen[Any], session: Session, key: str, ui_state: UiState) -> None:
    """Mark the episode ``key`` in the session's store for a comparison; if another one is marked, compare the two."""
    marked, session.store.marked_episode = session.store.marked_episode, ""
    if marked and marked != key:
        screen.app.push_screen(CompareScreen(session, (marked, key), ui_state))
    elif marked:
        screen.toast("no episode is marked any more")
    else:
        session.store.marked_episode = key
        screen.toast(f"{key} is marked: compare it with another one")
