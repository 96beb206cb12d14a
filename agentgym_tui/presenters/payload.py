"""Views of one message: formatted JSON, raw text, a hex dump, and headers. Also numbered lines of any text."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from typing import Final

import msgspec

from agentgym_tui.presenters.cells import FOLD_WIDTH, Cell, FoldedText, Line, TextSource
from agentgym_tui.safe_text import hex_line, n_hex_lines, sanitize_lines
from agentgym_tui.state.event_log import MAX_HEADER_BYTES, EventMessage, LogEntry

VIEWS: Final = ("formatted", "raw", "hex", "headers")
MAX_FORMATTED: Final = 20_000
"""Maximum number of JSON values in a payload that is formatted; each value takes one line."""
_TAB: Final = 4 * " "
"""What ``sanitize_lines`` shows for a tab."""


class HexRows(TextSource):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return n_hex_lines(self._data)

    def line(self, index: int, width: int) -> Line:
        return [Cell(hex_line(self._data, index))]


def payload_rows(entry: LogEntry | None, view: str) -> TextSource:
    if isinstance(entry, EventMessage) and view == "hex":
        return HexRows(entry.payload)
    return TextRows(payload_text(entry, view))


def payload_text(entry: LogEntry | None, view: str) -> str:
    """Return the untrusted text that shows a log entry in a view; every view of a notice shows its text."""
    if not isinstance(entry, EventMessage):
        return "" if entry is None else entry.text
    if view == "headers":
        return _headers(entry)
    if view == "hex":
        return "\n".join(hex_line(entry.payload, row) for row in range(n_hex_lines(entry.payload)))
    if view == "formatted" and not _is_large(entry.payload):
        return pretty_json(entry.payload)
    return entry.payload.decode("utf-8", "replace")


def pretty_json(data: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        data = msgspec.json.format(data, indent=2)
    return data.decode("utf-8", "replace")


def payload_size(message: EventMessage, view: str) -> Cell:
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
    """Numbered lines of untrusted text, broken after ``FOLD_WIDTH`` characters; ``⚠`` stands before unsafe ones."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._digits = len(str(len(self._lines)))
        lines = enumerate(self._lines)
        self._places = [(number, at) for number, line in lines for at in range(0, len(line) or 1, FOLD_WIDTH)]

    def __len__(self) -> int:
        return len(self._places)

    def line(self, index: int, width: int) -> Line:
        number, at = self._places[index]
        raw = self._lines[number][at : at + FOLD_WIDTH]
        (text,), has_unsafe = sanitize_lines(raw)
        sign = "⚠" if has_unsafe else "" if at else number + 1
        margin = Cell(f"{sign:>{self._digits}} ", "warn" if has_unsafe else "dim")
        margin.raw = raw if has_unsafe else ""
        return margin, Cell(text)

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        found = [(n, match.start()) for n, line in enumerate(self._lines) for match in expression.finditer(line)]
        return [bisect_right(self._places, place) - 1 for place in found]

    def found_in(self, index: int, expression: re.Pattern[str]) -> list[tuple[int, int]]:
        number, at = self._places[index]
        line = self._lines[number]
        near = expression.finditer(line, max(at - FOLD_WIDTH, 0), at + 2 * FOLD_WIDTH)
        places = ((max(match.start(), at), min(match.end(), at + FOLD_WIDTH)) for match in near)
        return [(self._column(line, at, start), self._column(line, at, stop)) for start, stop in places if start < stop]

    def _column(self, line: str, start: int, at: int) -> int:
        return self._digits + 1 + at - start + (len(_TAB) - 1) * line.count("\t", start, at)
