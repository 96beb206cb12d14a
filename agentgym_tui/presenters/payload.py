"""Views of one message: formatted JSON, raw text, a hex dump, and headers. Also numbered lines of any text."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from typing import Final

import msgspec

from agentgym_tui.presenters.cells import Cell, FoldedText, Line, TextSource
from agentgym_tui.safe_text import hex_line, n_hex_lines, sanitize_lines
from agentgym_tui.state.event_log import MAX_HEADER_BYTES, EventMessage, LogEntry, LogNotice

VIEWS: Final = ("formatted", "raw", "hex", "headers")
MAX_FORMATTED: Final = 20_000
"""Maximum number of JSON values in a payload that is formatted; each value takes one line."""
FOLD_WIDTH: Final = 1_000
"""Maximum number of characters per line; a longer line is broken."""
_TAB: Final = 4 * " "
"""What ``sanitize_lines`` shows for a tab."""


class HexRows(TextSource):
    """Rows of a hex dump, with 16 bytes per row."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return n_hex_lines(self._data)

    def line(self, index: int, width: int) -> Line:
        return [Cell(hex_line(self._data, index))]


def payload_rows(entry: LogEntry | None, view: str) -> TextSource:
    """Return the rows that show a log entry in a view, which is one of ``VIEWS``."""
    if isinstance(entry, EventMessage) and view == "hex":
        return HexRows(entry.payload)
    return TextRows(payload_text(entry, view))


def payload_text(entry: LogEntry | None, view: str) -> str:
    """Return the untrusted text that shows a log entry in a view; every view of a notice shows its text."""
    match entry:
        case None:
            return ""
        case LogNotice():
            return entry.text
    if view == "headers":
        return _headers(entry)
    if view == "hex":
        return "\n".join(hex_line(entry.payload, row) for row in range(n_hex_lines(entry.payload)))
    if view == "formatted" and not _is_large(entry.payload):
        return pretty_json(entry.payload)
    return entry.payload.decode("utf-8", "replace")


def pretty_json(data: bytes) -> str:
    """Return data as indented JSON; if the data is not JSON, return it as unchanged text."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        data = msgspec.json.format(data, indent=2)
    return data.decode("utf-8", "replace")


def payload_size(message: EventMessage, view: str) -> Cell:
    """Return the size of a payload, how many bytes of it are stored, and whether it is too large to format."""
    stored = f", first {len(message.payload):,} shown" if message.n_bytes > len(message.payload) else ""
    large = " · too large to format" if view == "formatted" and _is_large(message.payload) else ""
    return Cell(f"{message.n_bytes:,} B{stored}{large}", "dim")


def _is_large(payload: bytes) -> bool:
    return payload.count(b",") + payload.count(b"[") + payload.count(b"{") > MAX_FORMATTED


def _headers(message: EventMessage) -> str:
    stored = f", first {len(message.payload):,} kept" if message.n_bytes > len(message.payload) else ""
    fields = {
        "subject": message.subject,
        "stream": "not in a stream" if message.stream is None else f"{message.stream} #{message.sequence}",
        "time": message.at.isoformat(),
        "size": f"{message.n_bytes:,} bytes{stored}",
    }
    headers = [f"{name}: {value}" for name, value in message.headers.items()] or ["no headers"]
    lines = [f"{name + ':':<9} {value}" for name, value in fields.items()]
    return "\n".join([*lines, "", *headers])[: 2 * MAX_HEADER_BYTES]


class TextRows(FoldedText, TextSource):
    """Numbered lines of untrusted text, broken after each ``FOLD_WIDTH`` characters.

    A row with unsafe characters has a warning sign instead of the number of its line.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._digits = len(str(len(self._lines)))
        self._places: list[tuple[int, int]] | None = None
        if any(len(line) > FOLD_WIDTH for line in self._lines):
            self._places = [
                (number, at) for number, line in enumerate(self._lines) for at in range(0, len(line) or 1, FOLD_WIDTH)
            ]

    def __len__(self) -> int:
        return len(self._lines if self._places is None else self._places)

    def line(self, index: int, width: int) -> Line:
        number, at = self._place(index)
        raw = self._lines[number][at : at + FOLD_WIDTH]
        (text,), has_unsafe = sanitize_lines(raw)
        sign = "⚠" if has_unsafe else "" if at else number + 1
        margin = Cell(f"{sign:>{self._digits}} ", "warn" if has_unsafe else "dim")
        margin.raw = raw if has_unsafe else ""
        return margin, Cell(text)

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        found = [(n, match.start()) for n, line in enumerate(self._lines) for match in expression.finditer(line)]
        if self._places is None:
            return [number for number, _ in found]
        return [bisect_right(self._places, place) - 1 for place in found]

    def found_in(self, index: int, expression: re.Pattern[str]) -> list[tuple[int, int]]:
        number, at = self._place(index)
        line = self._lines[number]
        near = expression.finditer(line, max(at - FOLD_WIDTH, 0), at + 2 * FOLD_WIDTH)
        places = ((max(match.start(), at), min(match.end(), at + FOLD_WIDTH)) for match in near)
        return [(self._column(line, at, start), self._column(line, at, stop)) for start, stop in places if start < stop]

    def _column(self, line: str, start: int, at: int) -> int:
        """Return where a character of a line is in the joined texts of the row that begins at ``start``."""
        return self._digits + 1 + at - start + (len(_TAB) - 1) * line.count("\t", start, at)

    def _place(self, index: int) -> tuple[int, int]:
        return (index, 0) if self._places is None else self._places[index]
