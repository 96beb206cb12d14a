"""Reading an episode: the search in its views, jumps between its steps, and folded kinds of texts."""

from __future__ import annotations

from collections.abc import Callable

from textual import on

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.step_rows import STEP_COLUMNS
from agentgym_tui.presenters.whole_episode import JUMPS, Jump, step_to_jump
from agentgym_tui.screens.base import ResultScreen
from agentgym_tui.screens.episode.tabs import WHOLE, EpisodeTabs
from agentgym_tui.sessions.session import LoadedEpisode
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.find_bar import FindBar
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.payload_view import TextView
from agentgym_tui.widgets.table import Table


class ReadingScreen(ResultScreen[str]):
    """A screen with the steps of an episode and its views."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: LoadedEpisode | None = None
        self._steps, self._views = Table(STEP_COLUMNS, id="steps"), EpisodeTabs(id="views")
        self._find = FindBar(lambda: self._views.view, self._views.rows_with, id="find")
        self._restore_keys: Callable[[], None] | None = None

    def action_find(self) -> None:
        """Search the view; a transcript of one step becomes that of the whole episode."""
        self._views.start_search()
        if self._restore_keys is None:
            self._restore_keys = add_bindings(self, bindings("match"))
        self._find.open()

    def action_match(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line with the words."""
        self._find.go(by)

    @on(TextView.TextShown)
    def _text_shown(self) -> None:
        if self._find.is_open:
            self._find.search_again()

    @on(EpisodeTabs.TabShown)
    def _tab_shown(self) -> None:
        """Show the keys that jump between steps where all steps are shown."""
        self.query_one(KeyBar).put_first("whole." if self._views.tab == WHOLE else "")

    @on(FindBar.Ended)
    def _find_ended(self) -> None:
        if self._restore_keys is not None:
            self._restore_keys()
            self._restore_keys = None

    def action_fold(self, kinds: str) -> None:
        """Fold, hide or show kinds of texts in the whole episode."""
        if not self._views.fold(kinds):
            self.toast(f"no texts of the kind: {kinds}")

    def action_jump(self, what: Jump, by: int) -> None:
        """Select the next (1) or previous (-1) step of a kind."""
        if self._loaded is None:
            return
        shown = self._views.step_in_view
        at = self._step if shown is None else shown
        if (step := step_to_jump(self._loaded.episode, what, at, by)) is None:
            self.toast(f"no {'later' if by > 0 else 'earlier'} {JUMPS[what]}")
        else:
            self._steps.select(str(step))
            self._show_step()

    def _show_step(self) -> None:
        self._views.show_step(self._step, follow=self._steps.follow)

    @property
    def _step(self) -> int:
        """Index of the selected step."""
        key = self._steps.key.removeprefix("gap")
        return int(key) if key.isdecimal() else 0
