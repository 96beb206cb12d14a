"""A log as lines of safe text: what each of its lines says, how much of it was read, and what became of the file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from agentgym_tui.logs.log_file import LineIndex, LogFile, ReloadReason
from agentgym_tui.logs.log_record import MAX_PARSED_BYTES, parse_record
from agentgym_tui.logs.log_search import MAX_MATCHES, LogSearch
from agentgym_tui.presenters.cells import UNSAFE_BADGE, Cell, Column, Line, Tone, flag_unsafe, join_parts, masked_line
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent, format_size, pluralize
from agentgym_tui.presenters.payload import payload_size
from agentgym_tui.presenters.text_width import cut_start, wrap_text
from agentgym_tui.safe_text import SafeText, has_unsafe_chars, join, sanitize_line, trusted
from agentgym_tui.state.event_log import EventMessage, LogEntry

LOG_COLUMNS: Final = (
    Column("line", 11, right=True),
    Column("time", 18, rank=1),
    Column("kind", 14, rank=2),
    Column("says", None, min_width=34),
)
MAX_SHOWN: Final = 400
"""Characters of a line in its row."""

MAX_CACHED: Final = 1_000
_MAX_NAME: Final = 60
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys(("error", "critical", "fatal"), "bad"),
    **dict.fromkeys(("warning", "warn"), "warn"),
}
_RELOAD_TEXTS: Final[dict[ReloadReason, str]] = {
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
        """How many there were when ``refresh`` was called."""
        return self._n

    def refresh(self) -> None:
        """Take in how far the log was read and searched."""
        if self._index is not self.log.index:
            self._index = self.log.index
            self._known.clear()
        if self.search is None:
            self._n = len(self.log.index)
        else:
            self._last = self.search.partial_match
            self._n = len(self.search.matches) + (self._last is not None)

    def number(self, row: int) -> int:
        """The line of a row, from 0."""
        if self.search is None:
            return row
        if row < len(self.search.matches):
            return self.search.matches[row]
        return self._last or 0

    def row(self, number: int) -> int:
        """The row of a line, else of the next one that is shown, else the last one."""
        if self.search is None:
            return min(number, max(self._n - 1, 0))
        return min(bisect_left(self.search.matches, number), max(self._n - 1, 0))

    def key(self, index: int) -> str:
        """The number."""
        return str(self.number(index))

    def row_of(self, key: str) -> int | None:
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
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[number] = made
        return made


class LogViewState(NamedTuple):
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


def line_message(log: LogFile, number: int) -> EventMessage:
    """All of a line that is looked at, as the payload of a message."""
    found = log.line(number)
    at = parse_record(found.head).at or _NO_TIME
    return EventMessage(number, at, "", {}, found.head, found.n_bytes)


def line_info(entry: LogEntry | None, view: str) -> Line:
    """What is said beside the views of the selected line, of which this one is shown."""
    return [payload_size(entry, view)] if isinstance(entry, EventMessage) else []


def log_heading(state: LogViewState, width: int) -> list[Line]:
    """Two lines: what is looked at, and what is known of it."""
    log, search = state.rows.log, state.rows.search
    number, n_logs = state.place
    above: list[Line] = [
        *log_name_parts(log, width),
        [Cell(trusted(f"{number + 1} of {n_logs}"), "dim")] if n_logs > 1 else [],
        [_reading_state(state)],
        _search_parts(search),
    ]
    return [join_parts(above, width), join_parts(list(_detail_parts(state)), width)]


def log_name_parts(log: LogFile, width: int) -> list[Line]:
    """What is looked at."""
    name = cut_start(masked_line(log.path, 300), min(max(width // 2, 20), 2 * _MAX_NAME))
    return [[Cell(trusted("Log"), "head")], [Cell(name, "accent")]]


def empty_log_lines(state: LogViewState, width: int) -> list[Line]:
    """What to say in the place of an empty list."""
    log, search = state.rows.log, state.rows.search
    if log.failure:
        cause = wrap_text(masked_line(f"{log.path}: {log.failure}", 600), max(width - 2, 20), 4)
        head: Line = [Cell(trusted("This log cannot be read."), "bad")]
        return [head, *([Cell(trusted("  ")), Cell(row, "dim")] for row in cause)]
    if search is not None:
        words = sanitize_line(" ".join(search.words), _MAX_NAME)
        what = trusted("No line holds " if _is_search_complete(log, search) else "No line so far holds ")
        return [
            [Cell(what, "head"), Cell(words, "accent")],
            [Cell(trusted(f"  {state.key('log.clear')} "), "accent"), Cell(trusted("shows all again"))],
        ]
    return [[Cell(trusted("Nothing is in it so far; what is written into it comes here."), "head")]]


def _row(log: LogFile, number: int) -> Line:
    found = log.line(number, MAX_PARSED_BYTES)
    facts = parse_record(found.head)
    text = found.head[: 4 * MAX_SHOWN].decode("utf-8", "replace")[:MAX_SHOWN]
    tone = _TONES.get(facts.kind.lower(), "accent" if facts.kind else "dim")
    return [
        Cell(trusted(f"{number + 1:,}"), "dim"),
        Cell(format_date_time(facts.at), "dim"),
        Cell(sanitize_line(facts.kind, 40) or UNKNOWN, tone),
        Cell(flag_unsafe(sanitize_line(text, MAX_SHOWN), text if has_unsafe_chars(text) else None)),
    ]


def format_date_time(at: datetime | None) -> SafeText:
    """Day and time on the clock of this machine, to the millisecond."""
    try:
        local = at.astimezone() if at is not None else None
    except (OverflowError, ValueError, OSError):
        local = None
    return UNKNOWN if local is None else trusted(f"{local:%m-%d %H:%M:%S}.{local.microsecond // 1000:03}")


def _reading_state(state: LogViewState) -> Cell:
    """Whether it is being read, and whether its end is shown."""
    log = state.rows.log
    if log.failure:
        return Cell(trusted("✗ cannot be read"), "bad")
    if not log.is_complete:
        done = format_percent(100 * log.index.size / log.size if log.size else None)
        pace = f", {format_size(round(state.per_second))}/s" if state.per_second else ""
        return Cell(trusted(f"reading {done}{pace}"), "warn")
    if state.following:
        return Cell(trusted("● follows its end"), "good")
    return Cell(trusted(f"{state.key('list.bottom')} follows its end"), "dim")


def _search_parts(search: LogSearch | None) -> Line:
    if search is None:
        return []
    return [Cell(join([trusted("holds "), sanitize_line(" ".join(search.words), _MAX_NAME)]), "accent")]


def _detail_parts(state: LogViewState) -> Iterator[Line]:
    log, search = state.rows.log, state.rows.search
    yield [Cell(pluralize(len(log.index), "line"))]
    yield [Cell(format_size(log.size), "dim")]
    if search is not None:
        yield [_match_count(log, search, len(state.rows))]
    if state.is_hostile:
        yield [UNSAFE_BADGE]
    if log.reload_reason:
        yield [Cell(trusted(_RELOAD_TEXTS[log.reload_reason]), "warn")]
    if log.replaced:
        yield [Cell(trusted(f"another file has its name now: {state.key('log.reload')}"), "warn")]
    if log.deleted:
        yield [Cell(trusted("no file has its name any more"), "warn")]


def _match_count(log: LogFile, search: LogSearch, n: int) -> Cell:
    if search.is_full:
        return Cell(trusted(f"the first {MAX_MATCHES:,} matches"), "warn")
    if _is_search_complete(log, search):
        return Cell(trusted(f"{n:,} match"), "accent")
    return Cell(
        trusted(f"{n:,} match so far, {format_percent(100 * search.position / max(log.size, 1))} searched"), "warn"
    )


def _is_search_complete(log: LogFile, search: LogSearch) -> bool:
    return log.is_complete and search.is_complete and not search.is_stale
