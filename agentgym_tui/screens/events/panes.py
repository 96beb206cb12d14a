"""The parts of the events screen: the tree of subjects, the messages, and all of the selected one."""

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
from agentgym_tui.state.event_log import EventLog, EventMessage, LogEntry
from agentgym_tui.state.subject_tree import SubjectRow
from agentgym_tui.widgets.cached_widgets import CachedContainer
from agentgym_tui.widgets.pane_layouts import EVENTS_NARROW, EVENTS_WIDE, PaneLayout
from agentgym_tui.widgets.pane_sizes import PaneSizes, SplitView
from agentgym_tui.widgets.payload_view import PayloadView
from agentgym_tui.widgets.table import SortableTable, Table

SUBJECTS: Final = "subjects"
"""The tree, also where its order is kept."""

_TREE: Final = 32
"""Columns of the tree beside the others; on a wide screen it has more."""


class EventPanes(SplitView):
    """Subjects, messages, payload.

    Args:
        log: what is shown.
        kept: the order of the subjects, and the sizes of the parts, as they were left.

    Attributes:
        messages: the list of them.
        subjects: the tree; it was drawn with ``n_subjects``.
        payload: all of the selected message.
    """

    def __init__(self, log: EventLog, kept: UiState, *, id: str) -> None:
        super().__init__(id=id)
        self._log, self._kept = log, kept
        self._sizes = PaneSizes(self, kept, EVENTS_WIDE, EVENTS_NARROW)
        self._rows = EventRows(log)
        self._subjects = SubjectRows()
        self.n_subjects = 0
        self.messages = Table(EVENT_COLUMNS, self._rows, id="messages")
        self.subjects = SortableTable(SUBJECT_COLUMNS, sorting=kept.sorting.get(SUBJECTS), default_sorting=DEFAULT_SORTING, id=SUBJECTS)
        self.payload = PayloadView(VIEWS, entry_info, command="events.view", id="message")

    def compose(self) -> ComposeResult:
        """The parts."""
        yield self.subjects
        with CachedContainer(id="right"):
            yield self.messages
            yield self.payload

    @property
    def entry(self) -> LogEntry | None:
        """The selected message."""
        return self._rows.entry(self.messages.cursor)

    @property
    def episode_id(self) -> str:
        """The episode that the selected message is about, hostile text; "" for none."""
        return self._rows.episode_id(self.messages.cursor)

    @property
    def branch(self) -> SubjectRow | None:
        """The selected branch of the tree."""
        return self._subjects.branch(self.subjects.cursor)

    @property
    def n_below(self) -> int:
        """Messages below the selected one."""
        return max(len(self._log.shown) - 1 - self.messages.cursor, 0)

    def draw_messages(self) -> None:
        """The log changed."""
        self.messages.refresh_lines()
        self.payload.show(self.entry)

    def land(self) -> bool:
        """Go to the first message, which remarks may come before; whether there is one."""
        first = next((row for row, entry in enumerate(self._log.shown) if isinstance(entry, EventMessage)), None)
        if first is not None:
            self.messages.move_to(first)
        return first is not None

    def draw_subjects(self) -> None:
        """The tree, or its numbers, changed."""
        self.n_subjects = len(self._log.subjects)
        self._subjects = SubjectRows.from_tree(self._log.subjects, self.subjects.sorting)
        self.subjects.show(self._subjects)

    def resize(self, direction: str) -> bool:
        """Change the size of the focused part; False where that cannot be."""
        focused = self.screen.focused
        done = not self._alone and self._sizes.resize(self._layout, focused.id if focused is not None else None, direction)
        self.fit()
        return done

    def fit(self) -> None:
        """The parts take their share of another size, or all of it."""
        if self._alone:
            self._sizes.apply(None)
        elif self._layout is EVENTS_WIDE:
            self._sizes.apply(EVENTS_WIDE, {SUBJECTS: max(_TREE, self.size.width // 5)})
        else:
            self._sizes.apply(EVENTS_NARROW)

    def on_resize(self) -> None:
        """Of another size, too."""
        self.fit()

    @on(SplitView.Dragged)
    def _dragged(self, event: SplitView.Dragged) -> None:
        self._sizes.drag(self._layout, event.share)
        self.fit()

    @on(SortableTable.Sorted)
    def _sorted(self, event: SortableTable.Sorted) -> None:
        self._kept.set_sorting(SUBJECTS, event.sorting)
        self.draw_subjects()

    @property
    def _alone(self) -> bool:
        return self.screen.has_class("-alone")

    @property
    def _layout(self) -> PaneLayout:
        return EVENTS_WIDE if self.screen.has_class("-wide") else EVENTS_NARROW

    def part(self) -> str:
        """The one that has the focus."""
        if self.subjects.has_focus:
            return "-subjects"
        return "-messages" if self.messages.has_focus else "-message"

    def hostile_text(self) -> str | None:
        """What is behind the selected message where cleaning changes it."""
        return unsafe_text(self.entry)
