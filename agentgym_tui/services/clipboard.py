"""Copy text to the terminal's clipboard with the escape sequence OSC 52. Terminals limit the size of the text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentgym_tui.safe_text import sanitize_text
from agentgym_tui.services.toast import toast

if TYPE_CHECKING:
    from textual.app import App


MAX_CLIPBOARD_BYTES: Final = 100 * 1024
"""Maximum size of a copied text, as UTF-8. Terminals discard a larger text entirely."""


def copy_to_clipboard(app: App[Any], text: str, *, raw: bool, whole: str = "") -> None:
    """Copy a text to the clipboard, and show in a toast how much was copied.

    Args:
        app: the console.
        text: untrusted text.
        raw: whether to keep control characters; otherwise they are made visible.
        whole: a hint where to find the whole text; used only if a part was sent.
    """
    shown = clipboard_text(text, raw=raw)
    if shown.text:
        app.copy_to_clipboard(shown.text)
        toast(app, copy_summary(shown, os.environ, raw=raw, whole=whole))
    else:
        toast(app, "nothing to copy", failed=True)


class ClipboardText(NamedTuple):
    """A text to copy, which may be only the start of a longer text.

    Attributes:
        text: the text to copy.
        n_bytes: size of ``text`` in bytes, as UTF-8.
        n_total: size of the longer text in bytes; equal to ``n_bytes`` if ``text`` is complete.
    """

    text: str
    n_bytes: int
    n_total: int


def clipboard_text(text: str, *, raw: bool) -> ClipboardText:
    """Return the start of a text, at most ``MAX_CLIPBOARD_BYTES`` bytes, cut between two characters.

    Args:
        text: untrusted text.
        raw: whether to keep control characters; otherwise they are made visible. Lone surrogates are always replaced.
    """
    n_total = len(text.encode("utf-8", "replace"))
    head = text[:MAX_CLIPBOARD_BYTES]
    shown = head if raw else sanitize_text(head)
    clipped = shown.encode("utf-8", "replace")[:MAX_CLIPBOARD_BYTES].decode("utf-8", "ignore")
    is_whole = len(head) == len(text) and len(clipped) == len(shown)
    size = len(clipped.encode())
    return ClipboardText(clipped, size, size if is_whole else max(n_total, size))


def copy_summary(copy: ClipboardText, environ: Mapping[str, str], *, raw: bool = False, whole: str = "") -> str:
    """Describe how much text was sent to the terminal, which does not confirm that it accepted the text.

    Args:
        copy: the text that was sent.
        environ: environment variables.
        raw: whether control characters were kept.
        whole: a hint where to find the whole text; used only if a part was sent.
    """
    is_whole = copy.n_bytes == copy.n_total
    amount = (
        _byte_count(copy.n_bytes)
        if is_whole
        else f"the first {_byte_count(copy.n_bytes)} of {_byte_count(copy.n_total)}"
    )
    mode = " unchanged" if raw else ""
    more = f"; {whole}" if whole and not is_whole else ""
    hint = "; in tmux this needs: set -g set-clipboard on" if environ.get("TMUX") else ""
    return f"sent {amount}{mode} to the terminal's clipboard (OSC 52){more}{hint}"


def _byte_count(n: int) -> str:
    if n < 1024:
        return f"{n} bytes"
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"
