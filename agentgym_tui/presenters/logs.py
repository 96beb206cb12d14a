"""The log screen: an opened log as rows of a table, and its heading with the progress of reading and search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Final

from agentgym_tui.logs import (
    LOG_FIELDS,
    MAX_MATCHES,
    MAX_PARSED_BYTES,
    LineIndex,
    LogFile,
    LogSearch,
    ReloadReason,
    line_query,
    parse_record,
)
from agentgym_tui.presenters.cells import (
    Cell,
    Column,
    Line,
    Tone,
    cut_start,
    filter_cells,
    indented_rows,
    join_parts,
    key_line,
)
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent, format_size, format_time, pluralize
from agentgym_tui.presenters.payload import payload_size
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.event_log import EventMessage, LogEntry
from agentgym_tui.state.query import Query, Searchable
from runner.util.clock import EPOCH

LOG_COLUMNS: Final = (
    Column("line", 9, right=True, rank=3),
    Column("time", 18, rank=1, most=18),
    Column("kind", 14, rank=2),
    Column("message", None, min_width=50),
)
MAX_SHOWN: Final = 400
MAX_CACHED: Final = 1_000
MAX_OFFERED: Final = 200
_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys(("error", "critical", "fatal"), "bad"),
    **dict.fromkeys(("warning", "warn"), "warn"),
}
_RELOAD_TEXTS: Final[dict[ReloadReason, str]] = {
    "shorter": "file shrank and was reloaded",
    "changed": "file was overwritten and reloaded",
}


class OpenedLog(Searchable[bytes]):
    """An opened log as rows of ``LOG_COLUMNS``: its lines, or only those that match a search, as of ``refresh``.

    The key of a row is its line number, counted from 0.
    """

    def __init__(self, log: LogFile) -> None:
        super().__init__(LOG_FIELDS)
        self.log = log
        self.found: LogSearch | None = None
        self.in_context = False  # whether all lines are shown in spite of a search
        self.follow = False
        self.line_number = 0  # that under the cursor when another log was shown
        self._n_rows = 0
        self._partial_match: int | None = None
        self._index: LineIndex | None = None
        self._cached_row = lru_cache(MAX_CACHED)(partial(_row, log))

    def __len__(self) -> int:
        return self._n_rows

    def refresh(self) -> None:
        if self._index is not self.log.index:
            self._index = self.log.index
            self._cached_row.cache_clear()
        if self.found is not None:
            if self.found.is_stale:
                self.show_matches()
            self._partial_match = self.found.partial_match
        self._n_rows = len(self.log.index) if self._shows_all else self.n_matches

    @property
    def n_matches(self) -> int:
        return 0 if self.found is None else len(self.found.matches) + (self._partial_match is not None)

    @property
    def _shows_all(self) -> bool:
        return self.in_context or self.found is None

    def match(self, place: int) -> int:
        if self.found is not None and place < len(self.found.matches):
            return self.found.matches[place]
        return self._partial_match or 0

    def match_beyond(self, number: int, by: int) -> int | None:
        """Return the line number of the next (1) or previous (-1) match, around the end; None without a match."""
        if self.found is None or not self.n_matches:
            return None
        place = bisect_right(self.found.matches, number) if by > 0 else bisect_left(self.found.matches, number) - 1
        return self.match(place % self.n_matches)

    def number(self, row: int) -> int:
        return row if self._shows_all else self.match(row)

    def row(self, number: int) -> int:
        """Return the row of a line. If the line is not shown, return the row after it, or else the last row."""
        if self.found is not None and not self.in_context:
            number = bisect_left(self.found.matches, number)
        return min(number, max(self._n_rows - 1, 0))

    def key(self, index: int) -> str:
        return str(self.number(index))

    def row_of(self, key: str) -> int | None:
        row = self.row(int(key))
        return row if row < self._n_rows and self.number(row) == int(key) else None

    def line(self, index: int, width: int) -> Line:
        number = self.number(index)
        is_complete = number < self.log.index.n_newlines  # an incomplete last line may still grow
        return self._cached_row(number) if is_complete else _row(self.log, number)

    def message(self, index: int) -> EventMessage:
        """Return the line in a row as a message whose payload is that line, for the payload view."""
        number = self.number(index)
        raw_line = self.log.line(number)
        at = parse_record(raw_line.head).at or EPOCH
        return EventMessage(number, at, "", {}, raw_line.head, raw_line.n_bytes)

    def sample_rows(self) -> Iterator[bytes]:
        newest = range(len(self.log.index))[-MAX_OFFERED:]
        return (self.log.line(number, MAX_PARSED_BYTES).head for number in newest)

    def parse(self, text: str) -> Query[bytes]:
        return line_query(text)

    def show_matches(self) -> None:
        self.found = LogSearch(self.log, self.query) if self.query else None
        self._partial_match = None
        self.in_context = False

    def advance(self) -> bool:
        """Read and search for a short time; return whether lines are left to read or search."""
        more = self.log.advance()
        if (search := self.found) is None:
            return more
        return (not search.is_stale and search.advance()) or more

    @property
    def is_searched(self) -> bool:
        """Whether the search has seen all lines of the file."""
        search = self.found
        return search is None or (self.log.is_complete and search.is_complete and not search.is_stale)

    @property
    def signature(self) -> tuple[object, ...]:
        """A value that changes with everything that is shown of the log."""
        log, search = self.log, self.found
        found = search and (search.position, len(search.matches), search.partial_match, search.is_stale)
        state = (log.index, log.index.size, log.size, log.failure, log.replaced, log.deleted)
        return (log, *state, search, found, self.in_context)


def _row(log: LogFile, number: int) -> Line:
    raw_line = log.line(number, MAX_PARSED_BYTES)
    record = parse_record(raw_line.head)
    text = raw_line.head[: 4 * MAX_SHOWN].decode("utf-8", "replace")
    if record.message:
        message = f"{record.logger}: {record.message}" if record.logger else record.message
        text = "  ".join((message, *record.fields))
    tone = _TONES.get(record.kind.lower(), "accent" if record.kind else "dim")
    return [
        Cell(f"{number + 1:,}" if number < 10**7 - 1 else str(number + 1), "dim"),
        Cell(format_time(record.at, "%m-%d %H:%M:%S", ms=True), "dim"),
        Cell(record.kind or UNKNOWN, tone),
        Cell(text[:MAX_SHOWN]),
    ]


def line_info(entry: LogEntry | None, view: str) -> Line:
    if not isinstance(entry, EventMessage):
        return []
    return [Cell(f"line {entry.number + 1:,} · ", "dim"), payload_size(entry, view)]


def log_heading(
    opened: OpenedLog,
    key: Callable[[str], str],
    width: int,
    *,
    position: tuple[int, int] = (0, 1),
    per_second: float = 0.0,
) -> list[Line]:
    """Return path and reading state, then search, counters and warnings; ``per_second`` are bytes being indexed."""
    index, n_logs = position
    number = [Cell(f"{index + 1} of {n_logs}", "dim")] if n_logs > 1 else []
    name = cut_start(masked_line(opened.log.path, 300), min(max(width // 2, 20), 120))
    above = [[Cell("Log", "head")], [Cell(name, "accent")], number, [_reading_state(opened, key, per_second)]]
    return [join_parts(above, width), join_parts(list(_detail_parts(opened, key, width)), width)]


def _reading_state(opened: OpenedLog, key: Callable[[str], str], per_second: float) -> Cell:
    log = opened.log
    if log.failure:
        return Cell("✗ cannot be read", "bad")
    if not log.is_complete:
        progress = format_percent(100 * log.index.size / log.size if log.size else None)
        rate = f", {format_size(round(per_second))}/s" if per_second else ""
        return Cell(f"reading {progress}{rate}", "warn")
    if opened.follow:
        return Cell("● following the end", "good")
    return Cell(f"{key('list.bottom')} follows the end", "dim")


def _detail_parts(opened: OpenedLog, key: Callable[[str], str], width: int) -> Iterator[Line]:
    log = opened.log
    if opened.found is not None:
        yield [Cell("matches ", "accent"), *filter_cells(opened.found.query.text, key("log.clear"), width)]
        yield [_match_count(opened, opened.found)]
    yield [Cell(pluralize(len(log.index), "line"))]
    yield [Cell(format_size(log.size), "dim")]
    if log.reload_reason:
        yield [Cell(_RELOAD_TEXTS[log.reload_reason], "warn")]
    if log.replaced:
        yield [Cell(f"replaced by another file: {key('log.reload')} reopens", "warn")]
    if log.deleted:
        yield [Cell("file was deleted", "warn")]
    if opened.n_matches:
        yield [Cell(f"{key('match.next')} {key('match.previous')}: next, among all lines", "dim")]


def _match_count(opened: OpenedLog, search: LogSearch) -> Cell:
    if search.is_full:
        return Cell(f"first {MAX_MATCHES:,} matches", "warn")
    if opened.is_searched:
        return Cell(f"{opened.n_matches:,} match", "accent")
    searched = format_percent(100 * search.position / max(opened.log.size, 1))
    return Cell(f"{opened.n_matches:,} match so far, {searched} searched", "warn")


def empty_log_lines(opened: OpenedLog, key: Callable[[str], str], width: int) -> list[Line]:
    log = opened.log
    if log.failure:
        cause = indented_rows(masked_line(f"{log.path}: {log.failure}", 600), width)
        return [[Cell("This log cannot be read.", "bad")], *cause]
    if opened.found is not None:
        head = "No line matches " if opened.is_searched else "No line so far matches "
        words = Cell(opened.found.query.text, "accent")
        return [[Cell(head, "head"), words], key_line(key("log.clear"), "shows all lines")]
    return [[Cell("Empty so far; new lines appear here.", "head")]]
