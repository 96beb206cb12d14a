"""Screens that browse lines: the messages of a bus, and log files of any size, also while they are written."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.timer import Timer

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.logs import LogFile, find_last_time, find_line_at
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
from agentgym_tui.presenters.logs import LOG_COLUMNS, OpenedLog, empty_log_lines, line_info, log_heading
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.payload import VIEWS
from agentgym_tui.screens.base import WIDTH_BREAKPOINTS, ScreenContext, SessionScreen
from agentgym_tui.screens.list_screen import ListFilter
from agentgym_tui.services import MIN_INTERVAL_S, RedrawThrottle, copy_to_clipboard, start_worker
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
from agentgym_tui.state.query import MAX_CHARS, Searchable
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.inputs import EntryInput
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, SideTable, StaticLines, Table
from agentgym_tui.widgets.payload_view import PayloadView
from agentgym_tui.widgets.split import Share, Split
from runner.query.fields import Field


class LineBrowser(SessionScreen):
    """A screen with a table of lines, a filter and a prompt above it, and the selected line below it."""

    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS
    FILTER_HINT: ClassVar[str]
    GO_TO_HINT: ClassVar[str]
    """Placeholder of the prompt for a place in the lines."""
    keeps_filter = True
    list_key: str

    def __init__(self, context: ScreenContext, table: Table, payload: PayloadView, panes: Split) -> None:
        super().__init__(context)
        self.table, self.payload, self._panes = table, payload, panes
        self.filter = ListFilter(self)
        add_bindings(self, bindings("queries"))
        self._prompt = EntryInput(id="entry", max_length=MAX_CHARS)
        self._use_entered: Callable[[str], None] = self.go_to
        self._draw_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield StaticLines(self.heading_lines, id="summary")
        yield self.filter
        yield self._prompt
        yield self._panes
        yield StaticLines(self.nothing_lines, id="nothing")
        yield KeyBar(self.SCOPE, self.session)

    @property
    def searchable(self) -> Searchable[Any]:
        raise NotImplementedError

    def heading_lines(self, width: int) -> Sequence[Line]:
        raise NotImplementedError

    def nothing_lines(self, width: int) -> Sequence[Line]:
        raise NotImplementedError

    @property
    def entry(self) -> LogEntry | None:
        raise NotImplementedError

    def go_to(self, text: str) -> None:
        raise NotImplementedError

    def draw_table(self) -> None:
        raise NotImplementedError

    def show_found(self) -> None:
        self.show_all()

    def search(self, text: str) -> None:
        self.filter.search(text)

    def query_fields(self) -> list[Field]:
        return list(self.searchable.query_fields.values())

    def action_filter(self) -> None:
        self.filter.open()

    def action_clear(self) -> None:
        self.filter.clear()

    def action_queries(self) -> None:
        self.filter.open_saved()

    def show_texts(self) -> None:
        self.show_lines("summary", "nothing")

    def open_prompt(self, hint: str, use: Callable[[str], None], text: str = "") -> None:
        self._use_entered = use
        self.add_class("-prompting")
        self._prompt.prompt(hint, text)

    def action_go_to(self, text: str = "") -> None:
        self.open_prompt(self.GO_TO_HINT, self.go_to, text)

    def action_next_view(self) -> None:
        self.payload.next_view()

    def action_copy(self, raw: bool = False) -> None:
        copy_to_clipboard(self.app, self.payload.text(), "shown text", raw=raw)

    @on(EntryInput.Closed)
    def _prompt_closed(self, event: EntryInput.Closed) -> None:
        self.remove_class("-prompting")
        if event.text is not None:
            self._use_entered(event.text)

    @on(LineList.CursorMoved)
    def _line_selected(self, event: LineList.CursorMoved) -> None:
        if event.view is self.table:
            self.line_selected()

    def line_selected(self) -> None:
        self.payload.show(self.entry)

    @on(LineList.Selected)
    def _line_opened(self, event: LineList.Selected) -> None:
        if event.view is self.table and self.accepts_keys:
            self.set_focus(self.payload.lines)

    def draw_soon(self, wait_s: float) -> None:
        """Redraw everything after ``wait_s`` seconds, unless that is already planned."""
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(wait_s, self.show_all)

    def show_all(self) -> None:
        if self._draw_timer is not None:
            self._draw_timer.stop()
            self._draw_timer = None
        self.draw_table()
        self.payload.show(self.entry)
        self.show_texts()


# The bus messages of all publishers, which are read while the screen is shown.

RATE_INTERVAL_S: Final = 1.0
DEFAULT_HISTORY: Final = timedelta(minutes=1)
CHOSEN_HISTORY: Final = timedelta(minutes=10)
MARGIN: Final = timedelta(seconds=5)
SUBJECT_HINT: Final = "subjects, such as: agentgym.live.> orders.*.new"

SUBJECTS_KEY: Final = "events.subjects"
TREE_KEY: Final = "subjects"
"""Id of the tree; also the key of its order in the UI state."""
_TREE_WIDTH: Final = 32

EVENT_SHARES: Final = (
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
        self._tree = SideTable(
            SUBJECT_COLUMNS, can_sort=True, sorting=sorting, default_sorting=DEFAULT_SORTING, id=TREE_KEY
        )
        right = Split(EVENT_SHARES, sizes, table, payload, id="right")
        super().__init__(context, table, payload, EventSplit(EVENT_SHARES, sizes, self._tree, right, id="events"))
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
        key, kept = keymap_of(self.app).key, self.filter.kept
        return events_heading(self.reader, self._log, self.session.store, key, width, kept)

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
            return
        self.action_go_to(text)

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

    def action_subject(self, text: str = "") -> None:
        self.open_prompt(SUBJECT_HINT, self._subject_entered, text)

    def _subject_entered(self, text: str) -> None:
        self._query_subjects(patterns := parse_patterns(text), text)
        if patterns is None:
            self.action_subject(text)

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

    @on(SideTable.SideChosen, "#subjects")
    def _fold(self, event: SideTable.SideChosen) -> None:
        """Open the selected branch by the right arrow, and close it by the left one, or go from there to its parent."""
        branch = self._branches.branch(self._tree.cursor)
        if branch is not None and branch.n_children and branch.is_open != (event.by > 0):
            self._log.subjects.toggle(branch.path)
            self._draw_subjects()
        elif branch is not None and event.by < 0:
            self._tree.select(branch.path.rpartition(".")[0])

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


# The logs of a session.

DRAW_INTERVAL_S: Final = 0.1
DRAW_WHILE_READING_S: Final = 0.25
"""Seconds between two redraws, also while a log is being read: drawing slows reading down."""
POLL_INTERVAL_S: Final = 0.5

LOG_SHARES: Final = (Share("lines", "log.lines", "height", 20, 80),)


class LogScreen(LineBrowser):
    """A screen that shows the logs of a session, one at a time, and reads the shown log while it is visible."""

    SCOPE = "log"
    AUTO_FOCUS = "#lines"
    FILTER_HINT = "words and fields, such as: level:error,warning timeout since:10m"
    keeps_filter = False
    list_key = "log"
    GO_TO_HINT = "a line (1200), 14:30, 10m before the end, 2026-05-01 14:30, all, now"

    def __init__(self, context: ScreenContext) -> None:
        table = Table(LOG_COLUMNS, can_follow=True, id="lines")
        payload = PayloadView(("formatted", "raw", "hex"), line_info, command="log.view", id="message")
        super().__init__(context, table, payload, Split(LOG_SHARES, context.ui_state.sizes, table, payload, id="log"))
        self.logs: list[OpenedLog] = []
        self._add_logs()
        self.opened = self.logs[0]
        self.opened.log.advance(0.0)  # so that the first paint shows lines
        self.opened.refresh()
        table.source, table.follow = self.opened, self.opened.follow
        self._rate_start = (self._now(), 0)
        self._wake = asyncio.Event()
        self._suspended = False
        self._restore_keys: Callable[[], None] | None = None
        self._drawn_signature: tuple[object, ...] = ()

    def on_mount(self) -> None:
        self.call_after_refresh(self._start_reading)

    def on_screen_resume(self) -> None:
        self._add_logs()
        self._suspended = False
        self._wake.set()

    def _add_logs(self) -> None:
        """Add the session's new logs; those of a node are followed at their end."""
        for log in self.session.open_logs()[len(self.logs) :]:
            self.logs.append(opened := OpenedLog(log))
            opened.follow = self.session.has_node_logs

    def on_screen_suspend(self) -> None:
        self._suspended = True

    @property
    def searchable(self) -> OpenedLog:
        return self.opened

    @property
    def entry(self) -> EventMessage | None:
        return self.opened.message(self.table.cursor) if len(self.opened) else None

    def heading_lines(self, width: int) -> Sequence[Line]:
        log, (started_at, size) = self.opened.log, self._rate_start
        per_second = 0.0 if log.is_complete else (log.index.size - size) / max(self._now() - started_at, 0.001)
        position = (self.logs.index(self.opened), len(self.logs))
        return log_heading(self.opened, keymap_of(self.app).key, width, position=position, per_second=per_second)

    def nothing_lines(self, width: int) -> Sequence[Line]:
        return [] if len(self.opened) else empty_log_lines(self.opened, keymap_of(self.app).key, width)

    def show_found(self) -> None:
        self.table.follow = False
        self.refresh_view()
        self.table.move_to(self.table.cursor if self.opened.found is None else 0)

    def go_to(self, text: str) -> None:
        start_worker(self, partial(self._go_to, self.opened, text), group="go", exclusive=True)

    def draw_table(self) -> None:
        self.opened.refresh()
        self.set_class(not len(self.opened), "-empty")
        self.table.show(self.opened)

    def refresh_view(self) -> None:
        """Resume reading and redraw, after another log or another filter was selected."""
        self._wake.set()
        is_filtered, words = self.opened.found is not None, self.opened.query.words
        expression = re.compile("|".join(map(re.escape, words)), re.IGNORECASE) if is_filtered and words else None
        self.table.found = self.payload.lines.found = expression
        if is_filtered and self._restore_keys is None:
            self._restore_keys = add_bindings(self, bindings("match"))
            self.query_one(KeyBar).set_first("match")
        elif not is_filtered and self._restore_keys is not None:
            self._restore_keys()
            self._restore_keys = None
            self.query_one(KeyBar).set_first("")
        self.show_all()

    def action_filter(self) -> None:
        self.opened.in_context = False
        self.show_all()
        super().action_filter()

    def action_match(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line that matches the filter, among all lines."""
        if (number := self.opened.match_beyond(self.opened.number(self.table.cursor), by)) is not None:
            self.opened.in_context = True
            self.table.follow = False
            self.draw_table()
            self.table.move_to(number)
            self.show_texts()

    def line_selected(self) -> None:
        super().line_selected()
        self.show_texts()

    def action_reload(self) -> None:
        start_worker(self, partial(self._reload, self.opened.log), group="reload", exclusive=True)

    @on(LineList.FollowChanged, "#lines")
    def _follow_changed(self) -> None:
        self.opened.follow = self.table.follow
        self.show_texts()

    async def _start_reading(self) -> None:
        if self.is_attached:  # else the screen was closed before the first paint
            self.show_all()
            self._rate_start = (self._now(), self.opened.log.index.size)
            start_worker(self, self._read, group="log", exclusive=True)

    async def _read(self) -> None:
        """Read and search the log to its end, then poll the file for new lines."""
        while True:
            self._wake.clear()
            opened = self.opened
            reading = not opened.log.is_complete
            more = not self._suspended and await asyncio.to_thread(opened.advance)
            if opened.log.replaced and self.table.follow and opened is self.opened:
                await asyncio.to_thread(opened.log.reopen)
                more = True
            if (signature := self.opened.signature) != self._drawn_signature:
                self._drawn_signature = signature
                if reading and not more:
                    self.show_all()
                else:
                    self.draw_soon(DRAW_INTERVAL_S if self.opened.log.is_complete else DRAW_WHILE_READING_S)
            if not more:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), None if self._suspended else POLL_INTERVAL_S)
                self._rate_start = (self._now(), self.opened.log.index.size)

    async def _go_to(self, opened: OpenedLog, text: str) -> None:
        target = await asyncio.to_thread(_line_of, opened.log, text)
        if not self.is_attached or opened is not self.opened:
            return
        if isinstance(target, str):
            self.toast(target, failed=True)
            self.action_go_to(text)
        elif target < 0:
            self.table.action_bottom()
        else:
            self.table.move_to(opened.row(target))
            if target >= (n := len(opened.log.index)):
                self.toast(f"the log has {pluralize(n, 'line')}{'' if opened.log.is_complete else ' so far'}")

    async def _reload(self, log: LogFile) -> None:
        await asyncio.to_thread(log.reopen)
        self.refresh_view()

    def action_neighbor(self, by: int) -> None:
        if len(self.logs) == 1:
            self.toast("no other log is open")
        else:
            self._show_log(self.logs[(self.logs.index(self.opened) + by) % len(self.logs)])

    def show_path(self, path: Path) -> None:
        found = next((opened for opened in self.logs if opened.log.path == path), None)
        if found is not None and found is not self.opened:
            self._show_log(found)

    def _show_log(self, opened: OpenedLog) -> None:
        self.opened.line_number, self.opened.follow = self.opened.number(self.table.cursor), self.table.follow
        self.opened = opened
        self.filter.text = opened.query_text
        self.table.follow = opened.follow
        self.refresh_view()
        if not opened.follow:
            self.table.move_to(opened.row(opened.line_number))


def _line_of(log: LogFile, text: str) -> int | str:
    """Return the line number that ``text`` refers to, from 0; -1 for the end; an error, untrusted text, if invalid."""
    newest = find_last_time(log)
    match parse_start(text, newest or datetime.now(UTC)):
        case None:
            return f"{text[:100]!r} is not a line number or a time; examples: {LogScreen.GO_TO_HINT}"
        case "all":
            return 0
        case "now":
            return -1
        case int(number):
            return max(number - 1, 0)
        case moment if newest is None or (line_number := find_line_at(log, moment)) is None:
            return "no timestamps found in this log"
    return line_number
