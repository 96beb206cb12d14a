"""Views of one message: formatted JSON, raw text, a hex dump, and headers. Also numbered lines of any text."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from agentgym_tui.presenters.cells import Cell, Line, TextSource, unsafe_texts
from agentgym_tui.safe_text import MAX_LINE_CHARS, has_unsafe_chars, hex_line, n_hex_lines, sanitize_lines, trusted
from agentgym_tui.state.log_entries import MAX_HEADER_BYTES, EventMessage, LogEntry, LogNotice
from runner.events.limits import check_limits

VIEWS: Final = ("formatted", "raw", "hex", "headers")
MAX_FORMATTED: Final = 20_000
"""Maximum number of JSON values in a payload that is formatted; each value takes one line."""

FOLD_WIDTH: Final = 1_000
"""Maximum number of characters per line; a longer line is broken."""


class HexRows(TextSource):
    """Rows of a hex dump, with 16 bytes per row."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        """Return the number of rows."""
        return n_hex_lines(self._data)

    def line(self, index: int, width: int) -> Line:
        """Return the offset, the hexadecimal bytes and the ASCII characters of a row."""
        return [Cell(hex_line(self._data, index))]


def payload_rows(entry: LogEntry | None, view: str) -> TextSource:
    """Return the rows that show a log entry in a view, which is one of ``VIEWS``."""
    if isinstance(entry, EventMessage) and view == "hex":
        return HexRows(entry.payload)
    return TextRows(fold_lines(payload_text(entry, view)))


def payload_text(entry: LogEntry | None, view: str) -> str:
    """Return the text that shows a log entry in a view, which is one of ``VIEWS``. The text is untrusted.

    For a notice, every view shows the text of the notice.
    """
    match entry:
        case None:
            return ""
        case LogNotice():
            return entry.text
    if view == "headers":
        return _headers(entry)
    if view == "hex":
        return "\n".join(hex_line(entry.payload, row) for row in range(n_hex_lines(entry.payload)))
    text = format_json(entry.payload) if view == "formatted" else None
    return entry.payload.decode("utf-8", "replace") if text is None else text


def fold_lines(text: str) -> str:
    """Break each line longer than ``FOLD_WIDTH`` characters into several lines."""
    if len(text) <= FOLD_WIDTH:
        return text
    lines = (line[at : at + FOLD_WIDTH] for line in text.split("\n") for at in range(0, max(len(line), 1), FOLD_WIDTH))
    return "\n".join(lines)


def format_json(payload: bytes) -> str | None:
    """Return the payload as indented JSON; None if it is not JSON, or too large or too deeply nested to format."""
    if _is_large(payload):
        return None
    try:
        check_limits(payload)
        return msgspec.json.format(payload, indent=2).decode()
    except (ValueError, RecursionError):
        return None


def unsafe_text(entry: LogEntry | None) -> str | None:
    """Return the texts of a log entry that contain unsafe characters; None if no text contains any."""
    match entry:
        case None:
            return None
        case LogNotice():
            return unsafe_texts([entry.text])
    if unsafe := unsafe_texts([entry.subject, *entry.headers, *entry.headers.values()]):
        return unsafe
    text = entry.payload.decode("utf-8", "replace")
    return text if has_unsafe_chars(text) else None


def payload_size(message: EventMessage, view: str) -> Cell:
    """Return the size of a payload, how many bytes of it are stored, and whether it is too large to format."""
    stored = f", first {len(message.payload):,} shown" if message.n_bytes > len(message.payload) else ""
    large = " · too large to format" if view == "formatted" and _is_large(message.payload) else ""
    return Cell(trusted(f"{message.n_bytes:,} B{stored}{large}"), "dim")


def _is_large(payload: bytes) -> bool:
    return payload.count(b",") + payload.count(b"[") + payload.count(b"{") > MAX_FORMATTED


def _headers(message: EventMessage) -> str:
    stream = f"{message.stream} #{message.sequence}" if message.stream is not None else "not in a stream"
    fields = {"subject": message.subject, "stream": stream, "time": message.at.isoformat()}
    lines = [f"{name + ':':<9} {value}" for name, value in fields.items()]
    headers = [f"{name}: {value}" for name, value in message.headers.items()]
    size = f"{'size:':<9} {message.n_bytes:,} bytes"
    stored = f", first {len(message.payload):,} kept" if message.n_bytes > len(message.payload) else ""
    return "\n".join([*lines, size + stored, "", *(headers or ["no headers"])])[: 2 * MAX_HEADER_BYTES]


class TextRows(TextSource):
    """Numbered lines of untrusted text; a line with unsafe characters has a warning sign instead of its number.

    Args:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._digits = len(str(len(self._lines)))

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def line(self, index: int, width: int) -> Line:
        """Return the number and the text of a line. The text is cut to ``MAX_LINE_CHARS`` characters."""
        raw = self._lines[index]
        (text,), has_unsafe = sanitize_lines(raw[:MAX_LINE_CHARS])
        sign = "⚠" if has_unsafe else index + 1
        number = Cell(trusted(f"{sign:>{self._digits}} "), "warn" if has_unsafe else "dim")
        if len(raw) <= MAX_LINE_CHARS:
            return number, Cell(text)
        return number, Cell(text), Cell(trusted(f"… (+{len(raw) - MAX_LINE_CHARS})"), "dim")

    def unsafe_text(self, index: int) -> str | None:
        """Return the original line; None if its first ``MAX_LINE_CHARS`` characters contain no unsafe characters."""
        return self._lines[index] if has_unsafe_chars(self._lines[index][:MAX_LINE_CHARS]) else None


def pretty_json(data: bytes) -> str:
    """Return data as indented JSON; if the data is not JSON, return it as unchanged text."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        data = msgspec.json.format(data, indent=2)
    return data.decode("utf-8", "replace")
