"""One episode: its steps, and of the selected one what was said; where the time went; its file."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.timer import Timer

from agentgym_tui.commands.availability import hidden_commands
from agentgym_tui.commands.keymap import bindings
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import FixedLines, Line
from agentgym_tui.presenters.episode_rows import episode_heading, error_text, hostile_fields
from agentgym_tui.presenters.step_rows import STEP_COLUMNS, StepRows
from agentgym_tui.safe_text import SafeText, sanitize_message, trusted
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, ResultScreen
from agentgym_tui.screens.episode.tabs import EpisodeTabs
from agentgym_tui.services.clipboard import clipboard_text, copy_summary
from agentgym_tui.services.export import ExportError, export_episode
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.episode_loader import EpisodeLoadError, LoadedEpisode, load_episode
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.episode_list import EpisodeList, ListEntry, UnreadableFile
from agentgym_tui.state.models import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.pane_layouts import EPISODE_NARROW, EPISODE_WIDE, PaneLayout
from agentgym_tui.widgets.pane_sizes import PaneSizes, SplitView
from agentgym_tui.widgets.static_lines import StatusText
from agentgym_tui.widgets.table import Table

STALE_S: Final = 0.2
"""Seconds after which an episode is taken away while the next one is still on its way."""


class EpisodeScreen(ResultScreen[str]):
    """Shows an episode; its result is the key of the one that was shown last.

    Args:
        session: what is looked at.
        key: the episode, by its key in ``episodes``.
        episodes: the list that next and previous go through; by default what runs and ran since the start.
        kept: the sizes of its parts, as they were left.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("episode")]
    REQUIRED_WIDGETS = "#heading, #steps, #views"
    CSS_PATH = "../../styles/episodes.tcss"
    AUTO_FOCUS = "#steps"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

    class EventsRequested(Message):
        """All that the bus keeps of an episode is to be shown."""

        def __init__(self, episode_id: str) -> None:
            super().__init__()
            self.episode_id = episode_id

    def __init__(
        self, session: Session, key: str, episodes: EpisodeList | None = None, *, kept: UiState | None = None
    ) -> None:
        super().__init__()
        self._sizes = PaneSizes(self, kept or UiState(), EPISODE_WIDE, EPISODE_NARROW)
        self._session = session
        self._key = key
        self._list = episodes or EpisodeList()
        self._list.update_live(session.store.episodes.values())
        self._loaded: LoadedEpisode | None = None
        self._failure = ""
        self._state: SafeText = trusted("")
        self._seen: tuple[object, ...] = ()
        self._stale: Timer | None = None
        self._circumstances: tuple[object, ...] | None = None

    def compose(self) -> ComposeResult:
        """Heading, steps, views."""
        yield StatusText(id="heading")
        with SplitView(id="episode"):
            yield Table(STEP_COLUMNS, id="steps")
            yield EpisodeTabs(id="views")
        yield KeyBar("episode", without=hidden_commands(self._session))

    def on_mount(self) -> None:
        """Start with the given one."""
        if self.is_ready:
            self._open(self._key)

    def on_resize(self) -> None:
        """The parts take their share of another size."""
        self._fit()

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        if not self.is_ready:
            return
        if self._list.update_live(store.episodes.values()):
            self._head(self._state)  # its place in the list may be another
        if (loaded := self._loaded) is None or loaded.missing_reason:
            self._try_again()
            return
        if loaded.data is not None:
            return
        if not loaded.episode.running:
            self._open(self._key)
        elif (seen := _signature(loaded.episode)) != self._seen:
            self._seen = seen
            self._show(loaded)

    def hostile_text(self) -> str | None:
        """What is behind the shown text, else behind the heading, where cleaning changed it."""
        return self._views.hostile_text() or hostile_fields(self._entry)

    def zoom(self) -> None:
        """The focused part alone, or all of them again."""
        if self.has_class("-alone"):
            self.remove_class("-alone", "-steps", "-views")
        else:
            self.add_class("-alone", "-steps" if self._steps.has_focus else "-views")
        self._fit()

    def resize(self, direction: str) -> bool:
        """Change the size of the focused part; False where that cannot be."""
        focused = self.focused.id if self.focused is not None else None
        if self.has_class("-alone") or not self._sizes.resize(self._layout, focused, direction):
            return False
        self._fit()
        return True

    def action_back(self) -> None:
        """To where one came from."""
        self.leave(self._key)

    def action_next_episode(self) -> None:
        """One further down the list."""
        self._go(1)

    def action_previous_episode(self) -> None:
        """One further up the list."""
        self._go(-1)

    def action_tab(self, tab: str) -> None:
        """Show another view."""
        self._views.select_tab(tab)

    def action_copy(self) -> None:
        """Copy what is shown, with control characters made visible."""
        self._copy(raw=False)

    def action_copy_raw(self) -> None:
        """Copy what is shown, as it came."""
        self._copy(raw=True)

    def action_export(self) -> None:
        """Write the file into the folder where the console was started."""
        loaded = self._loaded
        if loaded is not None and loaded.data is not None:
            start_worker(self, partial(self._export, loaded.episode.episode_id, loaded.data), group="export")
        else:
            reason = loaded.missing_reason if loaded else self._failure
            self._tell(f"not exported: {reason or 'its file is written when it ends'}", failed=True)

    def action_events(self) -> None:
        """What was said of it on the bus."""
        self.post_message(self.EventsRequested(self._key))

    @on(SplitView.Dragged)
    def _dragged(self, event: SplitView.Dragged) -> None:
        self._sizes.drag(self._layout, event.share)
        self._fit()

    @on(LineList.CursorMoved, "#steps")
    def _moved(self) -> None:
        if self.is_ready:
            self._show_step()

    @on(LineList.Selected, "#steps")
    def _chosen(self) -> None:
        if self.is_ready:
            self.action_tab("transcript")

    @property
    def _views(self) -> EpisodeTabs:
        return self.query_one(EpisodeTabs)

    @property
    def _entry(self) -> ListEntry | None:
        """What is known of the episode whose turn it is, also while it is on its way."""
        known = self._loaded.episode if self._loaded else None
        return known if known and known.episode_id == self._key else self._list.get(self._key)

    @property
    def _steps(self) -> Table:
        return self.query_one("#steps", Table)

    @property
    def _layout(self) -> PaneLayout:
        return EPISODE_WIDE if self.has_class("-wide") else EPISODE_NARROW

    def _fit(self) -> None:
        self._sizes.apply(None if self.has_class("-alone") else self._layout)

    def _go(self, by: int) -> None:
        if (key := self._list.neighbor(self._key, by)) is None:
            self._tell("this is the last one" if by > 0 else "this is the first one")
        else:
            self._open(key)

    def _try_again(self) -> None:
        """Load once more what could not be, when its node may have come back."""
        if self._circumstances not in (None, now := self._now()):
            self._circumstances = now
            start_worker(self, partial(self._load, self._key), group="load", exclusive=True)

    def _now(self) -> tuple[object, ...]:
        store, entry = self._session.store, self._list.get(self._key)
        node = store.nodes.get(entry.node) if entry and not isinstance(entry, UnreadableFile) else None
        return (store.link.status, *((node.boot, node.lost) if node else ()))

    def _open(self, key: str) -> None:
        """Begin to load one; what was shown stays for a moment, so that nothing flickers."""
        self._key, self._circumstances = key, None
        self._head(trusted("loading …"))
        self._stale = self._stale or self.set_timer(STALE_S, self._clear)
        start_worker(self, partial(self._load, key), group="load", exclusive=True)

    async def _load(self, key: str) -> None:
        loaded: LoadedEpisode | EpisodeLoadError
        circumstances = self._now()
        try:
            loaded = await load_episode(self._session, self._list.get(key), key)
        except EpisodeLoadError as exc:
            loaded = exc
        if not self.is_ready:  # left meanwhile
            return
        self._circumstances = circumstances
        if isinstance(loaded, EpisodeLoadError):
            self._clear(str(loaded))
            self._head(trusted("✗ cannot be shown"))
        else:
            is_known = self._loaded is not None and self._loaded.episode.episode_id == key
            self._settle()
            self._loaded, self._failure, self._seen = loaded, "", _signature(loaded.episode)
            self._show(loaded, anew=not is_known)

    async def _export(self, episode_id: str, data: bytes) -> None:
        try:
            path = await asyncio.to_thread(export_episode, episode_id, data, Path.cwd())
        except (ExportError, OSError) as exc:
            self._tell(f"not exported: {exc}", failed=True)
        else:
            self._tell(f"exported to {path}")

    def _settle(self) -> None:
        if self._stale is not None:
            self._stale.stop()
            self._stale = None

    def _clear(self, failure: str = "") -> None:
        """Show nothing, or why there is nothing; hostile text."""
        self._settle()
        if not self.is_ready:
            return
        self._loaded, self._failure = None, failure
        self._steps.show(FixedLines(()), follow=False)
        self._views.show(self._key, None, failure)
        self._show_step()

    def _show(self, loaded: LoadedEpisode, *, anew: bool = False) -> None:
        """Show it; a new one from its first step, or, while it runs, from its last."""
        running = loaded.episode.running
        self._head(trusted("its file is not here" if loaded.missing_reason else ""))
        self._steps.show(StepRows(loaded.episode), follow=running if anew or not running else None)
        if anew and not running:
            self._steps.move_to(0)
        self._views.show(self._key, loaded)
        self._show_step()

    def _show_step(self) -> None:
        """The transcript of the step of the cursor; of a gap that of the first missing one."""
        key = self._steps.key.removeprefix("gap")
        self._views.show_step(int(key) if key.isdecimal() else 0, follow=self._steps.follow)

    def _copy(self, *, raw: bool) -> None:
        copy = clipboard_text(self._views.text(raw=raw), raw=raw)
        if copy.text:
            self.app.copy_to_clipboard(copy.text)
            self._tell(copy_summary(copy, os.environ, raw=raw, whole="export has all of it"))
        else:
            self._tell("there is nothing to copy", failed=True)

    def _head(self, state: SafeText) -> None:
        self._state, entry = state, self._entry
        index = self._list.index(self._key)
        place = trusted("" if index is None else f"{index + 1:,} of {len(self._list.shown):,}")

        def make(width: int) -> list[Line]:
            return episode_heading(entry, state, place, width)

        self.query_one("#heading", StatusText).show(make)
        self.set_class(bool(error_text(entry)), "-failed")

    def _tell(self, text: str, *, failed: bool = False) -> None:
        toast(self.app, sanitize_message(text), failed=failed)


def _signature(episode: Episode) -> tuple[object, ...]:
    """What changes when something of a running episode is to be drawn again."""
    counts = (len(episode.steps), len(episode.spans), episode.n_missing)
    return (*counts, episode.streaming, episode.paused, episode.node_lost, episode.reward, episode.started_at)
