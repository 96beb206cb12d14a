"""All of one message: formatted, as text, as bytes, and what stands around it."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from agentgym_tui.presenters.cells import Cell, Line, TextSource, unsafe_texts
from agentgym_tui.safe_text import MAX_LINE_CHARS, has_unsafe_chars, hex_line, n_hex_lines, sanitize_lines, trusted
from agentgym_tui.state.event_log import MAX_HEADER_BYTES, EventMessage, LogEntry, LogNotice
from runner.events.limits import check_limits

VIEWS: Final = ("formatted", "raw", "hex", "headers")
MAX_FORMATTED: Final = 20_000
"""Values of a payload that is formatted: a line each, and deep ones take much room."""

FOLD_WIDTH: Final = 1_000
"""Characters of a line."""


class HexRows:
    """Bytes, 16 in a row."""

    def __init__(self, data: bytes) -> None:
        """Rows are made when they are looked at."""
        self._data = data

    def __len__(self) -> int:
        """How many rows."""
        return n_hex_lines(self._data)

    def line(self, index: int, width: int) -> Line:
        """Offset, hexadecimal, ASCII."""
        return [Cell(hex_line(self._data, index))]

    def key(self, index: int) -> str:
        """The number."""
        return str(index)


def payload_rows(entry: LogEntry | None, view: str) -> TextSource:
    """An entry in one of ``VIEWS``."""
    if isinstance(entry, EventMessage) and view == "hex":
        return HexRows(entry.payload)
    return TextRows(fold_lines(payload_text(entry, view)))


def payload_text(entry: LogEntry | None, view: str) -> str:
    """The same as one text, hostile as it came; for ``hex`` and of a remark what it says."""
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
    """With lines that can be looked at whole: what is longer goes on in the next one."""
    if len(text) <= FOLD_WIDTH:
        return text
    lines = (line[at : at + FOLD_WIDTH] for line in text.split("\n") for at in range(0, max(len(line), 1), FOLD_WIDTH))
    return "\n".join(lines)


def format_json(payload: bytes) -> str | None:
    """JSON with indentation; None for what is none, or too much."""
    if _is_large(payload):
        return None
    try:
        check_limits(payload)
        return msgspec.json.format(payload, indent=2).decode()
    except (ValueError, RecursionError):
        return None


def unsafe_text(entry: LogEntry | None) -> str | None:
    """What is behind a row where cleaning changes it."""
    match entry:
        case None:
            return None
        case LogNotice():
            return unsafe_texts([entry.text])
    if found := unsafe_texts([entry.subject, *entry.headers, *entry.headers.values()]):
        return found
    text = entry.payload.decode("utf-8", "replace")
    return text if has_unsafe_chars(text) else None


def payload_size(message: EventMessage, view: str) -> Cell:
    """How large a payload is, how much of it is here, and whether that is why it is not formatted."""
    kept = f", the first {len(message.payload):,} here" if message.n_bytes > len(message.payload) else ""
    large = " · too large to be formatted" if view == "formatted" and _is_large(message.payload) else ""
    return Cell(trusted(f"{message.n_bytes:,} B{kept}{large}"), "dim")


def _is_large(payload: bytes) -> bool:
    return payload.count(b",") + payload.count(b"[") + payload.count(b"{") > MAX_FORMATTED


def _headers(message: EventMessage) -> str:
    place = f"{message.stream} #{message.sequence}" if message.stream is not None else "no stream keeps it"
    about = {"subject": message.subject, "stream": place, "time": message.at.isoformat()}
    lines = [f"{name + ':':<9} {value}" for name, value in about.items()]
    sent = [f"{name}: {value}" for name, value in message.headers.items()]
    size = f"{'size:':<9} {message.n_bytes:,} bytes"
    kept = f", the first {len(message.payload):,} are kept" if message.n_bytes > len(message.payload) else ""
    return "\n".join([*lines, size + kept, "", *(sent or ["no headers"])])[: 2 * MAX_HEADER_BYTES]


class TextRows:
    """Numbered lines of an outside text; a line that cleaning changes has a warning sign for its number.

    Args:
        text: as it is.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._digits = len(str(len(self._lines)))

    def __len__(self) -> int:
        """How many lines."""
        return len(self._lines)

    def line(self, index: int, width: int) -> Line:
        """The number and the text, cut to what can be laid out."""
        raw = self._lines[index]
        (text,), changed = sanitize_lines(raw[:MAX_LINE_CHARS])
        sign = "⚠" if changed else index + 1
        number = Cell(trusted(f"{sign:>{self._digits}} "), "warn" if changed else "dim")
        if len(raw) <= MAX_LINE_CHARS:
            return number, Cell(text)
        return number, Cell(text), Cell(trusted(f"… (+{len(raw) - MAX_LINE_CHARS})"), "dim")

    def key(self, index: int) -> str:
        """The number."""
        return str(index)

    def raw(self, index: int) -> str:
        """The line as it came."""
        return self._lines[index]

    def is_hostile(self, index: int) -> bool:
        """Whether cleaning changes what is shown of the line."""
        return has_unsafe_chars(self._lines[index][:MAX_LINE_CHARS])


def pretty_json(data: bytes) -> str:
    """JSON with indentation; what is no JSON as it is."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        data = msgspec.json.format(data, indent=2)
    return data.decode("utf-8", "replace")
