"""Rows of the events screen (messages and notices), its heading, and the rows of its subject tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, TypeAlias, get_args

from agentgym_tui.presenters.cells import (
    Cell,
    Column,
    Line,
    Tone,
    filter_cells,
    indented_rows,
    join_parts,
    key_line,
)
from agentgym_tui.presenters.event_summary import MessageSummary, decode_error, summarize
from agentgym_tui.presenters.number_format import UNKNOWN, format_count, format_per_second, format_time, pluralize
from agentgym_tui.presenters.payload import payload_size
from agentgym_tui.presenters.status_line import LINK_STATES
from agentgym_tui.presenters.text_width import cut, cut_middle
from agentgym_tui.safe_text import masked_line
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.event_log import ALL_SUBJECTS, EventLog, EventMessage, EventQuery, LogEntry, LogNotice
from agentgym_tui.state.query import Sorting
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.subject_tree import MAX_SUBJECTS, SubjectOrder, SubjectRow, SubjectTree
from runner.events.subjects import LIVE_SUBJECTS

MAX_CACHED: Final = 1_000
"""Summaries of messages after which the cache is emptied."""

SUBJECT_WIDTH: Final = 30
EVENT_COLUMNS: Final = (
    Column("time", 12),
    Column("seq", 8, right=True, rank=2),
    Column("subject", SUBJECT_WIDTH),
    Column("node", 12, rank=1),
    Column("message", None, min_width=20),
)
SUBJECT_COLUMNS: Final = (
    Column("subject", None, min_width=10),
    Column("count", 5, right=True, rank=1),
    Column("rate", 6, right=True, rank=2),
)
DEFAULT_SORTING: Final = Sorting("subject")
_SORT_KEYS: Final[tuple[SubjectOrder, ...]] = get_args(SubjectOrder)
_INDENT: Final = 2
"""Columns of indentation per level of the subject tree; deep levels of a narrow tree have less."""
_LIVE: Final = LIVE_SUBJECTS.removesuffix(">")
KeyLabel: TypeAlias = Callable[[str], str]
"""A function that returns the key label of a command id."""

_NOTICE_TONES: Final[dict[str, Tone]] = {"no_history": "dim", "reconnected": "dim"}


class EventRows:
    """Messages and notices as rows of ``EVENT_COLUMNS``; the key of a row is the number of its log entry."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._summaries: dict[int, MessageSummary] = {}

    def __len__(self) -> int:
        """Return the number of entries that match the filter."""
        return len(self.log.shown)

    def entry(self, index: int) -> LogEntry | None:
        """Return the log entry of a row; None if there is no such row."""
        return self.log.shown[index] if 0 <= index < len(self.log.shown) else None

    def episode_id(self, index: int) -> str:
        """Return the episode id in the message of a row (untrusted text); "" if the message has none."""
        entry = self.entry(index)
        return self._summary(entry).episode_id if isinstance(entry, EventMessage) else ""

    def key(self, index: int) -> str:
        """Return the number of the log entry in a row."""
        return str(self.log.shown[index].number)

    def line(self, index: int, width: int) -> Line:
        """Return the cells of a row, one per table column; the text of a notice spans the remaining columns."""
        entry = self.log.shown[index]
        at = Cell(format_time(entry.at, "%H:%M:%S", ms=True), "dim")
        if isinstance(entry, LogNotice):
            return [
                at,
                Cell(""),
                Cell(f"― {masked_line(entry.text, 300)}", _NOTICE_TONES.get(entry.kind, "warn")),
            ]
        summary = self._summary(entry)
        return [
            at,
            Cell("" if entry.sequence is None else str(entry.sequence), "dim"),
            Cell(
                _shorten_subject(entry.subject),
                "accent",
            ),
            Cell(summary.node or UNKNOWN, "dim"),
            summary.cell,
        ]

    def _summary(self, message: EventMessage) -> MessageSummary:
        if (known := self._summaries.get(message.number)) is None:
            if len(self._summaries) >= MAX_CACHED:
                self._summaries.clear()
            known = self._summaries[message.number] = summarize(message)
        return known


def _shorten_subject(subject: str) -> str:
    return (cut if _LIVE in subject else cut_middle)(subject, SUBJECT_WIDTH)


def events_heading(reader: EventReader, log: EventLog, store: RunStore, key: KeyLabel, width: int) -> list[Line]:
    """Return the two lines above the messages: query and reading state, then the message counters."""
    link, tone = LINK_STATES[store.link.status]
    clear = key("events.clear")
    above = [
        [Cell("Events", "head")],
        [Cell("matches ", "accent"), *filter_cells(log.query.text, clear, width)] if log.query else [],
        [reading_state(reader, key)],
        *_query_parts(reader.query, clear, width),
        [Cell(link, tone)],
        [Cell(masked_line(store.link.address, 60), "dim")] if store.link.address else [],
    ]
    return [join_parts(above, width), join_parts(list(_counter_parts(reader, log, store)), width)]


def reading_state(reader: EventReader, key: KeyLabel) -> Cell:
    """Describe whether the console reads messages (live, history, paused, full), and how many messages are waiting."""
    waiting = "" if reader.n_waiting is None else f", {format_count(reader.n_waiting)} waiting"
    if reader.paused:
        return Cell(f"‖ paused{waiting}", "warn")
    if reader.query.is_history:
        return Cell(f"◂ history{waiting}", "accent")
    if reader.suspended:
        return Cell("‖ waiting for this screen", "warn")
    if not reader.is_reading:
        return Cell(f"‖ full{waiting}; {key('list.bottom')} continues", "warn")
    return Cell("● live", "good")


def _query_parts(query: EventQuery, key: str, width: int) -> Iterator[Line]:
    if query.patterns != ALL_SUBJECTS:
        yield filter_cells(" ".join(query.patterns), key, width)
    if query.episode:
        yield [Cell("episode ", "accent"), *filter_cells(query.episode, key, width)]
    if query.is_history:
        yield [Cell(f"from {start_text(query)}")]


def start_text(query: EventQuery) -> str:
    """Describe where in the stream a query starts: at a time, a sequence number, the beginning, or now."""
    match query.start:
        case datetime():
            return f"{query.start.astimezone():%Y-%m-%d %H:%M:%S}"
        case int():
            return f"#{query.start}"
    return "the beginning" if query.start == "all" else "now"


def _counter_parts(reader: EventReader, log: EventLog, store: RunStore) -> Iterator[Line]:
    yield [Cell(pluralize(log.n_received, "message"))]
    if log.is_replaying and reader.is_reading:
        yield [Cell("replaying history", "accent")]
    elif rate := format_per_second(log.subjects.rate):
        yield [Cell(rate, "accent")]
    yield [Cell(f"lag {format_count(log.lag)}", "warn" if log.lag > 1_000 else "dim")]
    for n, label in ((log.n_gap, "in gaps"), (log.n_skipped, "skipped"), (store.n_malformed, "malformed")):
        yield [Cell(f"{format_count(n)} {label}", "warn" if n else "dim")]
    if log.n_evicted:
        yield [Cell(f"newest {format_count(len(log))} kept", "dim")]
    yield [Cell(pluralize(len(log.subjects), "subject"), "dim")]


def entry_info(entry: LogEntry | None, view: str) -> Line:
    """Return payload size and decode error of a message; an empty line for a notice."""
    if not isinstance(entry, EventMessage):
        return []
    error = decode_error(entry)
    size = payload_size(entry, view)
    if not error:
        return [size]
    return [size, Cell(" "), Cell(f"✗ malformed: {error}", "bad")]


def empty_events_lines(reader: EventReader, log: EventLog, store: RunStore, key: KeyLabel, width: int) -> list[Line]:
    """Return the text shown while the list of messages has no rows."""
    if log.query:
        head = f"None of {pluralize(len(log), 'message')} matches "
        return [
            [Cell(head, "head"), Cell(log.query.text, "accent")],
            key_line(key("events.clear"), "shows all messages", 3),
        ]
    if store.link.status != "connected":
        cause = indented_rows(masked_line(store.link.cause, 400), width) if store.link.cause else []
        return [[Cell("Not connected to the bus yet.", "head")], *cause]
    subjects = " ".join(reader.query.patterns)
    return [
        [Cell("No messages yet on ", "head"), Cell(subjects, "accent")],
        key_line(key("events.go_to"), "goes back in the stream history: a sequence, a time, 10m, all", 3),
        key_line(key("events.subject"), "selects subjects, with * and >", 3),
    ]


class SubjectRows:
    """A snapshot of the subject tree as rows of ``SUBJECT_COLUMNS``; the key of a row is its subject prefix.

    If the tree has reached its limit, an additional last row counts the messages on all other subjects.
    """

    def __init__(self, branches: Sequence[SubjectRow] = (), n_others: int = 0) -> None:
        self.branches = branches
        self._n_others = n_others

    @classmethod
    def from_tree(cls, tree: SubjectTree, sorting: Sorting | None = None) -> SubjectRows:
        """Create the rows of a tree, sorted by subject unless ``sorting`` selects another column."""
        column, descending = sorting or DEFAULT_SORTING
        order = next((each for each in _SORT_KEYS if each == column), None)
        return cls(tree.rows(order or "subject", descending=descending and order is not None), tree.n_others)

    def __len__(self) -> int:
        """Return the number of rows, including the last row for the other subjects."""
        return len(self.branches) + bool(self._n_others)

    def line(self, index: int, width: int) -> Line:
        """Return the cells of a row: last word of the subject prefix, message count, and messages per second."""
        if index >= len(self.branches):
            others = f"beyond {MAX_SUBJECTS:,} subjects"
            return [Cell(others, "warn"), Cell(format_count(self._n_others)), Cell("")]
        branch = self.branches[index]
        sign = "" if not branch.n_children else "▾ " if branch.is_open else "▹ "
        closed = "" if branch.is_open or not branch.n_children else f" ({format_count(branch.n_children)})"
        ellipsis = " …" if branch.is_truncated else ""
        indent = " " * min(_INDENT * branch.depth, width // 4)
        name = f"{indent}{sign}{branch.word}{closed}{ellipsis}"
        tone: Tone = "plain" if branch.n else "dim"
        return [Cell(name, tone), Cell(format_count(branch.n), tone), Cell(format_per_second(branch.rate), "dim")]

    def key(self, index: int) -> str:
        """Return the subject prefix of a row; "" for the last row, which counts the messages on all other subjects."""
        return self.branches[index].path if index < len(self.branches) else ""

    def branch(self, index: int) -> SubjectRow | None:
        """Return the branch of the tree in a row; None for the row that counts the messages on all other subjects."""
        return self.branches[index] if index < len(self.branches) else None
