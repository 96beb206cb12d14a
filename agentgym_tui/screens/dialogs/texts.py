"""Dialogs that only show text: the newest messages, an evaluation report, and the bytes of an untrusted text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from textual.app import ComposeResult

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import format_time
from agentgym_tui.presenters.payload import HexRows
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services import Message, copy_to_clipboard, messages
from agentgym_tui.widgets.lists import LineList, WrappedText

if TYPE_CHECKING:
    from runner.results.evaluation import EvalRow

MAX_ROWS: Final = 200
"""Rows of one message."""

MAX_BYTES: Final = 4_096
"""Bytes that a hex dump shows."""


class MessagesDialog(DialogScreen[None]):
    """A dialog that shows the messages of this console in full, the newest first."""

    SCOPE = "dialog"

    def compose(self) -> ComposeResult:
        shown = messages(self.app)
        with DialogFrame("Messages", keys="{dialog.close} closes · {list.down} {list.up} scroll"):
            yield WrappedText(lambda width: list(message_lines(shown, width)), id="messages-in-full")


def message_lines(shown: Sequence[Message], width: int) -> Iterator[Line]:
    """Yield each message below the time at which it was shown."""
    if not shown:
        yield [Cell("No messages yet", "dim")]
    for message in shown:
        yield [Cell(format_time(message.at, "%H:%M:%S"), "bad" if message.failed else "dim")]
        text = message.text.replace("\t", "    ")
        yield from ([Cell(row)] for row in wrap_text(text, width, MAX_ROWS))
        yield ()


class EvalReportDialog(DialogScreen[None]):
    """A dialog with AgentGym's score and success per environment, and what differs from AgentEval's setting."""

    SCOPE = "report"

    def __init__(self, rows: Sequence[EvalRow]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        keys = "{report.copy} copies as Markdown · {report.close} closes · {list.down} {list.up} scroll"
        with DialogFrame("Score and success as AgentGym computes them", keys=keys):
            yield WrappedText(lambda width: list(report_lines(self._rows, width)), id="report")

    def action_copy(self) -> None:
        """Copy the report as Markdown."""
        from runner.results.evaluation import markdown

        copy_to_clipboard(self.app, "\n".join(markdown(self._rows)), raw=False)


def report_lines(rows: Sequence[EvalRow], width: int) -> Iterator[Line]:
    """Yield player, numbers and setting of each row, and why they are not comparable with AgentEval's."""
    from runner.results.evaluation import cells

    if not rows:
        yield [Cell("No episodes yet", "dim")]
    for row in rows:
        env, player, n, score, success, interval, rounds, errors, setting = map(sanitize_line, cells(row))
        yield [Cell(env, "head"), Cell(f" {player}")]
        numbers = f"n {n} · score {score} · success {success} ({interval}) · {rounds} rounds · {errors} errors"
        differences = f"not comparable with AgentEval: {'; '.join(row.differences)}"
        texts = [Cell(numbers), Cell(setting, "dim")]
        texts.append(Cell(differences, "warn") if row.differences else Cell("AgentEval's setting", "good"))
        for text, style in texts:
            yield from ([Cell(line, style)] for line in wrap_text(text, width, MAX_ROWS))
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
        self._title = f"{len(self._data):,} bytes of UTF-8{more}"

    def compose(self) -> ComposeResult:
        with DialogFrame(self._title, keys="{dialog.close} closes"):
            yield LineList(HexRows(self._data[:MAX_BYTES]), cursor_type="none", id="hex")
