"""The events screen, which shows the bus messages of all publishers; it reads the bus while it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace
from textual import on
from textual.timer import Timer

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.events import (
    DEFAULT_SORTING,
    EVENT_COLUMNS,
    SUBJECT_COLUMNS,
    EventRows,
    SubjectRows,
    empty_events_lines,
    entry_info,
    events_heading,
)
from agentgym_tui.presenters.payload import VIEWS
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.line_browser import LineBrowser
from agentgym_tui.services import MIN_INTERVAL_S, RedrawThrottle, start_worker
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.event_log import (
    ALL_SUBJECTS,
    EventLog,
    EventMessage,
    EventQuery,
    LogEntry,
    parse_patterns,
    parse_start,
    valid_patterns,
)
from agentgym_tui.state.normalize import ulid_time
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.lists import LineList
from agentgym_tui.widgets.payload_view import PayloadView
from agentgym_tui.widgets.split import Share, Split
from agentgym_tui.widgets.table import Table

RATE_INTERVAL_S: Final = 1.0
DEFAULT_HISTORY: Final = timedelta(minutes=1)
"""History shown at first; chosen subjects get more."""
CHOSEN_HISTORY: Final = timedelta(minutes=10)
MARGIN: Final = timedelta(seconds=5)
SUBJECT_HINT: Final = "subjects, such as: agentgym.live.> orders.*.new"

SUBJECTS_KEY: Final = "events.subjects"
"""Key of the chosen subjects in the UI state."""
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


class EventSplit(Split):
    """The subject tree beside the messages; on a wide screen, the tree is by default a fifth of the screen."""

    def fit(self) -> None:
        is_wide = self.screen.has_class("-wide")
        self.default_sizes = {TREE_KEY: max(_TREE_WIDTH, self.size.width // 5)} if is_wide else {}
        super().fit()


class EventsScreen(LineBrowser):
    """A screen that reads a session's bus while it is shown; the session must have one."""

    SCOPE = "events"
    AUTO_FOCUS = "#messages"
    FILTER_HINT = "words and fields, such as: env:maze outcome:error -kind:token since:5m"
    list_key = "events"
    GO_TO_HINT = "a sequence, 14:30, 10m, 2026-05-01 14:30, all"

    def __init__(self, context: ScreenContext) -> None:
        self._log = EventLog()
        self._rows, self._branches = EventRows(self._log), SubjectRows()
        table = Table(EVENT_COLUMNS, self._rows, id="messages")
        payload = PayloadView(VIEWS, entry_info, command="events.view", id="message")
        sorting, sizes = context.ui_state.sorting.get(TREE_KEY), context.ui_state.sizes
        self._tree = Table(
            SUBJECT_COLUMNS, can_sort=True, sorting=sorting, default_sorting=DEFAULT_SORTING, id=TREE_KEY
        )
        right = Split(SHARES, sizes, table, payload, id="right")
        super().__init__(context, table, payload, EventSplit(SHARES, sizes, self._tree, right, id="events"))
        if (source := self.session.events) is None:
            raise ValueError("the session has no bus")
        self._log.search(self.filter.kept)
        self._throttle = RedrawThrottle(self._now)
        self.reader = EventReader(source, self._log, lambda: self.draw_soon(max(self._throttle.wait_s, MIN_INTERVAL_S)))
        self._n_drawn_subjects = 0
        self._ticker: Timer | None = None
        self._query = default_query(parse_patterns(self.ui_state.filters.get(SUBJECTS_KEY, "")) or ALL_SUBJECTS)
        self._is_first_selected = True

    def on_mount(self) -> None:
        self._ticker = self.set_interval(RATE_INTERVAL_S, self._tick)
        self.set_query(self._query)

    def on_screen_resume(self) -> None:
        self._set_active(True)

    def on_screen_suspend(self) -> None:
        self._set_active(False)

    def draw(self, store: RunStore) -> None:
        self.show_texts()

    def set_query(self, query: EventQuery) -> None:
        self._query = query
        self.ui_state.set_filter(SUBJECTS_KEY, "" if query.patterns == ALL_SUBJECTS else " ".join(query.patterns))
        if self._ticker is None:  # ``on_mount`` reads it
            return
        self.reader.set_query(query)
        self._log.subjects.tick(self._now())
        self._is_first_selected = not query.is_history
        self.table.follow = not query.is_history
        start_worker(self, self.reader.run, group="events", exclusive=True)
        self.show_all()
        self._draw_subjects()

    def show_episode(self, episode_id: str) -> None:
        self.filter.text = ""
        started_at = ulid_time(episode_id)
        self.set_query(EventQuery(start="all" if started_at is None else started_at - MARGIN, episode=episode_id))

    @property
    def entry(self) -> LogEntry | None:
        return self._rows.entry(self.table.cursor)

    def heading_lines(self, width: int) -> Sequence[Line]:
        return events_heading(self.reader, self._log, self.session.store, keymap_of(self.app).key, width)

    def nothing_lines(self, width: int) -> Sequence[Line]:
        key = keymap_of(self.app).key
        return [] if self._log.shown else empty_events_lines(self.reader, self._log, self.session.store, key, width)

    @property
    def searchable(self) -> EventLog:
        return self._log

    def go_to(self, text: str) -> None:
        now = datetime.now(UTC)
        start = parse_start(text, now)
        if start is None:
            self._reject(text, f"is not a sequence or a time; examples: {self.GO_TO_HINT}")
        elif isinstance(start, datetime) and start > now:
            self._reject(text, "is in the future")
        else:
            self.set_query(replace(self.reader.query, start=start, is_history=start != "now"))

    def action_pause(self) -> None:
        """Pause or resume reading; live reading resumes at the newest message, reading of a history where it paused."""
        self.reader.paused = not self.reader.paused
        if not (self.reader.paused or self.reader.query.is_history):
            self.table.follow = True
        self.reader.update()
        self.show_texts()

    def selected_env(self) -> str:
        episode = self.session.store.episodes.get(self._rows.episode_id(self.table.cursor))
        return "" if episode is None else episode.env

    def action_subject(self) -> None:
        self.open_prompt(SUBJECT_HINT, lambda text: self._query_subjects(parse_patterns(text), text))

    def action_episode(self) -> None:
        if episode_id := self._rows.episode_id(self.table.cursor):
            self.show_episode(episode_id)
        else:
            self.toast("this message names no episode")

    def action_clear(self) -> None:
        query = self.reader.query
        if self._log.query:
            super().action_clear()
        elif query.is_history or query.episode or query.patterns != ALL_SUBJECTS:
            self.set_query(default_query())

    def action_tree(self) -> None:
        to_tree = not self._tree.has_focus
        self.set_class(to_tree, "-tree")
        self.set_focus(self._tree if to_tree else self.table)

    def action_fold(self) -> None:
        if (branch := self._branches.branch(self._tree.cursor)) is not None and branch.n_children:
            self._log.subjects.toggle(branch.path)
            self._draw_subjects()

    def line_selected(self) -> None:
        super().line_selected()
        self._read_ahead()

    @on(LineList.FollowChanged, "#messages")
    def _followed(self) -> None:
        """Follow live messages while the list is at its end; this also leaves a history whose end is reached."""
        reader = self.reader
        reader.following = self.table.follow
        if reader.following and reader.query.is_history:
            reader.query = replace(reader.query, is_history=False)
        reader.update()
        self.show_texts()

    @on(LineList.Selected, "#subjects")
    def _branch_chosen(self) -> None:
        if (branch := self._branches.branch(self._tree.cursor)) is not None:
            self._query_subjects(valid_patterns(branch.patterns), branch.path)

    @on(Table.Sorted)
    def _sorted(self, event: Table.Sorted) -> None:
        self.ui_state.set_sorting(TREE_KEY, event.sorting)
        self._draw_subjects()

    def show_all(self) -> None:
        self._throttle.mark_redrawn()
        if not self.reader.suspended:
            super().show_all()

    def draw_table(self) -> None:
        self.set_class(not self._log.shown, "-empty")
        self.table.refresh_lines()
        rows = (row for row, entry in enumerate(self._log.shown) if isinstance(entry, EventMessage))
        if not self._is_first_selected and (first := next(rows, None)) is not None:  # below any notices
            self.table.move_to(first)
            self._is_first_selected = True
        self._read_ahead()
        if len(self._log.subjects) != self._n_drawn_subjects:
            self._draw_subjects()

    def _draw_subjects(self) -> None:
        self._n_drawn_subjects = len(self._log.subjects)
        self._branches = SubjectRows.from_tree(self._log.subjects, self._tree.sorting)
        self._tree.show(self._branches)

    def _read_ahead(self) -> None:
        self.reader.read_to(max(len(self._log.shown) - 1 - self.table.cursor, 0))

    def _set_active(self, is_active: bool) -> None:
        self.reader.suspended = not is_active
        self.reader.update()
        if self._ticker is not None:
            (self._ticker.resume if is_active else self._ticker.pause)()
        if is_active:
            self.show_all()

    def _tick(self) -> None:
        self._log.subjects.tick(self._now())
        self._draw_subjects()
        self.show_texts()

    def _query_subjects(self, patterns: tuple[str, ...] | None, text: str) -> None:
        query = self.reader.query
        if patterns is None:
            self._reject(text, f"is not a valid subject pattern; {SUBJECT_HINT}")
        elif query.is_history or query.episode:
            self.set_query(replace(query, patterns=patterns))
        else:
            self.set_query(default_query(patterns))

    def _reject(self, text: str, reason: str) -> None:
        self.toast(f'"{text}" {reason}', failed=True)


def default_query(patterns: tuple[str, ...] = ALL_SUBJECTS) -> EventQuery:
    """Return the query for live messages preceded by a few stored messages."""
    return EventQuery(patterns, datetime.now(UTC) - (DEFAULT_HISTORY if patterns == ALL_SUBJECTS else CHOSEN_HISTORY))
