"""The parts of the events screen: the tree of subjects, the messages, and all of the selected one."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container

from agentgym_tui.screens.payload import PayloadView
from agentgym_tui.store.event_log import EventLog
from agentgym_tui.store.message import LogEntry, Message
from agentgym_tui.store.subjects import Branch
from agentgym_tui.views.event_payload import VIEWS, hostile_text
from agentgym_tui.views.events import EVENT_COLUMNS, EventRows, about
from agentgym_tui.views.subject_rows import SUBJECT_COLUMNS, SubjectRows
from agentgym_tui.widgets.table import Table


class EventPanes(Container):
    """Subjects, messages, payload.

    Args:
        log: what is shown.

    Attributes:
        messages: the list of them.
        subjects: the tree; it was drawn with ``n_subjects``.
        payload: all of the selected message.
    """

    def __init__(self, log: EventLog, *, id: str) -> None:
        super().__init__(id=id)
        self._log = log
        self._rows = EventRows(log)
        self._subjects = SubjectRows()
        self.n_subjects = 0
        self.messages = Table(EVENT_COLUMNS, self._rows, id="messages")
        self.subjects = Table(SUBJECT_COLUMNS, id="subjects")
        self.payload = PayloadView(VIEWS, about, id="message")

    def compose(self) -> ComposeResult:
        """The parts."""
        yield self.subjects
        with Container(id="right"):
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
    def branch(self) -> Branch | None:
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
        first = next((row for row, entry in enumerate(self._log.shown) if isinstance(entry, Message)), None)
        if first is not None:
            self.messages.move_to(first)
        return first is not None

    def draw_subjects(self) -> None:
        """The tree, or its numbers, changed."""
        self.n_subjects = len(self._log.subjects)
        self._subjects = SubjectRows.of(self._log.subjects)
        self.subjects.show(self._subjects)

    def part(self) -> str:
        """The one that has the focus."""
        if self.subjects.has_focus:
            return "-subjects"
        return "-messages" if self.messages.has_focus else "-message"

    def hostile_text(self) -> str | None:
        """What is behind the selected message where cleaning changes it."""
        return hostile_text(self.entry)
