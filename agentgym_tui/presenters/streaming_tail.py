"""A text that is still coming: it is drawn many times a second, so of long lines there are the ends alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_COMING: Final = 6 * 1024
"""Characters of one line, the last ones: more than a large pane has room for, and few enough to be broken each time."""

MAX_COMING_LINES: Final = 4_000
"""Lines, the last ones: fewer than are laid out, as some say what was left out."""

_STRIDE: Final = 2 * 1024
"""Characters that go at once, so that the rows of the others stay as they are in between."""

_WORD: Final = 80
"""Characters among which a line that lacks its beginning is begun with a word."""


def newest(text: str, before: int = 0) -> str:
    """The part of a text that is shown while more of it comes; what is left out says so.

    Args:
        text: as far as it came.
        before: characters that came before it and were not kept.
    """
    if not before and len(text) <= MAX_COMING:
        return text
    first, *others = text.rsplit("\n", MAX_COMING_LINES)
    if len(others) == MAX_COMING_LINES:
        before += len(first) + 1
        first, *others = others
    return "\n".join(_ends([first, *others], before))


def _ends(lines: list[str], before: int) -> Iterator[str]:
    """The ends of the lines, each below what is said of its beginning."""
    at, missing = before, before
    for line in lines:
        start = _start(line, at)
        if missing + start:
            yield f"… ({missing + start} characters before this are left out while it comes)"
        yield line[start:]
        at, missing = at + len(line) + 1, 0


def _start(line: str, at: int) -> int:
    """Where the end of a line begins that begins ``at`` in the whole text."""
    if len(line) <= MAX_COMING:
        return 0
    start = -(-(at + len(line) - MAX_COMING) // _STRIDE) * _STRIDE - at
    return line.find(" ", start, start + _WORD) + 1 or start
