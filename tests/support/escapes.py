"""Grammar of the escape sequences that Textual writes; everything else is foreign."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby
from typing import Final

_TEXTUAL: Final = re.compile(
    r"""
    \x1b\[(?:0|(?:\d{1,3};)*\d{1,3})?m                       # colors and attributes
    | \x1b\[\d{1,3};\d{1,3}H                                  # the cursor to a cell
    | \x1b\[\?(?:7|25|1000|1003|1004|1006|1015|1016|1049|2004|2026|2048)[hl]
    | \x1b\[\?(?:2026|2048)\$p                                # mode queries
    | \x1b\[>25u | \x1b\[<u                                   # the keyboard protocol, on and off
    | \x1b\]22;(?:default|pointer|text|grab|grabbing|help|progress|wait|crosshair|[a-z]{1,4}-resize)\x07
    | \r\n | \n
    """,
    re.VERBOSE,
)

_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
"""Invisible letters and marks; their Unicode categories do not show it."""

CLIPBOARD: Final = re.compile(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")
"""Copy to the clipboard, with the text in base64."""


def mark_stacks(text: str) -> list[str]:
    """Return each run of more than two combining marks."""
    runs = ("".join(run) for is_mark, run in groupby(text, _is_mark) if is_mark)
    return [ascii(run[:24]) for run in runs if len(run) > 2]


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")


def foreign_escapes(raw: bytes) -> list[str]:
    """Return each control or invisible character that Textual does not write, with the text after it."""
    text = raw.decode("utf-8", "surrogateescape")
    rest = _TEXTUAL.sub("\x1e", text)  # replaced, not removed: the text around it must not form a sequence
    return [repr(rest[at : at + 24]) for at, char in enumerate(rest) if char != "\x1e" and _is_foreign(char)]


def foreign_characters(text: str) -> list[str]:
    """Return each control, invisible or private-use character of a text, escaped."""
    return [ascii(char) for char in dict.fromkeys(text) if _is_foreign(char)]


def _is_foreign(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp") or char in _INVISIBLE
