"""What is said on a bus, as lines of safe text: messages, and how the reading of them goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, TypeAlias, get_args

from agentgym_tui.presenters.cells import Cell, Column, Line, Tone, flag_unsafe, join_parts, masked_line
from agentgym_tui.presenters.event_summary import SummaryCache, decode_error
from agentgym_tui.presenters.number_format import UNKNOWN, format_count, format_per_second, pluralize
from agentgym_tui.presenters.payload import payload_size
from agentgym_tui.presenters.status_line import LINK_STATES
from agentgym_tui.presenters.text_width import cut, cut_middle, wrap_text
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.event_log import EventLog, EventMessage, LogEntry, LogNotice
from agentgym_tui.state.event_query import ALL_SUBJECTS, EventQuery
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.sorting import Sorting
from agentgym_tui.state.subject_tree import MAX_SUBJECTS, SubjectOrder, SubjectRow, SubjectTree
from runner.events.subjects import LIVE_SUBJECTS

SUBJECT_WIDTH: Final = 30
EVENT_COLUMNS: Final = (
    Column("time", 12),
    Column("seq", 8, right=True, rank=2),
    Column("subject", SUBJECT_WIDTH),
    Column("node", 12, rank=1),
    Column("says", None, min_width=20),
)
_LIVE: Final = LIVE_SUBJECTS.removesuffix(">")
KeyLabel: TypeAlias = Callable[[str], str]
"""What is pressed for a command, by its id."""

_SKEW_WARNING_S: Final = 1.0
"""Seconds that a clock may differ before it is a warning."""

_NOTICE_TONES: Final[dict[str, Tone]] = {"no_history": "dim", "reconnected": "dim"}


class EventRows:
    """What a log shows, as rows of ``EVENT_COLUMNS``; the keys are the numbers of the entries."""

    def __init__(self, log: EventLog) -> None:
        """It is read anew at each drawing."""
        self.log = log
        self._summaries = SummaryCache()

    def __len__(self) -> int:
        """How many are shown."""
        return len(self.log.shown)

    def entry(self, index: int) -> LogEntry | None:
        """The one of a row."""
        return self.log.shown[index] if 0 <= index < len(self.log.shown) else None

    def episode_id(self, index: int) -> str:
        """The episode that a row's message names, hostile text; "" for none."""
        entry = self.entry(index)
        return self._summaries.get(entry).episode_id if isinstance(entry, EventMessage) else ""

    def key(self, index: int) -> str:
        """The number."""
        return str(self.log.shown[index].number)

    def line(self, index: int, width: int) -> Line:
        """A cell per column; a remark takes all of the line after its time."""
        entry = self.log.shown[index]
        at = Cell(format_time(entry.at), "dim")
        if isinstance(entry, LogNotice):
            return [
                at,
                Cell(trusted("")),
                Cell(join([trusted("― "), masked_line(entry.text, 300)]), _NOTICE_TONES.get(entry.kind, "warn")),
            ]
        facts = self._summaries.get(entry)
        return [
            at,
            Cell(trusted("") if entry.sequence is None else trusted(str(entry.sequence)), "dim"),
            Cell(
                _shorten_subject(
                    flag_unsafe(sanitize_line(entry.subject, 256), entry.subject if facts.changed else None)
                ),
                "accent",
            ),
            Cell(sanitize_line(facts.node, 64) or UNKNOWN, "dim"),
            facts.summary,
        ]


def _shorten_subject(subject: SafeText) -> SafeText:
    """As long as its column; live subjects end in the node, which has a column of its own."""
    return (cut if _LIVE in subject else cut_middle)(subject, SUBJECT_WIDTH)


def format_time(at: datetime) -> SafeText:
    """The time of day on the clock of this machine, to the millisecond."""
    try:
        local = at.astimezone()
    except (OverflowError, ValueError, OSError):
        return UNKNOWN
    return trusted(f"{local.hour:02}:{local.minute:02}:{local.second:02}.{local.microsecond // 1000:03}")


def events_heading(reader: EventReader, log: EventLog, store: RunStore, key: KeyLabel, width: int) -> list[Line]:
    """Two lines: what is read and whether it goes on, and what came of it."""
    link, tone = LINK_STATES[store.link.status]
    above = [
        [Cell(trusted("Events"), "head")],
        [reading_state(reader, key)],
        *_view_parts(reader.query),
        [Cell(join([trusted("holds "), sanitize_line(" ".join(log.words), 60)]), "accent")] if log.words else [],
        [Cell(link, tone)],
        [Cell(masked_line(store.link.address, 60), "dim")] if store.link.address else [],
    ]
    return [join_parts(above, width), join_parts(list(_counter_parts(log, store)), width)]


def reading_state(reader: EventReader, key: KeyLabel) -> Cell:
    """Whether what comes is shown, and how much of it waits."""
    waits = "" if reader.n_waiting is None else f", {format_count(reader.n_waiting)} wait"
    if reader.paused:
        return Cell(trusted(f"‖ paused{waits}"), "warn")
    if reader.query.is_history:
        return Cell(trusted(f"◂ history{waits}"), "accent")
    if reader.suspended:
        return Cell(trusted("‖ waits for this screen"), "warn")
    if not reader.is_reading:
        return Cell(
            join([trusted(f"‖ full{waits}; "), sanitize_line(key("list.bottom"), 20), trusted(" goes on")]), "warn"
        )
    return Cell(trusted("● live"), "good")


def _view_parts(view: EventQuery) -> Iterator[Line]:
    if view.patterns != ALL_SUBJECTS:
        yield [Cell(sanitize_line(" ".join(view.patterns), 60), "accent")]
    if view.episode:
        yield [Cell(join([trusted("episode "), sanitize_line(view.episode, 40)]), "accent")]
    if view.is_history:
        yield [Cell(join([trusted("from "), start_text(view)]))]


def start_text(view: EventQuery) -> SafeText:
    """Where it begins."""
    match view.start:
        case datetime():
            return trusted(f"{view.start.astimezone():%Y-%m-%d %H:%M:%S}")
        case int():
            return trusted(f"#{view.start}")
    return trusted("the beginning" if view.start == "all" else "now")


def _counter_parts(log: EventLog, store: RunStore) -> Iterator[Line]:
    yield [Cell(pluralize(log.n_received, "message"))]
    if rate := format_per_second(log.subjects.rate):
        yield [Cell(rate, "accent")]
    yield [Cell(trusted(f"lag {format_count(log.lag)}"), "warn" if log.lag > 1_000 else "dim")]
    for n, what in ((log.n_gap, "in gaps"), (log.n_skipped, "skipped"), (store.n_malformed, "malformed")):
        yield [Cell(trusted(f"{format_count(n)} {what}"), "warn" if n else "dim")]
    yield from _clock_parts(log)
    if log.n_evicted:
        yield [Cell(trusted(f"the newest {format_count(len(log))} kept"), "dim")]
    yield [Cell(pluralize(len(log.subjects), "subject"), "dim")]


def _clock_parts(log: EventLog) -> Iterator[Line]:
    """The clock that differs most."""
    for skew in log.clock_skew.skews[:1]:
        is_off, sender = abs(skew.ahead_s) >= _SKEW_WARNING_S, sanitize_line(skew.sender or "?", 24)
        late = " or late" if skew.ahead_s <= -_SKEW_WARNING_S else ""
        seconds = round(min(max(skew.ahead_s, -1e9), 1e9), 1) + 0.0
        yield [
            Cell(join([trusted("clock "), sender, trusted(f" {seconds:+.1f} s{late}")]), "warn" if is_off else "dim")
        ]


def entry_info(entry: LogEntry | None, view: str) -> Line:
    """What one entry is, beside its text in a view."""
    if not isinstance(entry, EventMessage):
        return []
    trouble = decode_error(entry)
    size = payload_size(entry, view)
    if not trouble:
        return [size]
    return [size, Cell(trusted(" ")), Cell(join([trusted("✗ malformed: "), sanitize_line(trouble, 120)]), "bad")]


def empty_events_lines(reader: EventReader, log: EventLog, store: RunStore, key: KeyLabel, width: int) -> list[Line]:
    """What to say in the place of an empty list."""
    if log.words:
        what = f"None of {pluralize(len(log), 'message')} holds "
        return [
            [Cell(trusted(what), "head"), Cell(sanitize_line(" ".join(log.words), 60), "accent")],
            _key_line(key("events.clear"), "shows all again"),
        ]
    if store.link.status != "connected":
        cause = [
            [Cell(trusted("  ")), Cell(row, "dim")]
            for row in wrap_text(masked_line(store.link.cause, 400), width - 2, 4)
        ]
        return [[Cell(trusted("No way to the bus yet."), "head")], *(cause if store.link.cause else [])]
    subjects = sanitize_line(" ".join(reader.query.patterns), 60)
    return [
        [Cell(trusted("Nothing was said so far on "), "head"), Cell(subjects, "accent")],
        _key_line(key("events.go_to"), "goes back in the history of the streams: a sequence, a time, 10m, all"),
        _key_line(key("events.subject"), "other subjects, with * and >"),
    ]


def _key_line(key: str, what: str) -> Line:
    return [Cell(trusted(f"  {sanitize_line(key, 20):<4} "), "accent"), Cell(trusted(what))]


SUBJECT_COLUMNS: Final = (
    Column("subject", None, min_width=10),
    Column("count", 5, right=True, rank=1),
    Column("rate", 6, right=True, rank=2),
)


DEFAULT_SORTING: Final = Sorting("subject")


_SORT_KEYS: Final[tuple[SubjectOrder, ...]] = get_args(SubjectOrder)


_INDENT: Final = 2
"""Columns by which a branch is further right than the one above it, as long as there is room for its word."""


class SubjectRows:
    """The rows of a tree as they were when this was made; the keys are the words down to each."""

    def __init__(self, branches: Sequence[SubjectRow] = (), n_others: int = 0) -> None:
        """``n_others``: messages on subjects that there was no room for."""
        self.branches = branches
        self._n_others = n_others

    @classmethod
    def from_tree(cls, tree: SubjectTree, sorting: Sorting | None = None) -> SubjectRows:
        """Of a tree, in an order; by subject where that is of no column."""
        column, descending = sorting or DEFAULT_SORTING
        by = next((by for by in _SORT_KEYS if by == column), None)
        return cls(tree.rows(by or "subject", descending=descending and by is not None), tree.n_others)

    def __len__(self) -> int:
        """How many rows."""
        return len(self.branches) + bool(self._n_others)

    def line(self, index: int, width: int) -> Line:
        """Word, count, rate."""
        if index >= len(self.branches):
            others = trusted(f"beyond {MAX_SUBJECTS:,} subjects")
            return [Cell(others, "warn"), Cell(format_count(self._n_others)), Cell(trusted(""))]
        branch = self.branches[index]
        sign = trusted("" if not branch.n_children else "▾ " if branch.is_open else "▹ ")
        closed = trusted("" if branch.is_open or not branch.n_children else f" ({format_count(branch.n_children)})")
        more = trusted(" …" if branch.is_truncated else "")
        indent = trusted(" " * min(_INDENT * branch.depth, width // 4))
        name = join([indent, sign, sanitize_line(branch.word, 100), closed, more])
        tone: Tone = "plain" if branch.n else "dim"
        return [Cell(name, tone), Cell(format_count(branch.n), tone), Cell(format_per_second(branch.rate), "dim")]

    def key(self, index: int) -> str:
        """The words of a subject with dots; of the last row none."""
        return self.branches[index].path if index < len(self.branches) else ""

    def branch(self, index: int) -> SubjectRow | None:
        """The one of a row."""
        return self.branches[index] if index < len(self.branches) else None
