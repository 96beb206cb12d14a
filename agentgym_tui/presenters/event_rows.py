"""What is said on a bus, as lines of safe text: messages, and how the reading of them goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, TypeAlias

from agentgym_tui.presenters.cells import Cell, Column, Line, Tone
from agentgym_tui.presenters.event_summary import FactBook, trouble_of
from agentgym_tui.presenters.number_format import UNKNOWN, counted, quantity
from agentgym_tui.presenters.payload import size_of
from agentgym_tui.presenters.segments import flagged, joined, told
from agentgym_tui.presenters.status_line import LINKS
from agentgym_tui.presenters.subject_rows import per_second
from agentgym_tui.presenters.text_width import cut, cut_middle, wrapped
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.bus_message import LogEntry, Message, Remark
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.event_query import EVERYTHING, EventView
from agentgym_tui.state.run_store import RunStore
from runner.events.subjects import LIVE_SUBJECTS

SUBJECT: Final = 30
EVENT_COLUMNS: Final = (
    Column("time", 12),
    Column("seq", 8, right=True, rank=2),
    Column("subject", SUBJECT),
    Column("node", 12, rank=1),
    Column("says", None, least=20),
)
_LIVE: Final = LIVE_SUBJECTS.removesuffix(">")
Key: TypeAlias = Callable[[str], str]
"""What is pressed for a command, by its id."""

_SKEW: Final = 1.0
"""Seconds that a clock may differ before it is a warning."""

_REMARKS: Final[dict[str, Tone]] = {"no_history": "dim", "reconnected": "dim"}


class EventRows:
    """What a log shows, as rows of ``EVENT_COLUMNS``; the keys are the numbers of the entries."""

    def __init__(self, log: EventLog) -> None:
        """It is read anew at each drawing."""
        self.log = log
        self._facts = FactBook()

    def __len__(self) -> int:
        """How many are shown."""
        return len(self.log.shown)

    def entry(self, index: int) -> LogEntry | None:
        """The one of a row."""
        return self.log.shown[index] if 0 <= index < len(self.log.shown) else None

    def episode_id(self, index: int) -> str:
        """The episode that a row's message names, hostile text; "" for none."""
        entry = self.entry(index)
        return self._facts.of(entry).episode_id if isinstance(entry, Message) else ""

    def key(self, index: int) -> str:
        """The number."""
        return str(self.log.shown[index].number)

    def line(self, index: int, width: int) -> Line:
        """A cell per column; a remark takes all of the line after its time."""
        entry = self.log.shown[index]
        at = Cell(clock(entry.at), "dim")
        if isinstance(entry, Remark):
            return [at, Cell(own("")), Cell(join([own("― "), told(entry.text, 300)]), _REMARKS.get(entry.kind, "warn"))]
        facts = self._facts.of(entry)
        return [
            at,
            Cell(own("") if entry.sequence is None else own(str(entry.sequence)), "dim"),
            Cell(_short(flagged(line(entry.subject, 256), entry.subject if facts.changed else None)), "accent"),
            Cell(line(facts.node, 64) or UNKNOWN, "dim"),
            facts.summary,
        ]


def _short(subject: Safe) -> Safe:
    """As long as its column; live subjects end in the node, which has a column of its own."""
    return (cut if _LIVE in subject else cut_middle)(subject, SUBJECT)


def clock(at: datetime) -> Safe:
    """The time of day on the clock of this machine, to the millisecond."""
    try:
        local = at.astimezone()
    except (OverflowError, ValueError, OSError):
        return UNKNOWN
    return own(f"{local.hour:02}:{local.minute:02}:{local.second:02}.{local.microsecond // 1000:03}")


def heading(reader: EventReader, log: EventLog, store: RunStore, key: Key, width: int) -> list[Line]:
    """Two lines: what is read and whether it goes on, and what came of it."""
    link, tone = LINKS[store.link.status]
    above = [
        [Cell(own("Events"), "head")],
        [reading(reader, key)],
        *_view(reader.view),
        [Cell(join([own("holds "), line(" ".join(log.words), 60)]), "accent")] if log.words else [],
        [Cell(link, tone)],
        [Cell(told(store.link.address, 60), "dim")] if store.link.address else [],
    ]
    return [joined(above, width), joined(list(_numbers(log, store)), width)]


def reading(reader: EventReader, key: Key) -> Cell:
    """Whether what comes is shown, and how much of it waits."""
    waits = "" if reader.behind is None else f", {quantity(reader.behind)} wait"
    if reader.paused:
        return Cell(own(f"‖ paused{waits}"), "warn")
    if reader.view.is_history:
        return Cell(own(f"◂ history{waits}"), "accent")
    if reader.suspended:
        return Cell(own("‖ waits for this screen"), "warn")
    if not reader.reads:
        return Cell(join([own(f"‖ full{waits}; "), line(key("list.bottom"), 20), own(" goes on")]), "warn")
    return Cell(own("● live"), "good")


def _view(view: EventView) -> Iterator[Line]:
    if view.patterns != EVERYTHING:
        yield [Cell(line(" ".join(view.patterns), 60), "accent")]
    if view.episode:
        yield [Cell(join([own("episode "), line(view.episode, 40)]), "accent")]
    if view.is_history:
        yield [Cell(join([own("from "), start_text(view)]))]


def start_text(view: EventView) -> Safe:
    """Where it begins."""
    match view.start:
        case datetime():
            return own(f"{view.start.astimezone():%Y-%m-%d %H:%M:%S}")
        case int():
            return own(f"#{view.start}")
    return own("the beginning" if view.start == "all" else "now")


def _numbers(log: EventLog, store: RunStore) -> Iterator[Line]:
    yield [Cell(counted(log.n_seen, "message"))]
    if rate := per_second(log.subjects.rate):
        yield [Cell(rate, "accent")]
    yield [Cell(own(f"lag {quantity(log.lag)}"), "warn" if log.lag > 1_000 else "dim")]
    for n, what in ((log.n_gap, "in gaps"), (log.n_skipped, "skipped"), (store.n_malformed, "malformed")):
        yield [Cell(own(f"{quantity(n)} {what}"), "warn" if n else "dim")]
    yield from _clocks(log)
    if log.n_gone:
        yield [Cell(own(f"the newest {quantity(len(log))} kept"), "dim")]
    yield [Cell(counted(len(log.subjects), "subject"), "dim")]


def _clocks(log: EventLog) -> Iterator[Line]:
    """The clock that differs most."""
    for skew in log.clocks.skews[:1]:
        is_off, sender = abs(skew.ahead_s) >= _SKEW, line(skew.sender or "?", 24)
        late = " or late" if skew.ahead_s <= -_SKEW else ""
        seconds = round(min(max(skew.ahead_s, -1e9), 1e9), 1) + 0.0
        yield [Cell(join([own("clock "), sender, own(f" {seconds:+.1f} s{late}")]), "warn" if is_off else "dim")]


def about(entry: LogEntry | None, view: str) -> Line:
    """What one entry is, beside its text in a view."""
    if not isinstance(entry, Message):
        return []
    trouble = trouble_of(entry)
    size = size_of(entry, view)
    if not trouble:
        return [size]
    return [size, Cell(own(" ")), Cell(join([own("✗ malformed: "), line(trouble, 120)]), "bad")]


def no_events(reader: EventReader, log: EventLog, store: RunStore, key: Key, width: int) -> list[Line]:
    """What to say in the place of an empty list."""
    if log.words:
        what = f"None of {counted(len(log), 'message')} holds "
        return [
            [Cell(own(what), "head"), Cell(line(" ".join(log.words), 60), "accent")],
            _press(key("events.clear"), "shows all again"),
        ]
    if store.link.status != "connected":
        cause = [[Cell(own("  ")), Cell(row, "dim")] for row in wrapped(told(store.link.cause, 400), width - 2, 4)]
        return [[Cell(own("No way to the bus yet."), "head")], *(cause if store.link.cause else [])]
    subjects = line(" ".join(reader.view.patterns), 60)
    return [
        [Cell(own("Nothing was said so far on "), "head"), Cell(subjects, "accent")],
        _press(key("events.go_to"), "goes back in the history of the streams: a sequence, a time, 10m, all"),
        _press(key("events.subject"), "other subjects, with * and >"),
    ]


def _press(key: str, what: str) -> Line:
    return [Cell(own(f"  {line(key, 20):<4} "), "accent"), Cell(own(what))]
