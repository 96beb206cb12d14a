"""Log files that may be huge and may grow, shrink or be replaced while they are shown: lines, records and search.

``LineIndex`` counts the newlines in each block of the file; ``LogFile`` reads the file piece by piece. The file is not
mapped into memory, because reading a mapped file that another process has truncated ends this process with SIGBUS.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.state.event_log import OBJECT_DECODER, Words, json_columns
from agentgym_tui.state.query import FieldSet, Query
from runner.events.codec import check_limits
from runner.util.clock import EPOCH

BLOCK_BYTES: Final = 1 << 14  # size of the blocks whose newlines are counted; to find a line, one of them is read
READ_BYTES: Final = 1 << 18
BUDGET_S: Final = 0.03  # for which a call reads or searches; then the caller can repaint
MAX_LINE_BYTES: Final = 1 << 20  # read of a line
MAX_PARSED_BYTES: Final = 64 << 10  # largest line that is parsed as JSON, in bytes; a longer line counts as plain text
MAX_MATCHES: Final = 2_000_000  # largest number of matching lines kept; each takes eight bytes
MAX_UNTIMED_LINES: Final = 500  # number of consecutive lines without a time after which a search for a time gives up
_NEWLINE: Final = b"\n"
_TAIL_BYTES: Final = 64  # at the indexed end of the file that are compared, to detect that it was overwritten

ReloadReason: TypeAlias = Literal["", "shorter", "changed"]


class LineIndex:
    """Index of the lines in the ``size`` bytes of a file that have been read; takes eight bytes of memory per block."""

    def __init__(self, block: int = BLOCK_BYTES) -> None:
        self.block = block
        self.size = self.n_newlines = 0
        self._newlines_before = array("Q")
        self._ends_with_newline = True

    def __len__(self) -> int:
        """Return the number of lines, including a last line that does not end with a newline yet."""
        return self.n_newlines + (not self._ends_with_newline)

    def add(self, data: bytes) -> None:
        """Index the bytes that follow the indexed ones in the file."""
        at = 0
        while at < len(data):
            n_free = self.block - self.size % self.block
            if n_free == self.block:
                self._newlines_before.append(self.n_newlines)
            stop = min(at + n_free, len(data))
            self.n_newlines += data.count(_NEWLINE, at, stop)
            self.size += stop - at
            at = stop
        if data:
            self._ends_with_newline = data.endswith(_NEWLINE)

    def locate(self, number: int) -> tuple[int, int]:
        """Return the block of the newline before line ``number`` (from 1), and its number there (from 0)."""
        block = bisect_left(self._newlines_before, number) - 1
        return block, number - 1 - self._newlines_before[block]


class LogLine(NamedTuple):
    """A line without its line break: its number from 0, its first bytes, and its full length."""

    number: int
    head: bytes
    n_bytes: int


class LogFile:
    """A log file that is read piece by piece.

    One thread calls ``advance`` repeatedly; any thread may read lines. When the file has to be read again from its
    start, ``index`` becomes a new object.
    """

    def __init__(self, path: Path, *, read_bytes: int = READ_BYTES, block: int = BLOCK_BYTES) -> None:
        self.path = path
        self.index = LineIndex(block)
        self.size = 0  # when the file was last checked
        self.failure = ""  # why the file cannot be read
        self.reload_reason: ReloadReason = ""  # why it was last read again from its start
        self.replaced = self.deleted = False  # whether ``path`` names another file, or none; the original is still read
        self._reading, self._lock = threading.Lock(), threading.Lock()
        self._descriptor: int | None = None
        self._read_bytes, self._tail, self._suspect = read_bytes, b"", False

    @property
    def is_complete(self) -> bool:
        return self._descriptor is not None and self.index.size >= self.size

    def advance(self, budget_s: float = BUDGET_S) -> bool:
        """Check the file for changes and read for up to ``budget_s`` seconds; return whether unread bytes are left."""
        deadline = time.monotonic() + budget_s
        with self._reading:
            try:
                self._check_file()
                while self.index.size < self.size and self._read_next() and time.monotonic() < deadline:
                    pass
            except OSError as exc:
                self.failure = exc.strerror or type(exc).__name__
                return False
            return self.index.size < self.size

    def reopen(self) -> None:
        """Close the file; the next ``advance`` opens the file that ``path`` names now and reads it from its start."""
        with self._reading:
            self.close()
            self._restart("")

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def line(self, number: int, limit: int = MAX_LINE_BYTES) -> LogLine:
        """Return a line, of which at most ``limit`` bytes are read; it is empty if the file no longer contains it."""
        index = self.index
        is_ended = number < index.n_newlines
        start, stop = self.line_start(number, index), self.line_start(number + 1, index) - is_ended
        head = self.read(start, min(stop - start, limit))
        n_bytes = max(stop - start, 0)
        if is_ended and len(head) == n_bytes and head.endswith(b"\r"):
            return LogLine(number, head[:-1], n_bytes - 1)
        return LogLine(number, head, n_bytes)

    def line_start(self, number: int, index: LineIndex | None = None) -> int:
        """Return the byte offset at which a line starts; past the last line, the end of the indexed bytes."""
        index = index or self.index
        if number <= 0:
            return 0
        if number > index.n_newlines:
            return index.size
        block, position = index.locate(number)
        start = block * index.block
        data = self.read(start, min(index.size - start, index.block))
        newlines = islice(re.finditer(_NEWLINE, data), position, None)
        if (newline := next(newlines, None)) is None:  # another process wrote into the middle of the file
            self._suspect = True
            return min(start + index.block, index.size)
        return start + newline.end()

    def read(self, start: int, n: int) -> bytes:
        """Return up to ``n`` bytes from the offset ``start``; none where the file cannot be read."""
        try:
            return self._pread(start, n)
        except OSError:  # ``advance`` reports the failure
            return b""

    def _pread(self, start: int, n: int) -> bytes:
        with self._lock:
            return b"" if self._descriptor is None or n <= 0 else os.pread(self._descriptor, n, start)

    def _check_file(self) -> None:
        """Open the file where needed; detect that it was truncated, overwritten, replaced or deleted."""
        if self._descriptor is None:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # opening a pipe would block
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                self.failure = "not a regular file"
                return
            self._descriptor = descriptor
        status = os.fstat(self._descriptor)
        try:
            self.replaced, self.deleted = not os.path.samestat(self.path.stat(), status), False
        except OSError:
            self.replaced, self.deleted = False, True
        self.failure = ""
        if status.st_size < self.index.size:
            self._restart("shorter")
        elif self._suspect or (
            status.st_size > self.index.size
            and self.read(self.index.size - len(self._tail), len(self._tail)) != self._tail
        ):
            self._restart("changed")
        self.size = status.st_size

    def _restart(self, reason: ReloadReason) -> None:
        self.index, self.size = LineIndex(self.index.block), 0
        self.reload_reason, self._suspect, self._tail = reason, False, b""

    def _read_next(self) -> bool:
        """Read and index the next piece of the file; return False if the file is closed or became shorter."""
        data = self._pread(self.index.size, min(self._read_bytes, self.size - self.index.size))
        if not data:
            self.size = self.index.size
            return False
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self.index.add(data)
        return True


_TIME_FIELDS: Final = ("at", "time", "timestamp", "ts", "@timestamp", "datetime", "date", "started_at", "ended_at")
_KIND_FIELDS: Final = ("kind", "subject", "type", "event", "op", "level", "levelname", "severity")  # best first
_LEVEL_FIELDS: Final = ("levelname", "level", "severity", "lvl", "log.level")
_MESSAGE_FIELDS: Final = ("message", "msg", "event")  # the last one only beside a level, as structlog writes it
_LOGGER_FIELDS: Final = ("logger", "logger_name", "name", "target", "module")
_BRACKETS: Final = {b"{": "{…}", b"[": "[…]"}
_MAX_FIELDS: Final = 20
_MAX_FIELD_CHARS: Final = 80
_LEVEL: Final = re.compile(  # of a text line, after its time and before its message
    rb"[\])]?\s*[-|:]?\s*\[?(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?(?:\s*[-|:]\s+|\s+)",
    re.ASCII | re.I,
)
_TIMESTAMP: Final = re.compile(
    rb"[\[(]?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_EPOCH_UNITS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e8, 1.0))  # smallest number, units per second


class LogRecord(NamedTuple):
    """Time, kind and message of a log line, as far as it contains them."""

    at: datetime | None = None
    kind: str = ""  # the level of a log record
    message: str | None = None  # of a log record; another line is shown as it is
    logger: str = ""
    fields: tuple[str, ...] = ()  # others of a log record in JSON as ``name=value``


def parse_record(line: bytes) -> LogRecord:
    """Parse the first bytes of a line, which is a JSON object or starts with a time; else return an empty record."""
    if line[:1] != b"{" or len(line) > MAX_PARSED_BYTES:
        return _text_record(line)
    try:
        check_limits(line)
        fields = OBJECT_DECODER.decode(line)
    except (ValueError, RecursionError):
        return LogRecord()
    scalars = {name: _scalar(raw) for name, raw in fields.items() if bytes(raw)[:1] not in _BRACKETS}

    def first_text(names: Iterable[str]) -> str:
        return next((value for name in names if isinstance(value := scalars.get(name), str) and value), "")

    at = next(filter(None, (_parse_time(scalars.get(name)) for name in _TIME_FIELDS)), None)
    level = first_text(_LEVEL_FIELDS)
    message_fields = _MESSAGE_FIELDS if level else _MESSAGE_FIELDS[:-1]
    if not (message := first_text(message_fields)):
        return LogRecord(at, first_text(_KIND_FIELDS))
    message_field = next(name for name in message_fields if scalars.get(name) == message)
    shown = {message_field, *_TIME_FIELDS, *_LEVEL_FIELDS, *_LOGGER_FIELDS}
    others = [
        (name, _BRACKETS.get(bytes(raw)[:1]) or scalars[name]) for name, raw in fields.items() if name not in shown
    ]
    texts = tuple(f"{name}={value}"[:_MAX_FIELD_CHARS] for name, value in others[:_MAX_FIELDS])
    return LogRecord(at, level or first_text(_KIND_FIELDS), message, first_text(_LOGGER_FIELDS), texts)


def _text_record(line: bytes) -> LogRecord:
    match = _TIMESTAMP.match(line)
    at, level = (None, None) if match is None else (_matched_time(match), _LEVEL.match(line, match.end()))
    if at is None or level is None:
        return LogRecord(at)
    return LogRecord(at, level[1].decode(), line[level.end() :].decode("utf-8", "replace"))


def _scalar(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except ValueError:  # JSON allows numbers of any size
        return None


def _parse_time(value: object) -> datetime | None:
    """Parse a time: a text, local time without a zone, or a number of seconds, ms, µs or ns since 1970; else None."""
    if isinstance(value, str):
        match = _TIMESTAMP.match(value.encode("utf-8", "replace")) if len(value) <= 80 else None
        return None if match is None else _matched_time(match)
    if isinstance(value, int | float) and not isinstance(value, bool):
        per_second = next((unit for minimum, unit in _EPOCH_UNITS if value >= minimum), None)
        if per_second is not None:
            with suppress(OverflowError, ValueError):
                return EPOCH + timedelta(seconds=value / per_second)
    return None


def _matched_time(match: re.Match[bytes]) -> datetime | None:
    day, clock, fraction, zone = (group.decode() if group else "" for group in match.groups())
    try:
        at = datetime.fromisoformat(f"{day}T{clock}")
        at += timedelta(seconds=float(f"0.{fraction}")) if fraction else timedelta()
        return datetime.fromisoformat(f"{at.isoformat()}{zone}").astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


class LogSearch:
    """Finds the lines of a log that match a query, which is not empty and has no error.

    Lines that lack a required word are skipped without being decoded. ``MAX_LINE_BYTES`` are searched at once; of a
    longer line, only as many.
    """

    def __init__(self, log: LogFile, query: Query[bytes]) -> None:
        self.query = query
        self.matches = array("Q")  # numbers of lines in ascending order; only appended
        self.position = 0  # number of bytes searched, up to the end of a line
        self.is_full = False  # ended at ``MAX_MATCHES`` lines
        self._log, self._index = log, log.index
        # One form of a word is found faster than two, and a longer one faster than a shorter one.
        needles = sorted(Words(query.words).needles, key=lambda forms: (len(forms), -len(forms[0])))
        first, *self._others = needles or [(b"",)]
        self._pattern = re.compile(b"|".join(map(re.escape, first)))
        self.partial_match: int | None = None  # the last line of the log, if it matches and has no newline yet
        self._line_number = self._n_tail_bytes = 0

    @property
    def is_stale(self) -> bool:
        return self._log.index is not self._index

    @property
    def is_complete(self) -> bool:
        return self.is_full or self.position + self._n_tail_bytes >= self._index.size

    def advance(self, budget_s: float = BUDGET_S) -> bool:
        """Continue the search for up to ``budget_s`` seconds; return whether unsearched bytes are left."""
        deadline = time.monotonic() + budget_s
        if self._index.size > self.position + self._n_tail_bytes:
            self.partial_match, self._n_tail_bytes = None, 0
        while not (self.is_stale or self.is_complete):
            data = self._log.read(self.position, min(MAX_LINE_BYTES, self._index.size - self.position))
            if end := data.rfind(_NEWLINE) + 1:
                self._search_lines(data[:end])
            else:
                self._search_long_line(data)
            if time.monotonic() >= deadline:
                break
        return not (self.is_stale or self.is_complete)

    def _search_lines(self, raw: bytes) -> None:
        data, at = raw.lower(), 0
        while (found := self._pattern.search(data, at)) is not None and at < len(data):
            start, stop = max(data.rfind(_NEWLINE, at, found.start()) + 1, at), data.find(_NEWLINE, found.start())
            self._line_number += data.count(_NEWLINE, at, start)
            if self._matches(raw, data, start, stop) and not self._add_match(self._line_number):
                return
            self._line_number, at = self._line_number + 1, stop + 1
        self._line_number += data.count(_NEWLINE, at)
        self.position += len(data)

    def _search_long_line(self, raw: bytes) -> None:  # than a piece, or without a newline yet
        data = raw.lower()
        is_match = self._pattern.search(data) is not None and self._matches(raw, data, 0, len(raw))
        if self._line_number >= self._index.n_newlines:
            self.partial_match = self._line_number if is_match else None
            self._n_tail_bytes = self._index.size - self.position
        elif not is_match or self._add_match(self._line_number):
            self._line_number += 1
            self.position = self._log.line_start(self._line_number, self._index)

    def _matches(self, raw: bytes, data: bytes, start: int, stop: int) -> bool:
        """``data`` is ``raw`` in lower case, and has one of the first words in the line."""
        if not all(any(data.find(form, start, stop) >= 0 for form in forms) for forms in self._others):
            return False
        return not self.query.has_rest or self.query.matches(raw[start:stop].removesuffix(b"\r"))

    def _add_match(self, number: int) -> bool:
        self.is_full = len(self.matches) >= MAX_MATCHES
        if not self.is_full:
            self.matches.append(number)
        return not self.is_full


@lru_cache(maxsize=1)  # for the other fields of the same line
def _record(line: bytes) -> LogRecord:
    return parse_record(line[: MAX_PARSED_BYTES + 1])


LOG_FIELDS: Final[FieldSet[bytes]] = FieldSet(
    ("level", "text", "level, or kind of a line without one", lambda line: _record(line).kind),
    ("logger", "text", "logger", lambda line: _record(line).logger),
    ("since", "since", "written since an age or a time: 5m, 2h, 2026-11-26", lambda line: _record(line).at),
    ("until", "until", "written until then", lambda line: _record(line).at),
    *json_columns(lambda line: line if len(line) <= MAX_PARSED_BYTES else b""),
    values={"level": ("error", "warning", "info", "debug")},
)


def line_query(text: str) -> Query[bytes]:
    def word_test(word: str) -> Callable[[bytes], bool]:
        words = Words([word])
        return lambda line: words.found_in((line,))

    return Query(LOG_FIELDS, text, word_test=word_test, splits=True)


def find_line_at(log: LogFile, at: datetime) -> int | None:
    """Return the first line of a sorted log whose time is not before ``at``, or else the last; None without a time."""
    low, high, match = 0, len(log.index), None
    while low < high:
        middle = (low + high) // 2
        if (timed := _first_time(log, range(middle, high))) is None:
            high = middle
        elif timed[1] < at:
            low = timed[0] + 1
        else:
            match, high = timed[0], middle
    if match is None and find_last_time(log) is not None:
        return len(log.index) - 1
    return match


def find_last_time(log: LogFile) -> datetime | None:
    timed = _first_time(log, range(len(log.index))[::-1])
    return None if timed is None else timed[1]


def _first_time(log: LogFile, numbers: Sequence[int]) -> tuple[int, datetime] | None:
    for line in numbers[:MAX_UNTIMED_LINES]:
        if (at := parse_record(log.line(line, MAX_PARSED_BYTES).head).at) is not None:
            return line, at
    return None
