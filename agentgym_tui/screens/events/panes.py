"""The panes of the events screen: subject tree, messages, and payload of the selected message."""

from __future__ import annotations

from typing import Final

from textual import on
from textual.app import ComposeResult

from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.event_rows import (
    DEFAULT_SORTING,
    EVENT_COLUMNS,
    SUBJECT_COLUMNS,
    EventRows,
    SubjectRows,
    entry_info,
)
from agentgym_tui.presenters.payload import VIEWS, unsafe_text
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.log_entries import EventMessage, LogEntry
from agentgym_tui.state.subject_tree import SubjectRow
from agentgym_tui.widgets.payload_view import PayloadView
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.table import SortableTable, Table

TREE_KEY: Final = "subjects"
"""Id of the tree; also the key of its order in the UI state."""

_TREE_WIDTH: Final = 32
"""Columns of the tree beside the other panes; more on a wide screen."""


SHARES: Final = (
    Share(TREE_KEY, "events.wide.tree", "width", 15, 60, "-wide"),
    Share(TREE_KEY, "events.narrow.tree", "width", 20, 60, "-narrow"),
    Share("messages", "events.wide.messages", "height", 20, 80, "-wide"),
    Share("messages", "events.narrow.messages", "height", 25, 75, "-narrow"),
)


class EventPanes(Split):
    """The panes for subjects, messages and payload.

    Args:
        log: the messages.
        ui_state: saved sort order of the subjects and sizes of the panes; updated in place.

    Attributes:
        messages: the list of messages.
        subjects: the subject tree, which had ``n_subjects`` subjects when it was last drawn.
        payload: the payload of the selected message.
    """

    def __init__(self, log: EventLog, ui_state: UiState, *, id: str) -> None:
        super().__init__(SHARES, ui_state.sizes, id=id)
        self._event_log, self._ui_state = log, ui_state
        self._rows = EventRows(log)
        self._subjects = SubjectRows()
        self.n_subjects = 0
        self.messages = Table(EVENT_COLUMNS, self._rows, id="messages")
        self.subjects = SortableTable(
            SUBJECT_COLUMNS, sorting=ui_state.sorting.get(TREE_KEY), default_sorting=DEFAULT_SORTING, id=TREE_KEY
        )
        self.payload = PayloadView(VIEWS, entry_info, command="events.view", id="message")

    def compose(self) -> ComposeResult:
        """Yield the panes."""
        yield self.subjects
        with Split(SHARES, self._ui_state.sizes, id="right"):
            yield self.messages
            yield self.payload

    @property
    def entry(self) -> LogEntry | None:
        """The selected message; None if there is none."""
        return self._rows.entry(self.messages.cursor)

    @property
    def episode_id(self) -> str:
        """Id of the selected message's episode, untrusted text; "" if the message belongs to no episode."""
        return self._rows.episode_id(self.messages.cursor)

    @property
    def branch(self) -> SubjectRow | None:
        """The selected branch of the subject tree; None if there is none."""
        return self._subjects.branch(self.subjects.cursor)

    @property
    def n_rows_below(self) -> int:
        """Number of messages below the selected message."""
        return max(len(self._event_log.shown) - 1 - self.messages.cursor, 0)

    def draw_messages(self) -> None:
        """Redraw the messages after the log changed."""
        self.messages.refresh_lines()
        self.payload.show(self.entry)

    def select_first_message(self) -> bool:
        """Select the first message below any notices; return whether there is a message."""
        first = next((row for row, entry in enumerate(self._event_log.shown) if isinstance(entry, EventMessage)), None)
        if first is not None:
            self.messages.move_to(first)
        return first is not None

    def draw_subjects(self) -> None:
        """Redraw the subject tree after its subjects or counts changed."""
        self.n_subjects = len(self._event_log.subjects)
        self._subjects = SubjectRows.from_tree(self._event_log.subjects, self.subjects.sorting)
        self.subjects.show(self._subjects)

    def fit(self) -> None:
        """Fit the panes; on a wide screen, the tree is by default a fifth of the screen."""
        is_wide = self.screen.has_class("-wide")
        self.default_sizes = {TREE_KEY: max(_TREE_WIDTH, self.size.width // 5)} if is_wide else {}
        super().fit()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        self._ui_state.set_sorting(TREE_KEY, event.sorting)
        self.draw_subjects()

    def unsafe_text(self) -> str | None:
        """Return the raw text of the selected message if sanitizing changes it, else None."""
        return unsafe_text(self.entry)
