"""The base class of the events screen: reads the bus while the screen is shown, and draws new messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace
from textual import on
from textual.timer import Timer

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.event_rows import empty_events_lines, events_heading
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.screens.events.panes import EventPanes
from agentgym_tui.services.timers import MIN_INTERVAL_S, RedrawThrottle, start_worker
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.event_query import ALL_SUBJECTS, EventQuery, parse_patterns
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StatusText

RATE_INTERVAL_S: Final = 1.0
DEFAULT_HISTORY: Final = timedelta(minutes=1)
"""History shown at first; chosen subjects get more."""

CHOSEN_HISTORY: Final = timedelta(minutes=10)

FILTER_KEY: Final = "events"
SUBJECTS_KEY: Final = "events.subjects"
"""Keys of the filter words and the chosen subjects in the UI state."""


class EventsScreenBase(ConsoleScreen[None]):
    """A screen that reads a session's bus while the screen is shown.

    Args:
        session: a session with a bus.
        ui_state: saved filter words, subject filter, sort order and pane sizes; updated in place.
        now: returns the time of a monotonic clock in seconds.

    Attributes:
        session: the session.
        event_log: the messages that have been read.
        reader: reads messages from the bus into ``event_log``.
        panes: the panes that show the messages.
    """

    REQUIRED_WIDGETS = "#summary, #nothing, #filter, #entry, #messages, #subjects, #payload, #tabs"

    def __init__(
        self, session: Session, ui_state: UiState | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        if session.events is None:
            raise ValueError("the session has no bus")
        self.session, self.ui_state = session, ui_state or UiState()
        self.event_log = EventLog()
        self.event_log.search(self.ui_state.filters.get(FILTER_KEY, ""))
        self.reader = EventReader(session.events, self.event_log, self._schedule_draw)
        self.panes = EventPanes(self.event_log, self.ui_state, id="events")
        self._now = now
        self._throttle = RedrawThrottle(now)
        self._draw_timer: Timer | None = None
        self._ticker: Timer | None = None
        self._drawn_rate: tuple[int, float] = (0, 0.0)
        self._query = default_query(parse_patterns(self.ui_state.filters.get(SUBJECTS_KEY, "")) or ALL_SUBJECTS)
        self._first_selected = True

    def on_mount(self) -> None:
        """Start reading."""
        self._ticker = self.set_interval(RATE_INTERVAL_S, self._tick)
        self.set_query(self._query)

    def on_screen_resume(self) -> None:
        """Resume reading."""
        self._set_active(True)

    def on_screen_suspend(self) -> None:
        """Suspend reading."""
        self._set_active(False)

    def draw(self, store: RunStore) -> None:
        """Redraw after the store changed, because the store holds the state of the connection to the bus."""
        self.show_texts()

    def set_query(self, query: EventQuery) -> None:
        """Discard all messages and read the messages that match ``query``."""
        self._query = query
        self.ui_state.set_filter(SUBJECTS_KEY, "" if query.patterns == ALL_SUBJECTS else " ".join(query.patterns))
        if self._ticker is None or not self.is_ready:
            return
        self.reader.set_query(query)
        self.event_log.subjects.tick(self._now())
        self._first_selected = not query.is_history
        self.panes.messages.follow = not query.is_history
        start_worker(self, self.reader.run, group="events", exclusive=True)
        self.show_all()
        self.panes.draw_subjects()

    def _set_active(self, is_active: bool) -> None:
        self.reader.suspended = not is_active
        self.reader.update()
        if self._ticker is not None:
            (self._ticker.resume if is_active else self._ticker.pause)()
        if is_active:
            self.show_all()

    @on(LineList.CursorMoved, "#messages")
    def _moved(self) -> None:
        if self.is_ready:
            self.panes.payload.show(self.panes.entry)
            self.reader.read_to(self.panes.n_rows_below)

    @on(LineList.FollowChanged, "#messages")
    def _followed(self) -> None:
        """Follow live messages while the list is at its end; this also leaves a history whose end is reached."""
        reader = self.reader
        reader.following = self.panes.messages.follow
        if reader.following and reader.query.is_history:
            reader.query = replace(reader.query, is_history=False)
        reader.update()
        self.show_texts()

    def _schedule_draw(self) -> None:
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(max(self._throttle.wait_s, MIN_INTERVAL_S), self.show_all)

    def show_all(self) -> None:
        """Redraw everything."""
        self._draw_timer = None
        self._throttle.mark_redrawn()
        if not self.is_ready or self.reader.suspended:
            return
        self.set_class(not self.event_log.shown, "-empty")
        self.panes.draw_messages()
        self._first_selected = self._first_selected or self.panes.select_first_message()
        self.reader.read_to(self.panes.n_rows_below)
        if len(self.event_log.subjects) != self.panes.n_subjects:
            self.panes.draw_subjects()
        self.show_texts()

    def show_texts(self) -> None:
        """Redraw the heading and the text that replaces an empty list of messages."""
        for name, make_lines in (("summary", self.heading_lines), ("nothing", self.nothing_lines)):
            for widget in self.query(f"#{name}").results(StatusText):
                widget.show(make_lines)

    def _tick(self) -> None:
        """Update the rates and counts in the subject tree."""
        self.event_log.subjects.tick(self._now())
        rate = (self.event_log.n_received, self.event_log.subjects.rate)
        if rate != self._drawn_rate and self.is_ready:
            self._drawn_rate = rate
            self.panes.draw_subjects()
            self.show_texts()

    def heading_lines(self, width: int) -> list[Line]:
        """Return the lines above the panes."""
        return events_heading(self.reader, self.event_log, self.session.store, keymap_of(self.app).key, width)

    def nothing_lines(self, width: int) -> list[Line]:
        """Return the lines that are shown if there are no messages."""
        if self.event_log.shown:
            return []
        return empty_events_lines(self.reader, self.event_log, self.session.store, keymap_of(self.app).key, width)


def default_query(patterns: tuple[str, ...] = ALL_SUBJECTS) -> EventQuery:
    """Return the query for live messages preceded by a few stored messages."""
    return EventQuery(patterns, datetime.now(UTC) - (DEFAULT_HISTORY if patterns == ALL_SUBJECTS else CHOSEN_HISTORY))
