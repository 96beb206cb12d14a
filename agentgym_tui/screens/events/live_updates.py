"""What the events screen does without being asked: it reads, as far as somebody looks, and draws what came."""

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

RATE_S: Final = 1.0
RECENT: Final = timedelta(minutes=1)
"""So much history is there at first; of chosen subjects more."""

CHOSEN: Final = timedelta(minutes=10)

WORDS: Final = "events"
SUBJECT: Final = "events.subjects"
"""Where the words and the chosen subjects are kept."""


class LiveEventsScreen(ConsoleScreen[None]):
    """Reads a session's bus while it is looked at.

    Args:
        session: what is looked at; it has a bus.
        kept: words, subjects, order and sizes as they were left.
        now: a monotonic clock, seconds.

    Attributes:
        session: the same.
        event_log: what was read.
        reader: what reads.
        panes: the parts that show it.
    """

    REQUIRED_WIDGETS = "#summary, #nothing, #filter, #entry, #messages, #subjects, #payload, #tabs"

    def __init__(
        self, session: Session, kept: UiState | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        if session.events is None:
            raise ValueError("a session without a bus")
        self.session, self.kept = session, kept or UiState()
        self.event_log = EventLog()
        self.event_log.search(self.kept.filters.get(WORDS, ""))
        self.reader = EventReader(session.events, self.event_log, self._news)
        self.panes = EventPanes(self.event_log, self.kept, id="events")
        self._now = now
        self._pace = RedrawThrottle(now)
        self._next: Timer | None = None
        self._ticker: Timer | None = None
        self._rated: tuple[int, float] = (0, 0.0)
        self._wanted = usual(parse_patterns(self.kept.filters.get(SUBJECT, "")) or ALL_SUBJECTS)
        self._landed = True

    def on_mount(self) -> None:
        """Begin to listen."""
        self._ticker = self.set_interval(RATE_S, self._tick)
        self.look_at(self._wanted)

    def on_screen_resume(self) -> None:
        """Read on."""
        self._attend(True)

    def on_screen_suspend(self) -> None:
        """What comes meanwhile waits."""
        self._attend(False)

    def draw(self, store: RunStore) -> None:
        """The store changed, which knows of the way to the bus."""
        self.show_around()

    def look_at(self, view: EventQuery) -> None:
        """Read other messages; what was read is forgotten."""
        self._wanted = view
        self.kept.set_filter(SUBJECT, "" if view.patterns == ALL_SUBJECTS else " ".join(view.patterns))
        if self._ticker is None or not self.is_ready:
            return
        self.reader.set_query(view)
        self.event_log.subjects.tick(self._now())
        self._landed = not view.is_history
        self.panes.messages.follow = not view.is_history
        start_worker(self, self.reader.run, group="events", exclusive=True)
        self.show_all()
        self.panes.draw_subjects()

    def _attend(self, attends: bool) -> None:
        self.reader.suspended = not attends
        self.reader.update()
        if self._ticker is not None:
            (self._ticker.resume if attends else self._ticker.pause)()
        if attends:
            self.show_all()

    @on(LineList.CursorMoved, "#messages")
    def _moved(self) -> None:
        if self.is_ready:
            self.panes.payload.show(self.panes.entry)
            self.reader.read_to(self.panes.n_below)

    @on(LineList.FollowChanged, "#messages")
    def _followed(self) -> None:
        """At the end what comes is shown, also at that of a history."""
        reader = self.reader
        reader.following = self.panes.messages.follow
        if reader.following and reader.query.is_history:
            reader.query = replace(reader.query, is_history=False)
        reader.update()
        self.show_around()

    def _news(self) -> None:
        """Draw soon; what comes until then is drawn at once."""
        if self._next is None:
            self._next = self.set_timer(max(self._pace.wait_s, MIN_INTERVAL_S), self.show_all)

    def show_all(self) -> None:
        """Draw what came."""
        self._next = None
        self._pace.mark_redrawn()
        if not self.is_ready or self.reader.suspended:
            return
        self.set_class(not self.event_log.shown, "-empty")
        self.panes.draw_messages()
        self._landed = self._landed or self.panes.land()
        self.reader.read_to(self.panes.n_below)
        if len(self.event_log.subjects) != self.panes.n_subjects:
            self.panes.draw_subjects()
        self.show_around()

    def show_around(self) -> None:
        """Draw what is said above the parts, and in the place of messages."""
        for name, make in (("summary", self.heading_lines), ("nothing", self.nothing_lines)):
            for part in self.query(f"#{name}").results(StatusText):
                part.show(make)

    def _tick(self) -> None:
        """Rates, and the numbers of the tree."""
        self.event_log.subjects.tick(self._now())
        rated = (self.event_log.n_received, self.event_log.subjects.rate)
        if rated != self._rated and self.is_ready:
            self._rated = rated
            self.panes.draw_subjects()
            self.show_around()

    def heading_lines(self, width: int) -> list[Line]:
        """What is said above the parts."""
        return events_heading(self.reader, self.event_log, self.session.store, keymap_of(self.app).key, width)

    def nothing_lines(self, width: int) -> list[Line]:
        """What is said where there are no messages."""
        if self.event_log.shown:
            return []
        return empty_events_lines(self.reader, self.event_log, self.session.store, keymap_of(self.app).key, width)


def usual(patterns: tuple[str, ...] = ALL_SUBJECTS) -> EventQuery:
    """What comes, with a little of what came."""
    return EventQuery(patterns, datetime.now(UTC) - (RECENT if patterns == ALL_SUBJECTS else CHOSEN))
