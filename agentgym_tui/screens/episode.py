"""The screen of one episode, its steps beside views such as the transcript, and the one that compares two episodes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.config import UiState
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.episode import (
    ALIGNED_COLUMNS,
    AlignedRows,
    aligned_step_lines,
    alignment_heading,
    episode_heading,
    has_last_line,
)
from agentgym_tui.presenters.episode_facts import shares_line
from agentgym_tui.presenters.payload import pretty_json
from agentgym_tui.presenters.transcript import JUMPS, Jump, step_to_jump
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, ConsoleScreen
from agentgym_tui.screens.dialogs.curate import edit_tags
from agentgym_tui.screens.episode_views import STEP, TRACE, WHOLE, EpisodeTabs
from agentgym_tui.services import ExportError, copy_to_clipboard, export_episode, start_worker, toast, write_trace
from agentgym_tui.sessions.episode_files import record_from_bytes
from agentgym_tui.sessions.library import FoundLine, TextHits
from agentgym_tui.sessions.session import EpisodeLoadError, LoadedEpisode, Session, load_episode, load_file, load_notes
from agentgym_tui.state.episode_list import EpisodeList, ListEntry, UnreadableFile, exact_terms
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.terminal import Program, ProgramError, program_command, show_in_program
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.inputs import FindBar
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, SideTable, StaticLines, WrappedText
from agentgym_tui.widgets.payload_view import TextView
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.transcript import StepTable
from runner.errors import StoreError
from runner.util.clock import is_ulid

if TYPE_CHECKING:
    from textual.app import App

    from runner.results.alignment import AlignedEpisodes, AlignedStep
    from runner.types.notes import Note

SHARES: Final = (
    Share("steps", "episode.wide.steps", "width", 15, 80, "-wide"),
    Share("steps", "episode.narrow.steps", "height", 15, 80, "-narrow"),
)
COMPARE_SHARES: Final = (Share("aligned", "compare.steps", "height", 15, 80, ""),)
FROM_END: Final = ("observation", "error")  # texts that come last in a step, where the texts before may repeat them
CLEAR_AFTER_S: Final = 0.2  # seconds after which the previous episode is cleared while the next one is loading
_COPIED: Final = {STEP: "step", WHOLE: "text at the cursor"}
OPENING_A_TRACE: Final = "open it in a browser at ui.perfetto.dev, which reads it there; nothing is sent"
STILL_RUNNING: Final = "this episode is still running; its file is written when it ends"


class EpisodeScreen(ConsoleScreen[str]):
    """A screen that shows one episode; its result is the key of the episode shown last.

    ``episodes`` has the next and the previous one, ``hits`` the lines that the keys of ``hit`` go through, from ``at``.
    """

    SCOPE = "episode"
    AUTO_FOCUS = "#steps"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

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
        if hits is not None:
            add_bindings(self, bindings("hit"))
        self._session, self._key, self._hits, self._hit = session, key, hits, at
        self._ui_state = ui_state or UiState()
        self._episodes = episodes or EpisodeList()
        self._episodes.update_live(session.store.episodes.values())
        self._loaded: LoadedEpisode | None = None
        self._state = ""
        self._drawn_version = -1
        self._load_context: tuple[object, ...] | None = None
        self._notes_state = session.library.notes_state if session.library is not None else None
        self._restore_keys: Callable[[], None] | None = None
        self._heading, self._steps, self._views = StaticLines(id="heading"), StepTable(), EpisodeTabs(id="views")
        self._find = FindBar(lambda: self._views.view, self._views.rows_with, id="find")

    def compose(self) -> ComposeResult:
        yield self._heading
        with Split(SHARES, self._ui_state.sizes, id="episode"):
            yield self._steps
            yield self._views
        yield self._find
        yield KeyBar(self.SCOPE, self._session, first="hit" if self._hits else "")

    def on_mount(self) -> None:
        self._open(self._key)

    def draw(self, store: RunStore) -> None:
        if (library := self._session.library) is not None and library.notes_state != self._notes_state:
            self._notes_state = library.notes_state
            start_worker(self, self._read_notes, group="notes", exclusive=True)
        has_new_tags = self._episodes.set_tags(store.tags)
        if self._episodes.update_live(store.episodes.values()) or has_new_tags:
            self._show_heading(self._state)  # its position in the list may have changed
        if (loaded := self._loaded) is None or loaded.missing_reason:
            if self._load_context not in (None, now := self._current_context()):
                self._load_context = now
                start_worker(self, partial(self._load, self._key), group="load", exclusive=True)
        elif loaded.data is None and not loaded.episode.running:
            self._open(self._key)
        elif loaded.data is None and loaded.episode.version != self._drawn_version:
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
        if (key := self._episodes.neighbor(self._key, by)) is None:
            self.toast("this is the last episode" if by > 0 else "this is the first episode")
        else:
            self._open(key)

    def action_tab(self, tab: str) -> None:
        self._views.select_tab(tab)
        self._search_again()

    def action_copy(self, raw: bool = False, whole: bool = False) -> None:
        """Copy what is at the cursor of the tab, or all; symbols replace control characters unless ``raw`` is True."""
        what = "view" if whole else _COPIED.get(self._views.tab, "view")
        text = self._views.text(raw=raw, whole=whole)
        copy_to_clipboard(self.app, text, what, raw=raw, whole="export writes all of it")

    def action_copy_path(self) -> None:
        """Copy the path of the episode's file, in the trace of its Perfetto trace; the id without a file here."""
        if self._views.tab == TRACE and self._path is None:
            self.toast(f"no trace file here; {keymap_of(self.app).key('trace.write')} writes one", failed=True)
        else:
            copy_to_clipboard(self.app, str(self._path or self._key), "path" if self._path else "id", raw=False)

    def action_write_trace(self) -> None:
        """Say where the Perfetto trace is and what opens it; one that does not exist is written into this folder."""
        start_worker(self, self._write_trace, group="export")

    async def _write_trace(self) -> None:
        if (loaded := self._loaded) is None or not len(spans := loaded.episode.spans):
            self.toast("this episode has no spans", failed=True)
            return
        try:
            path = loaded.trace or await asyncio.to_thread(
                write_trace, spans.all, loaded.episode.episode_id, Path.cwd()
            )
        except (ExportError, OSError) as exc:
            self.toast(f"not written: {exc}", failed=True)
        else:
            self.toast(f"{'trace of the batch' if loaded.trace else 'trace written'}; {OPENING_A_TRACE}\n{path}")

    def action_compare(self) -> None:
        if not isinstance(self._entry, UnreadableFile):
            mark_or_compare(self, self._session, self._key, self._ui_state)

    def action_tag(self) -> None:
        edit_tags(self, self._session, [self._entry], on_change=self._show_notes)

    def action_note(self) -> None:
        if self._loaded is not None:
            edit_tags(self, self._session, [self._entry], self._steps.step, self._show_notes)

    def action_export(self) -> None:
        self._file.export()

    def action_outside(self, program: Program) -> None:
        self._file.open_outside(program)

    def action_events(self) -> None:
        self.post_message(self.EventsRequested(self._key))

    def action_hit(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line with the words that were searched for, or to the current one (0)."""
        start_worker(self, partial(self._find_hit, by), group="hit", exclusive=True)

    async def _find_hit(self, by: int) -> None:
        if (hits := self._hits) is None:
            return
        key = self._key
        hit = self._hit if self._hit is not None and self._hit.episode_id == key else None
        if by:
            found = await asyncio.to_thread(hits.beyond, key, hit.number if hit is not None else -1, by)
        else:
            found = hit or next(iter(await asyncio.to_thread(hits.of, key)), None)
        if found is None and by:
            self.toast("this is the last line" if by > 0 else "this is the first line")
        elif found is not None and self.is_attached and key == self._key:
            self._hit = found
            if found.episode_id != key:
                self._open(found.episode_id)
            elif by or self._views.tab == STEP:
                self._steps.select(str(found.hit.step or 0))
                self._show_step()
                words = re.compile("|".join(each.pattern for each in hits.expressions), re.IGNORECASE)
                self._views.find(words, found.hit.line, from_end=found.hit.kind in FROM_END)

    def action_find(self) -> None:
        """Search the view; a transcript of one step becomes that of the whole episode."""
        if self._views.tab == STEP:
            self._views.select_tab(WHOLE)
        if self._restore_keys is None:
            self._restore_keys = add_bindings(self, bindings("match"))
        self._find.open()

    def action_match(self, by: int) -> None:
        self._find.go(by)

    @on(TextView.TextShown)
    def _search_again(self) -> None:
        if self._find.is_open:
            self._find.search_again()

    @on(EpisodeTabs.TabShown)
    def _tab_shown(self) -> None:
        """Show the keys that jump between steps where all steps are shown, and the path of what is shown."""
        self.query_one(KeyBar).put_first("whole." if self._views.tab == WHOLE else "")
        self._show_heading(self._state)

    @on(FindBar.Ended)
    def _find_ended(self) -> None:
        if self._restore_keys is not None:
            self._restore_keys()
            self._restore_keys = None

    def action_fold(self, kinds: str) -> None:
        if not self._views.fold(kinds):
            self.toast(f"no texts of the kind: {kinds}")

    def action_zoom_step(self) -> None:
        self._views.zoom()

    def action_jump(self, what: Jump, by: int) -> None:
        """Select the next (1) or previous (-1) step of a kind."""
        if self._loaded is None:
            return
        shown = self._views.step_in_view
        at = self._steps.step if shown is None else shown
        if (step := step_to_jump(self._loaded.episode, what, at, by)) is None:
            self.toast(f"no {'later' if by > 0 else 'earlier'} {JUMPS[what]}")
        else:
            self._steps.select(str(step))
            self._show_step()

    @on(LineList.CursorMoved, "#steps")
    def _show_step(self) -> None:
        self._views.show_step(self._steps.step, follow=self._steps.follow)

    @on(LineList.Selected, "#steps")
    def _step_opened(self) -> None:
        self.action_tab(STEP)

    @property
    def _entry(self) -> ListEntry | None:
        known = self._loaded.episode if self._loaded else None
        return known if known and known.episode_id == self._key else self._episodes.get(self._key)

    @property
    def _file(self) -> EpisodeFile:
        return EpisodeFile(self.app, self._session, self._episodes.get(self._key), self._key, self._loaded)

    @property
    def _path(self) -> Path | None:
        """Path of what is shown, if it is on this machine: the Perfetto trace, or the file of the episode."""
        if (loaded := self._loaded) is None or loaded.episode.episode_id != self._key:
            return None
        return loaded.trace if self._views.tab == TRACE else loaded.path

    def _current_context(self) -> tuple[object, ...]:
        """Return what decides whether an episode that could not be loaded may be loaded now."""
        store, entry = self._session.store, self._episodes.get(self._key)
        node = store.nodes.get(entry.node) if entry and not isinstance(entry, UnreadableFile) else None
        return (store.link.status, *((node.boot, node.lost) if node else ()))

    def _open(self, key: str) -> None:
        # the previous episode stays until the new one is loaded, which avoids flicker
        self._key, self._load_context = key, None
        self._show_heading("loading …")
        start_worker(self, partial(self._load, key), group="load", exclusive=True)

    async def _load(self, key: str) -> None:
        load_context = self._current_context()
        clear_timer = self.set_timer(CLEAR_AFTER_S, self._clear_other)
        try:
            loaded = await load_episode(self._session, self._episodes.get(key), key)
        except EpisodeLoadError as exc:
            if self.is_attached:  # else the screen was closed meanwhile
                self._load_context = load_context
                self._clear(str(exc))
                self._show_heading("✗ cannot be shown")
            return
        finally:
            clear_timer.stop()
        if self.is_attached:
            is_shown = self._loaded is not None and self._loaded.episode.episode_id == key
            self._load_context = load_context
            self._loaded, self._drawn_version = loaded, loaded.episode.version
            self._show(loaded, is_new=not is_shown)

    def _clear_other(self) -> None:
        """Empty the panes, unless the episode was loaded while the call of the timer waited."""
        if self._loaded is None or self._loaded.episode.episode_id != self._key:
            self._clear()

    def _clear(self, failure: str = "") -> None:
        """Empty the panes; show ``failure``, an untrusted text, if it is not empty."""
        self._loaded = None
        self._steps.show_steps(None, follow=False)
        self._views.show(self._key, None, failure)
        self._show_step()

    def _show(self, loaded: LoadedEpisode, *, is_new: bool = False) -> None:
        """Show an episode; select the first step of a newly opened episode, but the last step of a running one."""
        running = loaded.episode.running
        self._show_heading("file not available here" if loaded.missing_reason else "")
        self._steps.show_steps(loaded.episode, follow=running if is_new or not running else None)
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
        if self._loaded is not None and self.is_attached and notes != self._loaded.episode.notes:
            self._loaded.episode.notes = notes
            self._show(self._loaded)

    def _show_heading(self, state: str) -> None:
        self._state, entry, path, store = state, self._entry, self._path, self._session.store
        tags = store.tags.get(self._key, ())
        shares = shares_line(self._loaded.episode.steps) if self._loaded else []
        index = self._episodes.place_of(self._key)
        position = "" if index is None else f"{index + 1:,} of {len(self._episodes.shown):,}"
        self._heading.show(
            lambda width: episode_heading(entry, state, position, width, path, tags, shares, store.currency)
        )
        self.set_class(has_last_line(entry, shares), "-four-lines")


class EpisodeFile:
    """The file of an episode, which is loaded when it is needed; toasts show the result or the reason of a failure.

    ``entry`` is its row in the list of episodes, if it has one, ``shown`` the episode if it is loaded already.
    """

    def __init__(
        self, app: App[Any], session: Session, entry: ListEntry | None, key: str, shown: LoadedEpisode | None = None
    ) -> None:
        self._app, self._session, self._entry, self._key, self._shown = app, session, entry, key, shown

    def export(self) -> None:
        start_worker(self._app, self._export, group="export")

    def copy_path(self) -> None:
        """Copy the path of the file, or the id of the episode where the file is not on this machine."""
        start_worker(self._app, self._copy_path, group="outside")

    def open_outside(self, program: Program) -> None:
        """Show a formatted, sanitized copy of the file in a program, in the background."""
        start_worker(self._app, partial(self._open_outside, program), group="outside")

    async def _load(self) -> LoadedEpisode:
        shown = self._shown
        if shown is not None and shown.data is not None and shown.episode.episode_id == self._key:
            return shown
        try:
            return await load_file(self._session, self._entry, self._key)
        except EpisodeLoadError as exc:
            is_running = shown is not None and shown.episode.running
            raise EpisodeLoadError(STILL_RUNNING if is_running else str(exc)) from exc

    async def _export(self) -> None:
        try:
            file = await self._load()
            path = await asyncio.to_thread(export_episode, file.episode.episode_id, file.data or b"", Path.cwd())
        except (ExportError, EpisodeLoadError, OSError) as exc:
            toast(self._app, f"not exported: {exc}", failed=True)
        else:
            toast(self._app, f"exported to {path}")

    async def _copy_path(self) -> None:
        path = None
        with suppress(EpisodeLoadError, OSError):
            path = (await self._load()).path
        copy_to_clipboard(self._app, str(path or self._key), "path" if path else "id", raw=False)

    async def _open_outside(self, program: Program) -> None:
        try:
            command = program_command(program, os.environ)
            file = await self._load()
            name = file.episode.episode_id if is_ulid(file.episode.episode_id) else "episode"
            text = await asyncio.to_thread(pretty_json, file.data or b"")
            is_changed = await show_in_program(self._app, command, f"{name}.json", text)
        except (ProgramError, EpisodeLoadError, OSError) as exc:
            toast(self._app, f"not opened: {exc}", failed=True)
        else:
            if is_changed:
                toast(self._app, "your changes were made to a copy and are discarded")


class CompareScreen(ConsoleScreen[None]):
    """Two episodes, A and B, aligned by step; starts at the first step that differs."""

    SCOPE = "compare"
    AUTO_FOCUS = "#aligned"

    def __init__(self, session: Session, keys: tuple[str, str], ui_state: UiState) -> None:
        super().__init__()
        self._session, self._keys, self._ui_state = session, keys, ui_state
        self._loaded: list[LoadedEpisode] = []
        self._aligned: AlignedEpisodes | None = None
        self._failure = ""
        self._side = 0
        self._table = SideTable(ALIGNED_COLUMNS, id="aligned")
        self._texts = WrappedText(lambda width: aligned_step_lines(self._selected, width), id="texts")
        self._table.handles_enter = self._texts.handles_enter = False

    def compose(self) -> ComposeResult:
        yield StaticLines(self._heading_lines, id="heading")
        with Split(COMPARE_SHARES, self._ui_state.sizes, id="comparison"):
            yield self._table
            yield self._texts
        yield KeyBar(self.SCOPE, self._session)

    def on_mount(self) -> None:
        start_worker(self, self._load, group="load", exclusive=True)

    def selected_env(self) -> str:
        return self._loaded[0].episode.env if self._loaded else ""

    def action_back(self) -> None:
        self.leave()

    def action_open(self) -> None:
        """Open the episode of the marked side; the next and the previous ones are the two."""
        self.post_message(self.OpenEpisode(self._keys[self._side], exact_terms(id=self._keys)))

    @on(SideTable.SideChosen)
    def _side_chosen(self, event: SideTable.SideChosen) -> None:
        self._side = max(event.by, 0)
        self.show_lines("heading")

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
        episodes = [each.episode for each in self._loaded]
        return alignment_heading(episodes, self._aligned, width, self._side, failure=self._failure)

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
        screen.toast("the mark is taken back")
    else:
        session.store.marked_episode = key
        compare = keymap_of(screen.app).key("episodes.compare")
        screen.toast(f"{key} is marked; press {compare} on another episode to compare the two")
