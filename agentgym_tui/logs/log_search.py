"""Lines of a log that hold some words, and those of some time: looked for piece by piece, as far as it was read."""

from __future__ import annotations

import time
from array import array
from datetime import datetime
from typing import Final

from agentgym_tui.logs.log_file import BUDGET_S, MAX_LINE_BYTES, NEWLINE, LogFile
from agentgym_tui.logs.log_record import MAX_PARSED_BYTES, parse_record

MAX_MATCHES: Final = 2_000_000
"""Lines that are kept, eight bytes each."""

MAX_UNTIMED_LINES: Final = 500
"""Lines in a row without a time, after which a part of a log counts as having none."""


class LogSearch:
    """Finds the lines that hold all words, ASCII in any case.

    Args:
        log: where to look.
        text: words with blanks between them, one at least.
        piece: bytes that are searched in one go, and of a line that is longer.

    Attributes:
        words: in small letters.
        found: the numbers of the lines, from the first one on; grows only.
        last: the number of the last line, where it has no newline yet and holds them.
        position: bytes that were searched.
        full: there may be more than are kept.
    """

    def __init__(self, log: LogFile, text: str, *, piece: int = MAX_LINE_BYTES) -> None:
        self._piece = piece
        self.words = tuple(text.lower().split())
        self.matches = array("Q")
        self.position = 0
        self.is_full = False
        self._log, self._index = log, log.index
        self._first, *self._others = sorted((word.encode("utf-8", "replace") for word in self.words), key=len)[::-1]
        self.partial_match: int | None = None
        self._line_number = self._n_tail_bytes = 0

    @property
    def is_stale(self) -> bool:
        """Whether the log was read anew since."""
        return self._log.index is not self._index

    @property
    def is_complete(self) -> bool:
        """Whether all was searched that was read so far."""
        return self.is_full or self.position + self._n_tail_bytes >= self._index.size

    def advance(self, budget_s: float = BUDGET_S) -> bool:
        """Search on for a while; whether there is more to search now."""
        deadline = time.monotonic() + budget_s
        if self._index.size > self.position + self._n_tail_bytes:
            self.partial_match, self._n_tail_bytes = None, 0
        while not (self.is_stale or self.is_complete):
            self._search_piece()
            if time.monotonic() >= deadline:
                break
        return not (self.is_stale or self.is_complete)

    def _search_piece(self) -> None:
        """The lines that are whole in the next piece, or one that is longer than it."""
        room = self._index.size - self.position
        data = self._log.read(self.position, min(self._piece, room)).lower()
        end = data.rfind(NEWLINE) + 1
        if end:
            self._search_lines(data[:end])
        else:
            self._search_long_line(data)

    def _search_lines(self, data: bytes) -> None:
        at = 0
        while (hit := data.find(self._first, at)) >= 0:
            start, stop = max(data.rfind(NEWLINE, at, hit) + 1, at), data.find(NEWLINE, hit)
            self._line_number += data.count(NEWLINE, at, start)
            if all(data.find(word, start, stop) >= 0 for word in self._others) and not self._add_match(self._line_number):
                return
            self._line_number, at = self._line_number + 1, stop + 1
        self._line_number += data.count(NEWLINE, at)
        self.position += len(data)

    def _search_long_line(self, data: bytes) -> None:
        holds = self._first in data and all(word in data for word in self._others)
        if self._line_number >= self._index.n_newlines:
            self.partial_match = self._line_number if holds else None
            self._n_tail_bytes = self._index.size - self.position
        elif not holds or self._add_match(self._line_number):
            self._line_number += 1
            self.position = self._log.line_start(self._line_number, self._index)

    def _add_match(self, number: int) -> bool:
        self.is_full = len(self.matches) >= MAX_MATCHES
        if not self.is_full:
            self.matches.append(number)
        return not self.is_full


def find_line_at(log: LogFile, at: datetime) -> int | None:
    """The first line of a time or later, of a log whose lines are in the order of their times; None without any."""
    low, high, found = 0, len(log.index), None
    while low < high:
        middle = (low + high) // 2
        timed = find_timed_line(log, middle, high)
        if timed is None:
            high = middle
            continue
        number, when = timed
        if when < at:
            low = number + 1
        else:
            found, high = number, middle
    return found if found is not None else _last_line_if_timed(log)


def find_timed_line(log: LogFile, number: int, stop: int) -> tuple[int, datetime] | None:
    """The first line from ``number`` on, before ``stop``, that says when, and what it says."""
    for each in range(number, min(stop, number + MAX_UNTIMED_LINES)):
        if (at := parse_record(log.line(each, MAX_PARSED_BYTES).head).at) is not None:
            return each, at
    return None


def find_last_time(log: LogFile) -> datetime | None:
    """The newest time that a line near the end says."""
    last = len(log.index) - 1
    for each in range(last, max(last - MAX_UNTIMED_LINES, -1), -1):
        if (at := parse_record(log.line(each, MAX_PARSED_BYTES).head).at) is not None:
            return at
    return None


def _last_line_if_timed(log: LogFile) -> int | None:
    """The last line, where any near the end says when: all are earlier than what is looked for."""
    return len(log.index) - 1 if find_last_time(log) is not None else None
