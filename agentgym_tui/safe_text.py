"""Conversion of untrusted text to text that is safe to show in a terminal.

Text from models, environments and nodes is untrusted. It becomes safe where it leaves the console: in the constructor
of ``presenters.cells.Cell``, through which every line of a list passes, and in ``sinks``, which has the other exits.
Functions that measure or cut text make it safe first, because a visible symbol is wider than what it stands for.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from runner.util.display_text import SecretMasker, is_unsafe, masker, one_line, sanitize, unsafe_offsets

UNSAFE_MARK: Final = "⚠"
"""Precedes a text in which unsafe characters were made visible."""
MAX_LINE_CHARS: Final = 2_000
"""Number of characters shown of a line that is not wrapped, because a line of 1 MB takes seconds to lay out."""

MAX_TEXT_LINES: Final = 5_000

_MAX_MASKED_ROWS: Final = 20
_STRIDE: Final = 64


class SanitizedLines(NamedTuple):
    lines: list[str]
    changed: bool  # whether unsafe characters were replaced by visible symbols


def sanitize_line(text: object, limit: int = 200) -> str:
    """Return untrusted text as one sanitized line of at most ``limit`` characters."""
    return one_line(str(text), limit)


def sanitize_message(text: str, limit: int = 2_000) -> str:
    """Return an error message, which may quote anything, as sanitized text of several lines, with secrets masked."""
    return sanitize(mask_secrets(text[: limit * 4]), limit=limit)


def sanitize_text(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return sanitize(text, limit=len(text) * len("\\u{10ffff}"))


def mask_secrets(text: str) -> str:
    """Return untrusted text with its secrets masked; the result is still untrusted."""
    return _masker()(text)


@cache
def _masker() -> SecretMasker:
    # collecting the secrets takes longer than masking, and the console never changes its environment
    return masker()


def masked_line(text: object, limit: int = 200) -> str:
    """Return untrusted text as one line of at most ``limit`` characters, with its secrets masked; still untrusted."""
    masked = mask_secrets(str(text)[: limit * 4]).replace("\n", "␊")
    return masked if len(masked) <= limit else f"{masked[: limit - 1]}…"


def player_text(agent: str | None, models: str | None) -> str:
    """Return an agent and the models that answered, whose names may be URLs, with secrets masked; still untrusted."""
    return masked_line(" ".join(filter(None, (agent, models))))


def masked_rows(text: str) -> str:
    """Return untrusted text as up to 20 safe lines, each of at most 2,000 characters, with URL secrets masked."""
    rows = mask_secrets(text[: MAX_LINE_CHARS * 4]).split("\n")[:_MAX_MASKED_ROWS]
    return "\n".join(sanitize_line(row, MAX_LINE_CHARS) for row in rows)


def sanitize_lines(text: str, limit: int = MAX_LINE_CHARS) -> SanitizedLines:
    """Return untrusted text as sanitized lines; one longer than ``limit`` characters is cut and marked as cut.

    Lines beyond ``MAX_TEXT_LINES`` are counted in one line. A carriage return before a newline is removed.
    """
    parts = text.split("\n", MAX_TEXT_LINES)
    rest = parts.pop() if len(parts) > MAX_TEXT_LINES else ""
    heads = [part.removesuffix("\r") for part in parts]
    shown = [sanitize(head, limit=limit).replace("\t", "    ") for head in heads]
    changed = any(is_unsafe(head[:limit]) for head in heads)
    if rest:
        shown.append(f"… (+{rest.count(chr(10)) + 1} lines)")
    return SanitizedLines(shown, changed)


def has_unsafe_chars(text: str) -> bool:
    """Return whether the text has control, bidirectional, invisible or private-use characters or too many marks."""
    return any(is_unsafe(part.removesuffix("\r")) for part in text.split("\n"))


def unsafe_excerpt(text: str) -> str:
    """Return the part of the text that starts shortly before its first unsafe character; used for short hex dumps."""
    first = next((offset for offset in unsafe_offsets(text) if not _is_line_break(text, offset)), 0)
    return text[first - first % _STRIDE :]


def _is_line_break(text: str, offset: int) -> bool:
    return text[offset] == "\r" and text[offset + 1 : offset + 2] in ("", "\n")


def n_hex_lines(data: bytes) -> int:
    return (len(data) + 15) // 16


def hex_line(data: bytes, row: int) -> str:
    """Return one row of a hex dump: offset, 16 bytes in hex, and the same bytes as printable ASCII."""
    shown = data[16 * row : 16 * row + 16]
    ascii = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in shown)
    return f"{16 * row:04x}  {shown.hex(' '):<47}  {ascii}"
