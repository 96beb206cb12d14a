"""Where the time of an episode went: its spans as a tree, each with a bar on one axis of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from agentgym_tui.presenters.cells import Tone
from agentgym_tui.presenters.span_rows import SpanRows
from agentgym_tui.presenters.text_width import fit
from agentgym_tui.widgets.line_list import LineView
from runner.types import Span

_TIME: Final = 9
"""Columns of a duration."""


class Waterfall(LineView):
    """The spans of an episode."""

    N_HEADER: ClassVar[int] = 1

    def show_spans(self, spans: Sequence[Span], *, follow: bool | None = None) -> None:
        """Show spans, in any order; ``follow`` as in ``show``."""
        self.show(SpanRows(spans), follow=follow)

    def header(self, width: int) -> Iterable[tuple[str, Tone]]:
        """The axis."""
        name, bar = _widths(width)
        if isinstance(self.source, SpanRows):
            yield fit("span", name + 1), "head"
            yield fit(self.source.axis(bar), bar), "dim"

    def pieces(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        """Name, bar and duration."""
        rows, (name, bar) = self.source, _widths(width)
        if not isinstance(rows, SpanRows):
            return
        for cell, room in ((rows.name(index), name), (rows.bar(index, bar), bar)):
            yield fit(cell.text, room) + " ", cell.tone
        yield fit(rows.duration(index).text, _TIME, right=True), "plain"

    def hostile_text(self) -> str | None:
        """Name and attributes of the span under the cursor, where cleaning changes them."""
        return self.source.hostile_text(self.cursor) if isinstance(self.source, SpanRows) else None


def _widths(width: int) -> tuple[int, int]:
    """Columns of name and bar."""
    name = min(max(width // 3, 12), 48)
    return name, max(width - name - _TIME - 2, 1)
