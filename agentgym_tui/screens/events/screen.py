"""The events screen: all that is said on a bus, whoever says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from agentgym_tui.commands.availability import hidden_commands
from agentgym_tui.commands.keymap import bindings
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS
from agentgym_tui.screens.events.live_updates import WORDS, LiveEventsScreen, usual
from agentgym_tui.services.clipboard import copy_to_clipboard
from agentgym_tui.services.toast import toast
from agentgym_tui.state.event_query import ALL_SUBJECTS, EventQuery, parse_patterns, parse_start, valid_patterns
from agentgym_tui.state.timestamps import ulid_time
from agentgym_tui.widgets.inputs import MAX_QUERY_CHARS, EntryInput, FilterInput
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText

MARGIN: Final = timedelta(seconds=5)
ASK_SUBJECT: Final = "subjects, such as: agentgym.live.> orders.*.new"
GO_TO: Final = "a sequence, 14:30, 10m, 2026-05-01 14:30, all"


class EventsScreen(LiveEventsScreen):
    """Shows what a session's bus says.

    Args:
        session: what is looked at; it has a bus.
        kept: words, subjects, order and sizes as they were left.
        now: a monotonic clock, seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("events")]
    CSS_PATH = "../../styles/events.tcss"
    AUTO_FOCUS = "#messages"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

    def compose(self) -> ComposeResult:
        """Heading, what one types, the parts, keys."""
        yield StatusText(self.heading_lines, id="summary")
        words = self.kept.filters.get(WORDS, "")
        self.set_class(bool(words), "-filtering")
        yield FilterInput(words, placeholder="words that a message must hold", id="filter", max_length=MAX_QUERY_CHARS)
        yield EntryInput(id="entry", max_length=MAX_QUERY_CHARS)
        yield self.panes
        yield StatusText(self.nothing_lines, id="nothing")
        yield KeyBar("events", without=hidden_commands(self.session))

    def show_episode(self, episode_id: str) -> None:
        """Show all messages about an episode."""
        self.remove_class("-filtering")
        for field in self.query(FilterInput):
            field.value = ""
        began = ulid_time(episode_id)
        self.look_at(EventQuery(start="all" if began is None else began - MARGIN, episode=episode_id))

    def zoom(self) -> None:
        """The focused part alone, or all of them again."""
        if self.has_class("-alone"):
            self.remove_class("-alone", "-subjects", "-messages", "-message")
        else:
            self.add_class("-alone", self.panes.part())
        self.panes.fit()

    def resize(self, direction: str) -> bool:
        """Change the size of the focused part; False where that cannot be."""
        return self.panes.resize(direction)

    def hostile_text(self) -> str | None:
        """What is behind the selected message where cleaning changes it."""
        return self.panes.hostile_text()

    def action_pause(self) -> None:
        """Read nothing, or go on: at the end, in a history where one is."""
        self.reader.paused = not self.reader.paused
        if not (self.reader.paused or self.reader.query.is_history):
            self.panes.messages.follow = True
        self.reader.update()
        self.show_around()

    def action_filter(self) -> None:
        """Ask for words."""
        self.add_class("-filtering")
        self.set_focus(self.query_one(FilterInput))

    def action_subject(self) -> None:
        """Ask for subjects."""
        self._ask("subject", ASK_SUBJECT)

    def action_go_to(self) -> None:
        """Ask for a place in the history."""
        self._ask("go_to", GO_TO)

    def action_episode(self) -> None:
        """All about the episode of the selected message."""
        if episode_id := self.panes.episode_id:
            self.show_episode(episode_id)
        else:
            self._tell(trusted("this message names no episode"))

    def action_clear(self) -> None:
        """Without the filter; where there is none, all subjects as they come, which forgets what was read."""
        view = self.reader.query
        if self.event_log.words:
            self.query_one(FilterInput).action_clear()
        elif view.is_history or view.episode or view.patterns != ALL_SUBJECTS:
            self.look_at(usual())

    def action_tree(self) -> None:
        """To the tree and back."""
        to_tree = not self.panes.subjects.has_focus
        self.set_class(to_tree, "-tree")
        self.set_focus(self.panes.subjects if to_tree else self.panes.messages)

    def action_fold(self) -> None:
        """Close or open a branch."""
        if (branch := self.panes.branch) is not None and branch.n_children:
            self.event_log.subjects.toggle(branch.path)
            self.panes.draw_subjects()

    def action_next_view(self) -> None:
        """The message in another way."""
        self.panes.payload.next_view()

    def action_copy(self) -> None:
        """Copy what is shown, with control characters made visible."""
        copy_to_clipboard(self.app, self.panes.payload.text(), raw=False)

    def action_copy_raw(self) -> None:
        """Copy what is shown, as it came."""
        copy_to_clipboard(self.app, self.panes.payload.text(), raw=True)

    @on(LineList.Selected, "#messages")
    def _opened(self) -> None:
        if self.is_ready:
            self.set_focus(self.panes.payload.query_one(LineList))

    @on(LineList.Selected, "#subjects")
    def _chosen(self) -> None:
        if self.is_ready and (branch := self.panes.branch) is not None:
            self._look_at_subjects(valid_patterns(branch.patterns), branch.path)

    @on(Input.Changed, "#filter")
    def _searched(self, event: Input.Changed) -> None:
        self.kept.set_filter(WORDS, event.value)
        self.event_log.search(event.value)
        self.show_all()

    @on(FilterInput.Closed)
    def _filtered(self, event: FilterInput.Closed) -> None:
        self.set_class(not event.cleared, "-filtering")

    @on(EntryInput.Closed)
    def _entered(self, event: EntryInput.Closed) -> None:
        self.remove_class("-asking")
        if event.text is None:
            return
        if self._asked == "subject":
            self._look_at_subjects(parse_patterns(event.text), event.text)
        elif (start := parse_start(event.text, now := datetime.now(UTC))) is None:
            self._refuse(event.text, f"is no sequence and no time; such as: {GO_TO}")
        elif isinstance(start, datetime) and start > now:
            self._refuse(event.text, "is yet to come")
        else:
            self.look_at(replace(self.reader.query, start=start, is_history=start != "now"))

    def _look_at_subjects(self, patterns: tuple[str, ...] | None, text: str) -> None:
        view = self.reader.query
        if patterns is None:
            self._refuse(text, f"cannot be asked for; {ASK_SUBJECT}")
        elif view.is_history or view.episode:
            self.look_at(replace(view, patterns=patterns))
        else:
            self.look_at(usual(patterns))

    def _ask(self, what: str, placeholder: str) -> None:
        self._asked = what
        self.add_class("-asking")
        self.query_one(EntryInput).prompt(placeholder)

    def _refuse(self, text: str, why: str) -> None:
        """Say what is wrong with what was asked for, hostile text; ``why`` is of our own words."""
        self._tell(join([trusted('"'), sanitize_line(text, 60), trusted(f'" {why}')]), failed=True)

    def _tell(self, text: SafeText, *, failed: bool = False) -> None:
        toast(self.app, text, failed=failed)
