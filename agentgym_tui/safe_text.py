"""Text that is safe to show in a terminal.

``SafeText`` is the type of every text that a widget takes, so the type checker keeps untrusted strings away from
widgets. Text from models, environments and nodes is untrusted; this module makes it safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, NewType

from runner.util.display_text import is_unsafe, mask, one_line, sanitize

SafeText = NewType("SafeText", str)

MAX_LINE_CHARS: Final = 2_000
"""Characters of a line that is not wrapped into rows; a line of 1 MB takes seconds to lay out."""

MAX_TEXT_LINES: Final = 5_000
"""Lines of one text that are laid out."""

_STRIDE: Final = 64


class SanitizedLines(NamedTuple):
    """Sanitized lines of a text; ``changed`` is True where control characters had to be made visible."""

    lines: list[SafeText]
    changed: bool


def trusted(text: str) -> SafeText:
    """Mark a text that consists only of this program's own words and numbers."""
    return SafeText(text)


def sanitize_line(text: object, limit: int = 200) -> SafeText:
    """Return untrusted text as one line of at most ``limit`` characters."""
    return SafeText(one_line(str(text), limit))


def safe_slice(text: SafeText, start: int, stop: int) -> SafeText:
    """Return ``text[start:stop]``, which is as safe as ``text``."""
    return SafeText(text[start:stop])


def join(parts: Iterable[SafeText], between: str = "") -> SafeText:
    """Join safe texts; ``between`` must be a text of this program."""
    return SafeText(between.join(parts))


def sanitize_message(text: str, limit: int = 2_000) -> SafeText:
    """Return an error message as sanitized text of several lines.

    The message may quote addresses and untrusted text; secrets in it are masked.
    """
    return SafeText(sanitize(mask(text[: limit * 4]), limit=limit))


def sanitize_lines(text: str, limit: int = MAX_LINE_CHARS) -> SanitizedLines:
    """Return untrusted text as sanitized lines.

    Lines longer than ``limit`` characters and texts of more than ``MAX_TEXT_LINES`` lines are cut, with a mark. A
    carriage return before a newline is removed.
    """
    parts = text.split("\n", MAX_TEXT_LINES)
    rest = parts.pop() if len(parts) > MAX_TEXT_LINES else ""
    heads = [part.removesuffix("\r") for part in parts]
    shown = [SafeText(sanitize(head, limit=limit).replace("\t", "    ")) for head in heads]
    changed = any(is_unsafe(head[:limit]) for head in heads)
    if rest:
        shown.append(trusted(f"… (+{rest.count(chr(10)) + 1} lines)"))
    return SanitizedLines(shown, changed)


def has_unsafe_chars(text: str) -> bool:
    """Return whether the text holds control, bidirectional or invisible characters."""
    return any(is_unsafe(part.removesuffix("\r")) for part in text.split("\n"))


def unsafe_excerpt(text: str) -> str:
    """Return the text from shortly before its first unsafe character, for a hex dump of limited length."""
    starts = range(0, len(text), _STRIDE)
    return text[next((start for start in starts if has_unsafe_chars(text[start : start + _STRIDE])), 0) :]


def hex_lines(text: str, limit: int = 4_096) -> list[SafeText]:
    """Return a hex dump of the first ``limit`` bytes: offset, 16 bytes and their printable ASCII per row."""
    data = text[:limit].encode("utf-8", "surrogatepass")[:limit]
    return [hex_line(data, row) for row in range(n_hex_lines(data))]


def n_hex_lines(data: bytes) -> int:
    """Return the number of 16-byte rows."""
    return (len(data) + 15) // 16


def hex_line(data: bytes, row: int) -> SafeText:
    """Return one row of a hex dump."""
    shown = data[16 * row : 16 * row + 16]
    return trusted(f"{16 * row:04x}  {shown.hex(' '):<47}  {_ascii(shown)}")


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
