"""All of one message: formatted, as text, as bytes, and what stands around it."""

from __future__ import annotations

from typing import Final

import msgspec

from agentgym_tui.presenters.cells import Cell, Line, Source
from agentgym_tui.presenters.segments import hostile
from agentgym_tui.presenters.text_rows import TextRows
from agentgym_tui.safe_text import hex_line, is_hostile, n_hex_lines, own
from agentgym_tui.state.bus_message import MAX_HEADERS, LogEntry, Message, Remark
from runner.events.limits import check_limits

VIEWS: Final = ("formatted", "raw", "hex", "headers")
MAX_FORMATTED: Final = 20_000
"""Values of a payload that is formatted: a line each, and deep ones take much room."""

FOLD: Final = 1_000
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


def rows_of(entry: LogEntry | None, view: str) -> Source:
    """An entry in one of ``VIEWS``."""
    if isinstance(entry, Message) and view == "hex":
        return HexRows(entry.payload)
    return TextRows(folded(text_of(entry, view)))


def text_of(entry: LogEntry | None, view: str) -> str:
    """The same as one text, hostile as it came; for ``hex`` and of a remark what it says."""
    match entry:
        case None:
            return ""
        case Remark():
            return entry.text
    if view == "headers":
        return _headers(entry)
    if view == "hex":
        return "\n".join(hex_line(entry.payload, row) for row in range(n_hex_lines(entry.payload)))
    text = formatted(entry.payload) if view == "formatted" else None
    return entry.payload.decode("utf-8", "replace") if text is None else text


def folded(text: str) -> str:
    """With lines that can be looked at whole: what is longer goes on in the next one."""
    if len(text) <= FOLD:
        return text
    lines = (line[at : at + FOLD] for line in text.split("\n") for at in range(0, max(len(line), 1), FOLD))
    return "\n".join(lines)


def formatted(payload: bytes) -> str | None:
    """JSON with indentation; None for what is none, or too much."""
    if _is_large(payload):
        return None
    try:
        check_limits(payload)
        return msgspec.json.format(payload, indent=2).decode()
    except (ValueError, RecursionError):
        return None


def hostile_text(entry: LogEntry | None) -> str | None:
    """What is behind a row where cleaning changes it."""
    match entry:
        case None:
            return None
        case Remark():
            return hostile([entry.text])
    if found := hostile([entry.subject, *entry.headers, *entry.headers.values()]):
        return found
    text = entry.payload.decode("utf-8", "replace")
    return text if is_hostile(text) else None


def size_of(message: Message, view: str) -> Cell:
    """How large a payload is, how much of it is here, and whether that is why it is not formatted."""
    kept = f", the first {len(message.payload):,} here" if message.n_bytes > len(message.payload) else ""
    large = " · too large to be formatted" if view == "formatted" and _is_large(message.payload) else ""
    return Cell(own(f"{message.n_bytes:,} B{kept}{large}"), "dim")


def _is_large(payload: bytes) -> bool:
    return payload.count(b",") + payload.count(b"[") + payload.count(b"{") > MAX_FORMATTED


def _headers(message: Message) -> str:
    place = f"{message.stream} #{message.sequence}" if message.stream is not None else "no stream keeps it"
    about = {"subject": message.subject, "stream": place, "time": message.at.isoformat()}
    lines = [f"{name + ':':<9} {value}" for name, value in about.items()]
    sent = [f"{name}: {value}" for name, value in message.headers.items()]
    size = f"{'size:':<9} {message.n_bytes:,} bytes"
    kept = f", the first {len(message.payload):,} are kept" if message.n_bytes > len(message.payload) else ""
    return "\n".join([*lines, size + kept, "", *(sent or ["no headers"])])[: 2 * MAX_HEADERS]
