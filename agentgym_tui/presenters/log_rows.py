"""A log as lines of safe text: what each of its lines says, how much of it was read, and what became of the file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from agentgym_tui.logs.line_index import LineIndex
from agentgym_tui.logs.log_file import Anew, LogFile
from agentgym_tui.logs.log_record import MAX_READ, facts_of
from agentgym_tui.logs.log_search import MAX_FOUND, LogSearch
from agentgym_tui.presenters.cells import BADGE, Cell, Column, Line, Tone
from agentgym_tui.presenters.number_format import UNKNOWN, byte_size, counted, percent
from agentgym_tui.presenters.payload import size_of
from agentgym_tui.presenters.segments import flagged, joined, told
from agentgym_tui.presenters.text_width import cut_start, wrapped
from agentgym_tui.safe_text import Safe, is_hostile, join, line, own
from agentgym_tui.state.bus_message import LogEntry, Message

LOG_COLUMNS: Final = (
    Column("line", 11, right=True),
    Column("time", 18, rank=1),
    Column("kind", 14, rank=2),
    Column("says", None, least=34),
)
SHOWN: Final = 400
"""Characters of a line in its row."""

MAX_KNOWN: Final = 1_000
_NAME: Final = 60
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys(("error", "critical", "fatal"), "bad"),
    **dict.fromkeys(("warning", "warn"), "warn"),
}
_ANEW: Final[dict[Anew, str]] = {
    "shorter": "it became shorter and is read anew",
    "changed": "it was written over and is read anew",
}


class LogRows:
    """A log, or those of its lines that were found, as rows of ``LOG_COLUMNS``; the keys are the numbers of the lines.

    Args:
        log: what is shown.
        search: what was looked for; None for all lines.
    """

    def __init__(self, log: LogFile, search: LogSearch | None = None) -> None:
        self.log, self.search = log, search
        self._n = 0
        self._last: int | None = None
        self._index: LineIndex | None = None
        self._known: dict[int, Line] = {}

    def __len__(self) -> int:
        """How many there were when ``take`` was called."""
        return self._n

    def take(self) -> None:
        """Take in how far the log was read and searched."""
        if self._index is not self.log.index:
            self._index = self.log.index
            self._known.clear()
        if self.search is None:
            self._n = len(self.log.index)
        else:
            self._last = self.search.last
            self._n = len(self.search.found) + (self._last is not None)

    def number(self, row: int) -> int:
        """The line of a row, from 0."""
        if self.search is None:
            return row
        if row < len(self.search.found):
            return self.search.found[row]
        return self._last or 0

    def row(self, number: int) -> int:
        """The row of a line, else of the next one that is shown, else the last one."""
        if self.search is None:
            return min(number, max(self._n - 1, 0))
        return min(bisect_left(self.search.found, number), max(self._n - 1, 0))

    def key(self, index: int) -> str:
        """The number."""
        return str(self.number(index))

    def place(self, key: str) -> int | None:
        """The row of a key, None where it is not shown."""
        row = self.row(int(key))
        return row if row < self._n and self.number(row) == int(key) else None

    def line(self, index: int, width: int) -> Line:
        """A cell per column."""
        number = self.number(index)
        if (known := self._known.get(number)) is not None:
            return known
        made = _row(self.log, number)
        if number < self.log.index.n_newlines:  # else it may go on
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[number] = made
        return made


class LogState(NamedTuple):
    """What is said above a log.

    Attributes:
        key: gives what is pressed for a command.
        place: which of the opened logs it is, from 0, and how many there are.
        following: its end is shown, and what comes.
        per_second: bytes that are read, while they are.
        is_hostile: cleaning changed something of the selected line.
    """

    rows: LogRows
    key: Callable[[str], str]
    place: tuple[int, int] = (0, 1)
    following: bool = False
    per_second: float = 0.0
    is_hostile: bool = False


def message_of(log: LogFile, number: int) -> Message:
    """All of a line that is looked at, as the payload of a message."""
    found = log.line(number)
    at = facts_of(found.head).at or _NO_TIME
    return Message(number, at, "", {}, found.head, found.n_bytes)


def about(entry: LogEntry | None, view: str) -> Line:
    """What is said beside the views of the selected line, of which this one is shown."""
    return [size_of(entry, view)] if isinstance(entry, Message) else []


def heading(state: LogState, width: int) -> list[Line]:
    """Two lines: what is looked at, and what is known of it."""
    log, search = state.rows.log, state.rows.search
    number, n_logs = state.place
    above: list[Line] = [
        *named(log, width),
        [Cell(own(f"{number + 1} of {n_logs}"), "dim")] if n_logs > 1 else [],
        [_reading(state)],
        _search(search),
    ]
    return [joined(above, width), joined(list(_about(state)), width)]


def named(log: LogFile, width: int) -> list[Line]:
    """What is looked at."""
    name = cut_start(told(log.path, 300), min(max(width // 2, 20), 2 * _NAME))
    return [[Cell(own("Log"), "head")], [Cell(name, "accent")]]


def no_lines(state: LogState, width: int) -> list[Line]:
    """What to say in the place of an empty list."""
    log, search = state.rows.log, state.rows.search
    if log.failure:
        cause = wrapped(told(f"{log.path}: {log.failure}", 600), max(width - 2, 20), 4)
        head: Line = [Cell(own("This log cannot be read."), "bad")]
        return [head, *([Cell(own("  ")), Cell(row, "dim")] for row in cause)]
    if search is not None:
        words = line(" ".join(search.words), _NAME)
        what = own("No line holds " if _searched(log, search) else "No line so far holds ")
        return [
            [Cell(what, "head"), Cell(words, "accent")],
            [Cell(own(f"  {state.key('log.clear')} "), "accent"), Cell(own("shows all again"))],
        ]
    return [[Cell(own("Nothing is in it so far; what is written into it comes here."), "head")]]


def _row(log: LogFile, number: int) -> Line:
    found = log.line(number, MAX_READ)
    facts = facts_of(found.head)
    text = found.head[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
    tone = _TONES.get(facts.kind.lower(), "accent" if facts.kind else "dim")
    return [
        Cell(own(f"{number + 1:,}"), "dim"),
        Cell(moment(facts.at), "dim"),
        Cell(line(facts.kind, 40) or UNKNOWN, tone),
        Cell(flagged(line(text, SHOWN), text if is_hostile(text) else None)),
    ]


def moment(at: datetime | None) -> Safe:
    """Day and time on the clock of this machine, to the millisecond."""
    try:
        local = at.astimezone() if at is not None else None
    except (OverflowError, ValueError, OSError):
        local = None
    return UNKNOWN if local is None else own(f"{local:%m-%d %H:%M:%S}.{local.microsecond // 1000:03}")


def _reading(state: LogState) -> Cell:
    """Whether it is being read, and whether its end is shown."""
    log = state.rows.log
    if log.failure:
        return Cell(own("✗ cannot be read"), "bad")
    if not log.complete:
        done = percent(100 * log.index.size / log.size if log.size else None)
        pace = f", {byte_size(round(state.per_second))}/s" if state.per_second else ""
        return Cell(own(f"reading {done}{pace}"), "warn")
    if state.following:
        return Cell(own("● follows its end"), "good")
    return Cell(own(f"{state.key('list.bottom')} follows its end"), "dim")


def _search(search: LogSearch | None) -> Line:
    if search is None:
        return []
    return [Cell(join([own("holds "), line(" ".join(search.words), _NAME)]), "accent")]


def _about(state: LogState) -> Iterator[Line]:
    log, search = state.rows.log, state.rows.search
    yield [Cell(counted(len(log.index), "line"))]
    yield [Cell(byte_size(log.size), "dim")]
    if search is not None:
        yield [_found(log, search, len(state.rows))]
    if state.is_hostile:
        yield [BADGE]
    if log.anew:
        yield [Cell(own(_ANEW[log.anew]), "warn")]
    if log.replaced:
        yield [Cell(own(f"another file has its name now: {state.key('log.reload')}"), "warn")]
    if log.gone:
        yield [Cell(own("no file has its name any more"), "warn")]


def _found(log: LogFile, search: LogSearch, n: int) -> Cell:
    if search.full:
        return Cell(own(f"the first {MAX_FOUND:,} matches"), "warn")
    if _searched(log, search):
        return Cell(own(f"{n:,} match"), "accent")
    return Cell(own(f"{n:,} match so far, {percent(100 * search.position / max(log.size, 1))} searched"), "warn")


def _searched(log: LogFile, search: LogSearch) -> bool:
    return log.complete and search.complete and not search.stale
