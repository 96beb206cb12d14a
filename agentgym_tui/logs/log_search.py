"""Searches a log file: piece by piece for the lines that match a query, or for the line at a given time."""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from agentgym_tui.logs.log_file import BUDGET_S, MAX_LINE_BYTES, NEWLINE, LogFile
from agentgym_tui.logs.log_record import MAX_PARSED_BYTES, LogRecord, parse_record
from agentgym_tui.state.payload_search import Words, json_columns
from agentgym_tui.state.query import FieldSet, Query

MAX_MATCHES: Final = 2_000_000
"""Largest number of matching lines kept; each takes eight bytes."""

MAX_UNTIMED_LINES: Final = 500
"""Number of consecutive lines without a time after which a search for a time gives up."""


class LogSearch:
    """Finds the lines of a log that match a query.

    Lines that lack a required word are skipped without being decoded.

    Args:
        log: the log to search.
        query: the query, which splits off its words; not empty and without an error.
        piece: number of bytes searched at once. Of a line longer than ``piece``, only the first ``piece`` bytes are
            searched.

    Attributes:
        query: the query.
        matches: numbers of the matching lines in ascending order; numbers are only appended.
        partial_match: number of the last line of the log where that line matches and has no newline yet; else None.
        position: number of bytes searched, up to the end of a line.
        is_full: whether the search has ended at ``MAX_MATCHES`` lines; more lines may match.
    """

    def __init__(self, log: LogFile, query: Query[bytes], *, piece: int = MAX_LINE_BYTES) -> None:
        self._piece = piece
        self.query = query
        self.matches = array("Q")
        self.position = 0
        self.is_full = False
        self._log, self._index = log, log.index
        self._first, *self._others = sorted(Words(query.words).needles, key=_search_time) or [(b"",)]
        self._pattern = re.compile(b"|".join(map(re.escape, self._first)))
        self.partial_match: int | None = None
        self._line_number = self._n_tail_bytes = 0

    @property
    def is_stale(self) -> bool:
        """Whether the log has been read again from its start since the search began."""
        return self._log.index is not self._index

    @property
    def is_complete(self) -> bool:
        """Whether the search has reached ``MAX_MATCHES`` lines or the end of the part that the log has read."""
        return self.is_full or self.position + self._n_tail_bytes >= self._index.size

    def advance(self, budget_s: float = BUDGET_S) -> bool:
        """Continue the search for up to ``budget_s`` seconds; return whether unsearched bytes are left."""
        deadline = time.monotonic() + budget_s
        if self._index.size > self.position + self._n_tail_bytes:
            self.partial_match, self._n_tail_bytes = None, 0
        while not (self.is_stale or self.is_complete):
            self._search_piece()
            if time.monotonic() >= deadline:
                break
        return not (self.is_stale or self.is_complete)

    def _search_piece(self) -> None:
        """Search the complete lines of the next piece; where no line is complete, search only the start of the line."""
        n_left = self._index.size - self.position
        data = self._log.read(self.position, min(self._piece, n_left))
        end = data.rfind(NEWLINE) + 1
        if end:
            self._search_lines(data[:end])
        else:
            self._search_long_line(data)

    def _search_lines(self, raw: bytes) -> None:
        data, at = raw.lower(), 0
        while at < len(data) and (hit := self._find_first(data, at)) >= 0:
            start, stop = max(data.rfind(NEWLINE, at, hit) + 1, at), data.find(NEWLINE, hit)
            self._line_number += data.count(NEWLINE, at, start)
            is_match = all(any(data.find(form, start, stop) >= 0 for form in forms) for forms in self._others)
            if is_match and self._matches(raw, start, stop) and not self._add_match(self._line_number):
                return
            self._line_number, at = self._line_number + 1, stop + 1
        self._line_number += data.count(NEWLINE, at)
        self.position += len(data)

    def _find_first(self, data: bytes, start: int) -> int:
        if len(self._first) == 1:
            return data.find(self._first[0], start)
        match = self._pattern.search(data, start)
        return match.start() if match else -1

    def _matches(self, raw: bytes, start: int, stop: int) -> bool:
        return not self.query.has_rest or self.query.matches(raw[start:stop].removesuffix(b"\r"))

    def _search_long_line(self, raw: bytes) -> None:
        data = raw.lower()
        is_match = all(any(form in data for form in forms) for forms in (self._first, *self._others))
        is_match = is_match and self._matches(raw, 0, len(raw))
        if self._line_number >= self._index.n_newlines:
            self.partial_match = self._line_number if is_match else None
            self._n_tail_bytes = self._index.size - self.position
        elif not is_match or self._add_match(self._line_number):
            self._line_number += 1
            self.position = self._log.line_start(self._line_number, self._index)

    def _add_match(self, number: int) -> bool:
        self.is_full = len(self.matches) >= MAX_MATCHES
        if not self.is_full:
            self.matches.append(number)
        return not self.is_full


def _parsed_part(line: bytes) -> bytes:
    return line if len(line) <= MAX_PARSED_BYTES else b""


@lru_cache(maxsize=1)  # for the other fields of the same line
def _record(line: bytes) -> LogRecord:
    return parse_record(line[: MAX_PARSED_BYTES + 1])


LOG_FIELDS: Final[FieldSet[bytes]] = FieldSet(
    ("level", "text", "level, or kind of a line without one", lambda line: _record(line).kind),
    ("logger", "text", "logger", lambda line: _record(line).logger),
    ("since", "since", "written since an age or a time: 5m, 2h, 2026-11-26", lambda line: _record(line).at),
    ("until", "until", "written until then", lambda line: _record(line).at),
    *json_columns(_parsed_part),
    values={"level": ("error", "warning", "info", "debug")},
)
"""The fields of a line, given as its bytes without the newline."""


def line_query(text: str) -> Query[bytes]:
    """Return a query of lines, for ``LogSearch``."""
    return Query(LOG_FIELDS, text, word_test=_word_test, splits=True)


def _word_test(word: str) -> Callable[[bytes], bool]:
    words = Words([word])
    return lambda line: words.found_in((line,))


def _search_time(forms: Sequence[bytes]) -> tuple[int, int]:
    """Return a sort key: one form is found faster than two, and a longer one faster than a shorter one."""
    return len(forms), -len(forms[0])


def find_line_at(log: LogFile, at: datetime) -> int | None:
    """Return the number of the first line whose time is not before ``at``, by binary search.

    The lines must be sorted by time. Where all times are before ``at``, return the number of the last line. Return None
    where no time is found.
    """
    low, high, match = 0, len(log.index), None
    while low < high:
        middle = (low + high) // 2
        timed = _first_time(log, range(middle, high))
        if timed is None:
            high = middle
            continue
        number, line_at = timed
        if line_at < at:
            low = number + 1
        else:
            match, high = number, middle
    return match if match is not None else _last_line_if_timed(log)


def _first_time(log: LogFile, numbers: Sequence[int]) -> tuple[int, datetime] | None:
    """Return number and time of the first of these lines that has a time; ``MAX_UNTIMED_LINES`` lines are examined."""
    for line in numbers[:MAX_UNTIMED_LINES]:
        if (at := parse_record(log.line(line, MAX_PARSED_BYTES).head).at) is not None:
            return line, at
    return None


def find_last_time(log: LogFile) -> datetime | None:
    """Return the time of the last line that has a time; None if the last MAX_UNTIMED_LINES lines have none."""
    timed = _first_time(log, range(len(log.index))[::-1])
    return timed[1] if timed is not None else None


def _last_line_if_timed(log: LogFile) -> int | None:
    return len(log.index) - 1 if find_last_time(log) is not None else None
