"""What is put into the clipboard of a terminal, which takes only so much at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from agentgym_tui.safe_text import Safe, own
from runner.util.text import sanitize

MAX_BYTES: Final = 100 * 1024
"""Of a copied text, as UTF-8; terminals drop what is longer, all of it."""


class Copy(NamedTuple):
    """The part of a text that is copied, and how many bytes it and the whole text have."""

    text: str
    n_bytes: int
    n_total: int


def to_copy(text: str, *, raw: bool) -> Copy:
    """The beginning of a text, cut between two characters.

    Args:
        text: from outside.
        raw: with its control characters, else these are made visible. Lone surrogates are replaced in any case.
    """
    n_total = len(text.encode("utf-8", "replace"))
    head = text[:MAX_BYTES]
    shown = head if raw else sanitize(head, limit=max(len(head), 1) * len("\\u{10ffff}"))
    kept = shown.encode("utf-8", "replace")[:MAX_BYTES].decode("utf-8", "ignore")
    is_whole = len(head) == len(text) and len(kept) == len(shown)
    size = len(kept.encode())
    return Copy(kept, size, size if is_whole else max(n_total, size))


def described(copy: Copy, environ: Mapping[str, str], *, raw: bool = False, whole: str = "") -> Safe:
    """How much was sent, for a person: whether the terminal took it nobody says; ``whole``: where all of it is."""
    is_whole = copy.n_bytes == copy.n_total
    what = _size(copy.n_bytes) if is_whole else f"the first {_size(copy.n_bytes)} of {_size(copy.n_total)}"
    how = " as it came" if raw else ""
    more = f"; {whole}" if whole and not is_whole else ""
    hint = "\ntmux passes it on with: set -g set-clipboard on" if environ.get("TMUX") else ""
    return own(f"sent {what}{how} to the terminal's clipboard (OSC 52){more}{hint}")


def _size(n: int) -> str:
    if n < 1024:
        return f"{n} bytes"
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"
