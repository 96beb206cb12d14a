"""Dialogs that only show text: the newest messages in full, and the bytes of an untrusted text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from textual.app import ComposeResult

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import format_time
from agentgym_tui.presenters.payload import HexRows
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import trusted
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services.toast import Message, messages
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import WrappedText

MAX_ROWS: Final = 200
"""Rows of one message."""

MAX_BYTES: Final = 4_096
"""Bytes that a hex dump shows."""


class MessagesDialog(DialogScreen[None]):
    """A dialog that shows the messages of this console in full, the newest first."""

    SCOPE = "dialog"

    def compose(self) -> ComposeResult:
        """Yield the messages."""
        shown = messages(self.app)
        with DialogFrame(trusted("Messages"), keys="{dialog.close} closes · {list.down} {list.up} scroll"):
            yield WrappedText(lambda width: list(message_lines(shown, width)), id="messages-in-full")


def message_lines(shown: Sequence[Message], width: int) -> Iterator[Line]:
    """Yield each message below the time at which it was shown."""
    if not shown:
        yield [Cell(trusted("No messages yet"), "dim")]
    for message in shown:
        yield [Cell(format_time(message.at, "%H:%M:%S"), "bad" if message.failed else "dim")]
        text = trusted(message.text.replace("\t", "    "))
        yield from ([Cell(row)] for row in wrap_text(text, width, MAX_ROWS))
        yield ()


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
