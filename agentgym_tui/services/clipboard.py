"""Copy text to the terminal's clipboard with OSC 52, which limits its size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentgym_tui.safe_text import SafeText, trusted
from agentgym_tui.services.toast import toast
from runner.util.display_text import sanitize

if TYPE_CHECKING:
    from textual.app import App


MAX_CLIPBOARD_BYTES: Final = 100 * 1024
"""Largest copied text, as UTF-8. Terminals discard longer texts entirely."""


def copy_to_clipboard(app: App[Any], text: str, *, raw: bool) -> None:
    """Copy a text, unchanged or made safe, and show in a toast how much was copied."""
    shown = clipboard_text(text, raw=raw)
    if shown.text:
        app.copy_to_clipboard(shown.text)
        toast(app, copy_summary(shown, os.environ, raw=raw))
    else:
        toast(app, trusted("nothing to copy"), failed=True)


class ClipboardText(NamedTuple):
    """The part of a text that is copied, with its size and the size of the whole text in bytes."""

    text: str
    n_bytes: int
    n_total: int


def clipboard_text(text: str, *, raw: bool) -> ClipboardText:
    """Return the start of a text, cut at a character boundary.

    Args:
        text: untrusted text.
        raw: keep control characters; otherwise they are made visible. Lone surrogates are always replaced.
    """
    n_total = len(text.encode("utf-8", "replace"))
    head = text[:MAX_CLIPBOARD_BYTES]
    shown = head if raw else sanitize(head, limit=max(len(head), 1) * len("\\u{10ffff}"))
    clipped = shown.encode("utf-8", "replace")[:MAX_CLIPBOARD_BYTES].decode("utf-8", "ignore")
    is_whole = len(head) == len(text) and len(clipped) == len(shown)
    size = len(clipped.encode())
    return ClipboardText(clipped, size, size if is_whole else max(n_total, size))


def copy_summary(copy: ClipboardText, environ: Mapping[str, str], *, raw: bool = False, whole: str = "") -> SafeText:
    """Describe how much was sent. The terminal does not confirm that it accepted the text.

    Args:
        copy: the copied text.
        environ: environment variables.
        raw: the text was sent unchanged.
        whole: where the whole text can be found, shown if only a part was sent.
    """
    is_whole = copy.n_bytes == copy.n_total
    amount = (
        _byte_count(copy.n_bytes)
        if is_whole
        else f"the first {_byte_count(copy.n_bytes)} of {_byte_count(copy.n_total)}"
    )
    mode = " unchanged" if raw else ""
    more = f"; {whole}" if whole and not is_whole else ""
    hint = "\nin tmux this needs: set -g set-clipboard on" if environ.get("TMUX") else ""
    return trusted(f"sent {amount}{mode} to the terminal's clipboard (OSC 52){more}{hint}")


def _byte_count(n: int) -> str:
    if n < 1024:
        return f"{n} bytes"
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"
