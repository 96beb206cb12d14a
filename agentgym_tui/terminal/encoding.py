"""What the terminal gets in a locale whose encoding has not all characters: others of the same width.

Textual writes to standard error, whose own handler would write the number of a character and shift the columns.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from typing import Final

_HANDLER: Final = "agentgym-same-width"

# fmt: off
_SIMILAR: Final = {
    "·": ".", "…": ".", "‖": "|", "―": "-", "\u2013": "-", "—": "-", "•": "*", "°": "o", "µ": "u", "\xd7": "x",
    "✗": "x", "✓": "v", "⚠": "!", "●": "*", "○": "o", "◐": "o", "◔": "o", "◆": "*", "■": "#", "✎": "*", "⚑": "!",
    "▶": ">", "▸": ">", "▹": ">", "◂": "<", "◀": "<", "▼": "v", "▾": "v", "▲": "^", "▴": "^",
    "→": ">", "←": "<", "↓": "v", "↑": "^", "≈": "~", "≠": "!", "≡": "=", "≤": "<", "≥": ">",
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "░": ":", "▒": ":", "▔": "-",
}
# fmt: on
_BOX: Final = range(0x2500, 0x2580)
_BLOCKS: Final = range(0x2580, 0x2596)
_HORIZONTAL, _VERTICAL = frozenset("─━┄┅┈┉╌╍═╴╶╸╺╼╾"), frozenset("│┃┆┇┊┋╎╏║╵╷╹╻╽╿")


def replace_unknown_characters() -> None:
    """Let standard error replace what its encoding does not have by something that takes as many columns."""
    codecs.register_error(_HANDLER, _replace)
    if isinstance(sys.__stderr__, io.TextIOWrapper):
        sys.__stderr__.reconfigure(errors=_HANDLER)


def output_encoding() -> tuple[str, str]:
    """Return the encoding of the terminal, and how it handles characters that it does not have."""
    return (
        ("utf-8", "strict") if sys.__stderr__ is None else (sys.__stderr__.encoding, sys.__stderr__.errors or "strict")
    )


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from rich.cells import split_graphemes  # loaded by Textual anyway, and not needed in most locales

    text = error.object[error.start : error.end]
    return "".join(_similar(text[start:stop], width) for start, stop, width in split_graphemes(text)[0]), error.end


def _similar(cluster: str, width: int) -> str:
    """Return ASCII of ``width`` columns for a character and the marks on it."""
    first = cluster[0]
    if (found := _SIMILAR.get(first)) is None:
        found = _drawn(first) or unicodedata.normalize("NFKD", first).encode("ascii", "ignore").decode()
    return found if len(found) == width else "?" * width


def _drawn(character: str) -> str:
    if ord(character) in _BLOCKS:
        return "#"
    if ord(character) not in _BOX:
        return ""
    return "-" if character in _HORIZONTAL else "|" if character in _VERTICAL else "+"
