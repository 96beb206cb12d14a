"""The events screen, which shows the bus messages of all publishers."""

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
from agentgym_tui.screens.events.live_updates import FILTER_KEY, EventsScreenBase, default_query
from agentgym_tui.services.clipboard import copy_to_clipboard
from agentgym_tui.services.toast import toast
from agentgym_tui.state.event_query import ALL_SUBJECTS, EventQuery, parse_patterns, parse_start, valid_patterns
from agentgym_tui.state.normalize import ulid_time
from agentgym_tui.widgets.inputs import MAX_QUERY_CHARS, EntryInput, FilterInput
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText

MARGIN: Final = timedelta(seconds=5)
SUBJECT_HINT: Final = "subjects, such as: agentgym.live.> orders.*.new"
GO_TO_HINT: Final = "a sequence, 14:30, 10m, 2026-05-01 14:30, all"


class EventsScreen(EventsScreenBase):
    """A screen that shows the messages of a session's bus.

    Args:
        session: a session with a bus.
        ui_state: saved filter words, subject filter, sort order and pane sizes; updated in place.
        now: returns the time of a monotonic clock in seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("events")]
    CSS_PATH = "../../styles/events.tcss"
    AUTO_FOCUS = "#messages"
    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS

    def compose(self) -> ComposeResult:
        """Yield heading, inputs, panes and key bar."""
        yield StatusText(self.heading_lines, id="summary")
        words = self.ui_state.filters.get(FILTER_KEY, "")
        self.set_class(bool(words), "-filtering")
        yield FilterInput(words, placeholder="words the message must contain", id="filter", max_length=MAX_QUERY_CHARS)
        yield EntryInput(id="entry", max_length=MAX_QUERY_CHARS)
        yield self.panes
        yield StatusText(self.nothing_lines, id="nothing")
        yield KeyBar("events", without=hidden_commands(self.session))

    def show_episode(self, episode_id: str) -> None:
        """Show all messages of an episode."""
        self.remove_class("-filtering")
        for field in self.query(FilterInput):
            field.value = ""
        started_at = ulid_time(episode_id)
        self.set_query(EventQuery(start="all" if started_at is None else started_at - MARGIN, episode=episode_id))

    def unsafe_text(self) -> str | None:
        """Return the raw text of the selected message if sanitizing changes it, else None."""
        return self.panes.unsafe_text()

    def action_pause(self) -> None:
        """Pause or resume reading; live reading resumes at the newest message, reading of a history where it paused."""
        self.reader.paused = not self.reader.paused
        if not (self.reader.paused or self.reader.query.is_history):
            self.panes.messages.follow = True
        self.reader.update()
        self.show_texts()

    def action_filter(self) -> None:
        """Open the filter."""
        self.add_class("-filtering")
        self.set_focus(self.query_one(FilterInput))

    def action_subject(self) -> None:
        """Prompt for the subjects to show."""
        self._open_prompt("subject", SUBJECT_HINT)

    def action_go_to(self) -> None:
        """Prompt for a place in the history."""
        self._open_prompt("go_to", GO_TO_HINT)

    def action_episode(self) -> None:
        """Show all messages of the selected message's episode."""
        if episode_id := self.panes.episode_id:
            self.show_episode(episode_id)
        else:
            self._toast(trusted("this message names no episode"))

    def action_clear(self) -> None:
        """Clear the filter; if there is no filter, discard the messages and show all subjects live."""
        query = self.reader.query
        if self.event_log.words:
            self.query_one(FilterInput).action_clear()
        elif query.is_history or query.episode or query.patterns != ALL_SUBJECTS:
            self.set_query(default_query())

    def action_tree(self) -> None:
        """Focus the subject tree, or go back to the messages."""
        to_tree = not self.panes.subjects.has_focus
        self.set_class(to_tree, "-tree")
        self.set_focus(self.panes.subjects if to_tree else self.panes.messages)

    def action_fold(self) -> None:
        """Fold or unfold the selected branch of the subject tree."""
        if (branch := self.panes.branch) is not None and branch.n_children:
            self.event_log.subjects.toggle(branch.path)
            self.panes.draw_subjects()

    def action_next_view(self) -> None:
        """Show the selected message in the next representation."""
        self.panes.payload.next_view()

    def action_copy(self) -> None:
        """Copy the shown text; visible symbols replace control characters."""
        copy_to_clipboard(self.app, self.panes.payload.text(), raw=False)

    def action_copy_raw(self) -> None:
        """Copy the raw text, without sanitizing it."""
        copy_to_clipboard(self.app, self.panes.payload.text(), raw=True)

    @on(LineList.Selected, "#messages")
    def _message_opened(self) -> None:
        if self.is_ready:
            self.set_focus(self.panes.payload.query_one(LineList))

    @on(LineList.Selected, "#subjects")
    def _branch_chosen(self) -> None:
        if self.is_ready and (branch := self.panes.branch) is not None:
            self._query_subjects(valid_patterns(branch.patterns), branch.path)

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self.ui_state.set_filter(FILTER_KEY, event.value)
        self.event_log.search(event.value)
        self.show_all()

    @on(FilterInput.Closed)
    def _filter_closed(self, event: FilterInput.Closed) -> None:
        self.set_class(not event.cleared, "-filtering")

    @on(EntryInput.Closed)
    def _prompt_closed(self, event: EntryInput.Closed) -> None:
        self.remove_class("-prompting")
        if event.text is None:
            return
        if self._prompt_kind == "subject":
            self._query_subjects(parse_patterns(event.text), event.text)
        elif (start := parse_start(event.text, now := datetime.now(UTC))) is None:
            self._reject(event.text, f"is not a sequence or a time; examples: {GO_TO_HINT}")
        elif isinstance(start, datetime) and start > now:
            self._reject(event.text, "is in the future")
        else:
            self.set_query(replace(self.reader.query, start=start, is_history=start != "now"))

    def _query_subjects(self, patterns: tuple[str, ...] | None, text: str) -> None:
        query = self.reader.query
        if patterns is None:
            self._reject(text, f"is not a valid subject pattern; {SUBJECT_HINT}")
        elif query.is_history or query.episode:
            self.set_query(replace(query, patterns=patterns))
        else:
            self.set_query(default_query(patterns))

    def _open_prompt(self, kind: str, placeholder: str) -> None:
        self._prompt_kind = kind
        self.add_class("-prompting")
        self.query_one(EntryInput).prompt(placeholder)

    def _reject(self, text: str, reason: str) -> None:
        self._toast(join([trusted('"'), sanitize_line(text, 60), trusted(f'" {reason}')]), failed=True)

    def _toast(self, text: SafeText, *, failed: bool = False) -> None:
        toast(self.app, text, failed=failed)
