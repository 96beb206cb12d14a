"""The dialog with the hex dump of an untrusted text."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult

from agentgym_tui.presenters.payload import HexRows
from agentgym_tui.safe_text import trusted
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.widgets.line_list import LineList

MAX_BYTES: Final = 4_096
"""Bytes that are shown."""


class HexDumpDialog(DialogScreen[None]):
    """A dialog that shows the bytes of a text.

    Args:
        text: untrusted text.
    """

    SCOPE = "dialog"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._data = text.encode("utf-8", "surrogatepass")
        more = f", first {MAX_BYTES:,} shown" if len(self._data) > MAX_BYTES else ""
        self._title = trusted(f"{len(self._data):,} bytes of UTF-8{more}")

    def compose(self) -> ComposeResult:
        """Yield the hex dump."""
        with DialogFrame(self._title, keys="{dialog.close} closes"):
            yield LineList(HexRows(self._data[:MAX_BYTES]), cursor_type="none", id="hex")
