"""What is shown, into the clipboard of the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agentgym_tui.safe_text import trusted
from agentgym_tui.services.toast import toast

if TYPE_CHECKING:
    from textual.app import App
from collections.abc import Mapping
from typing import Final, NamedTuple

from agentgym_tui.safe_text import SafeText
from runner.util.text import sanitize


def copy_to_clipboard(app: App[Any], text: str, *, raw: bool) -> None:
    """Copy a text, as it came or made safe, and say how much of it."""
    shown = clipboard_text(text, raw=raw)
    if shown.text:
        app.copy_to_clipboard(shown.text)
        toast(app, copy_summary(shown, os.environ, raw=raw))
    else:
        toast(app, trusted("there is nothing to copy"), failed=True)


MAX_CLIPBOARD_BYTES: Final = 100 * 1024
"""Of a copied text, as UTF-8; terminals drop what is longer, all of it."""


class ClipboardText(NamedTuple):
    """The part of a text that is copied, and how many bytes it and the whole text have."""

    text: str
    n_bytes: int
    n_total: int


def clipboard_text(text: str, *, raw: bool) -> ClipboardText:
    """The beginning of a text, cut between two characters.

    Args:
        text: from outside.
        raw: with its control characters, else these are made visible. Lone surrogates are replaced in any case.
    """
    n_total = len(text.encode("utf-8", "replace"))
    head = text[:MAX_CLIPBOARD_BYTES]
    shown = head if raw else sanitize(head, limit=max(len(head), 1) * len("\\u{10ffff}"))
    kept = shown.encode("utf-8", "replace")[:MAX_CLIPBOARD_BYTES].decode("utf-8", "ignore")
    is_whole = len(head) == len(text) and len(kept) == len(shown)
    size = len(kept.encode())
    return ClipboardText(kept, size, size if is_whole else max(n_total, size))


def copy_summary(copy: ClipboardText, environ: Mapping[str, str], *, raw: bool = False, whole: str = "") -> SafeText:
    """How much was sent, for a person: whether the terminal took it nobody says; ``whole``: where all of it is."""
    is_whole = copy.n_bytes == copy.n_total
    what = (
        _byte_count(copy.n_bytes)
        if is_whole
        else f"the first {_byte_count(copy.n_bytes)} of {_byte_count(copy.n_total)}"
    )
    how = " as it came" if raw else ""
    more = f"; {whole}" if whole and not is_whole else ""
    hint = "\ntmux passes it on with: set -g set-clipboard on" if environ.get("TMUX") else ""
    return trusted(f"sent {what}{how} to the terminal's clipboard (OSC 52){more}{hint}")


def _byte_count(n: int) -> str:
    if n < 1024:
        return f"{n} bytes"
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"
